"""A benchmark: the same training by several trainers, in turns, each of them judged as a run of a tier is."""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from tunecheck.config import find_run, load_run
from tunecheck.config.trainers import TRAINERS
from tunecheck.core import interrupts
from tunecheck.core.errors import ConfigError, SuiteError

if TYPE_CHECKING:
    from tunecheck.config.schema import Run
    from tunecheck.results import Report
    from tunecheck.session import TierSession


def plan(
    name: str, trainers: Sequence[str], turns: int, overrides: Sequence[str] = (), card: str | None = None
) -> "tuple[list[Run], dict[str, str]]":
    """Return the runs of a benchmark of this run by these trainers, or by every one that is installed and can.

    They are in the order in which they are trained: every second turn backwards, so that none is always the last. The
    second part is each trainer that cannot take part, and why. Raises ConfigError for an unusable run, for a trainer
    that is named and cannot, and where fewer than two can.
    """
    file = find_run(name)
    asked = load_run(file, overrides, card)  # what is wrong with the run itself is no matter of a trainer
    able: dict[str, Run] = {}
    left_out: dict[str, str] = {}
    for trainer in trainers or TRAINERS:
        try:
            run = load_run(file, [*overrides, f"trainer={trainer}"], card)
        except ConfigError as error:
            left_out[trainer] = "; ".join(error.problems)
            continue
        if lacks := TRAINERS[trainer].lacks:
            left_out[trainer] = lacks
        else:
            able[trainer] = run
    if left_out and (trainers or len(able) < 2):
        raise ConfigError([f"bench: trainer {trainer}: {reason}" for trainer, reason in left_out.items()])
    if len(able) < 2:
        raise ConfigError([f"bench: name two trainers or more, of {', '.join(TRAINERS)} (got {', '.join(able)})"])
    order = list(able.items())
    runs = [
        run.model_copy(
            update={"id": f"{run.id}-{trainer}-{turn}", "comparison": asked.name, "entry": trainer, "turn": turn}
        )
        for turn in range(1, turns + 1)
        for trainer, run in (order if turn % 2 else reversed(order))
    ]
    return runs, left_out


def carry_out(runs: "Sequence[Run]", session: "TierSession") -> "Report | None":
    """Train and judge every run, and return the session's report; None where not one was begun.

    An interrupt ends it, with a report on what was trained until then. Raises TraceError for an unwritable folder.
    """
    interrupted = False
    session.open()
    try:
        interrupts.work()
        session.warm_up(runs)
        for run in runs:
            with suppress(SuiteError):  # it is in the report
                trace = session.train(run)
                for check in run.resolved_checks().values():
                    session.rows.add(run.name, check(trace))
    except KeyboardInterrupt:
        interrupted = True
    interrupts.close()
    return session.close(interrupted=interrupted)
