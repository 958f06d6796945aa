"""Which worker executes which run: a scheduler of pytest-xdist, which is imported where there are workers alone."""

from xdist.scheduler.loadscope import LoadScopeScheduling  # type: ignore[import-untyped]

from tunecheck.session.workers import run_of


class OneWorkerARun(LoadScopeScheduling):  # type: ignore[misc]
    """Gives every run as a whole to one worker. What a dead one had begun comes to another, which refuses it."""

    def _split_scope(self, nodeid: str) -> str:
        return run_of(nodeid)
