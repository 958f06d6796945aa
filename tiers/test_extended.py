"""Five hundred steps: is it stable, does it leak, does it keep its pace?"""

import pytest

from tunecheck.plugin import require_passed

pytestmark = pytest.mark.extended


def test_training_stays_stable(finding):
    require_passed(finding)
