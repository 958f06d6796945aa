"""The test that most people write: it ended, the losses are finite, the loss fell."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import mean

from benchmarks.peers.observer import Observer
from benchmarks.peers.scenarios import Scenario


class SmokeTest(Observer):
    """Looks at the losses alone."""

    def ended(self) -> None:
        """Judge them."""
        losses, third = self.losses, max(1, len(self.losses) // 3)
        if not losses or not all(map(math.isfinite, losses)):
            self.said.append("a loss is not finite")
        elif mean(losses[-third:]) >= mean(losses[:third]):
            self.said.append("the loss did not fall")


def said(scenario: Scenario, folder: Path) -> list[str]:
    """Return what the test says."""
    return SmokeTest().train(scenario, folder)
