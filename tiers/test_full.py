"""A 7B model, a thousand steps of instruction tuning: does the real thing work?"""

import pytest

from tunecheck.plugin import require_passed

pytestmark = pytest.mark.full


def test_instruction_tuning_works(finding):
    require_passed(finding)
