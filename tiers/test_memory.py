"""Does 4-bit training stay under its memory ceiling?"""

import pytest

from tunecheck.plugin import require_passed

pytestmark = pytest.mark.memory


def test_memory_stays_under_its_ceiling(finding):
    require_passed(finding)
