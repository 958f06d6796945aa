"""Five hundred steps: is it stable, does it leak, does it keep its pace?"""

import pytest

pytestmark = pytest.mark.extended


def test_training_stays_stable(finding):
    assert finding.passed, finding
