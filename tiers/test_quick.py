"""Ten steps, before every commit: does everything that fine-tuning rests on hold on this machine?"""

import pytest

from tunecheck.plugin import require_passed

pytestmark = pytest.mark.quick


def test_what_fine_tuning_rests_on_holds(finding):
    require_passed(finding)
