"""A hundred steps: do the adapters learn, does a checkpoint resume, does a fresh process agree?"""

import pytest

from tunecheck.plugin import require_passed

pytestmark = pytest.mark.convergence


def test_the_adapters_learn(finding):
    require_passed(finding)
