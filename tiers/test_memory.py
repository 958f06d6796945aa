"""Does 4-bit training stay under its memory ceiling?"""

import pytest

pytestmark = pytest.mark.memory


def test_memory_stays_under_its_ceiling(finding):
    assert finding.passed, finding
