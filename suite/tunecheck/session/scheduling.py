"""Which worker executes which run: a scheduler of pytest-xdist, which is imported where there are workers alone."""

from collections.abc import Callable
from typing import Any

from xdist.scheduler.loadscope import LoadScopeScheduling  # type: ignore[import-untyped]

from tunecheck.session.workers import run_of


class OneWorkerARun(LoadScopeScheduling):  # type: ignore[misc]
    """Gives every run as a whole to one worker, and never repeats what a dead worker had begun."""

    def __init__(self, config: Any, log: Any, lose: Callable[[str, str], None]) -> None:
        """`lose` is called with a run that was begun and the name of its worker when that died."""
        super().__init__(config, log)
        config.option.loadscopereorder = False  # runs are trained in the order of their tiers
        self._lose = lose

    def _split_scope(self, nodeid: str) -> str:
        return run_of(nodeid)

    def remove_node(self, node: Any) -> str | None:
        """Remove a worker; return the item that it died at, None when it had nothing left to do."""
        left = {run: items for run, items in self.assigned_work[node].items() if not all(items.values())}
        if not left:
            super().remove_node(node)
            return None
        begun = next(iter(left))
        died_at: str = next(item for item, done in left.pop(begun).items() if not done)
        self.assigned_work[node] = left  # the runs that it had not begun go to other workers
        self._lose(begun, node.gateway.id)
        super().remove_node(node)
        return died_at
