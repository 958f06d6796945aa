"""A 7B model, a thousand steps of instruction tuning: does the real thing work?"""

import pytest

pytestmark = pytest.mark.full


def test_instruction_tuning_works(finding):
    assert finding.passed, finding
