"""A hundred steps: do the adapters learn, does a checkpoint resume, does a fresh process agree?"""

import pytest

pytestmark = pytest.mark.convergence


def test_the_adapters_learn(finding):
    assert finding.passed, finding
