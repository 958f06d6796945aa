"""What a run of a comparison adds to its row of the report."""

from statistics import median
from typing import TYPE_CHECKING

from tunecheck.checks.utilization import timed
from tunecheck.core.evidence import Census, Evaluation, Step, Weights
from tunecheck.core.frozen import Frozen

if TYPE_CHECKING:
    from tunecheck.config.schema import Run
    from tunecheck.core.trace import Trace


class Entry(Frozen):
    """What a comparison shows of one run beside its own row; None where the run did not come so far."""

    comparison: str
    """Tier and file."""
    name: str
    """The run's name in that file; in a benchmark its trainer."""
    turn: int = 0
    """Turn of a benchmark, from 1; 0 in a comparison of runs."""
    trained_parameters: int | None = None
    total_parameters: int | None = None
    """The adapters' included."""
    heldout_loss_start: float | None = None
    heldout_loss_end: float | None = None
    training_seconds: float | None = None
    """The optimizer steps' own time, evaluations and probes left out."""
    rows_per_second: float | None = None
    """Median over the steps after the warm-up."""
    pretrained: bool = False


def waiting(run: "Run") -> Entry | None:
    """Return the entry of a run that did not begin; None for a run by itself."""
    return Entry(comparison=run.comparison, name=run.entry, turn=run.turn) if run.comparison else None


def entry_of(trace: "Trace") -> Entry | None:
    """Return the entry of the attempt that counts; None for a run by itself."""
    run = trace.run
    if not run.comparison:
        return None
    censuses, steps = trace.records(Census), trace.records(Step)
    heldout = [evaluation.loss for evaluation in trace.records(Evaluation) if evaluation.split == "heldout"]
    rates = [run.rows_per_step / step.seconds for step in timed(steps)]
    return Entry(
        comparison=run.comparison,
        name=run.entry,
        turn=run.turn,
        trained_parameters=censuses[-1].trainable_parameters if censuses else None,
        total_parameters=censuses[-1].total_parameters if censuses else None,
        heldout_loss_start=heldout[0] if heldout else None,
        heldout_loss_end=heldout[-1] if len(heldout) > 1 else None,
        training_seconds=sum(step.seconds for step in steps) if steps else None,
        rows_per_second=median(rates) if rates else None,
        pretrained=any(weights.pretrained for weights in trace.records(Weights)),
    )
