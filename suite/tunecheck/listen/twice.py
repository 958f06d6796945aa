"""`--twice`: the command's first steps once more, and from a checkpoint in their middle, before the watched run.

They go first, into a folder of their own, so that they find the script's folders as the watched run does.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tunecheck.core.errors import MissingEvidence, TraceError
from tunecheck.core.evidence import AttemptEnd, AttemptOutcome, AttemptPurpose, AttemptStart, Record, Step, Trained
from tunecheck.core.premises import Premise, opened
from tunecheck.core.trace import Trace, TraceWriter, read
from tunecheck.listen.options import Options, trace_file

SCRATCH = "twice"
"""Folder below the session's for both runs, and what they write."""
OUTPUT = "output"
"""Folder below a run's own that stands in for the Trainer's output_dir."""
NOT_TWICE = (
    "the second run trained nothing with a Trainer (see twice.log); --twice skips loops, because no object declares "
    "where they write"
)
NO_CHECKPOINT = "the training saves no resumable checkpoint: save_strategy, save_only_model or ignore_data_skip"
Runs = dict[AttemptPurpose, Trace]


def append_to(path: Path, runs: Runs) -> None:
    """Add both runs to the trace of the watched one, as its attempts. Raises TraceError."""
    if path.exists() and runs:
        first = read(path).run.training.first_step
        for purpose, trace in runs.items():
            TraceWriter(path).write(*_attempt(purpose, trace, first))


def rehearse(options: Options, run: Callable[[Options], int]) -> tuple[Options, Runs]:
    """Run the command's first steps out of sight, then again from a checkpoint of their middle where it keeps any.

    Return the options of the watched run, by which checks are asked of both, or why not, and what they left.
    """
    scratch = Path(options.folder) / SCRATCH
    again = replace(options, folder=str(scratch / "repeat"), purpose=AttemptPurpose.REPEAT.value)
    run(again)
    if (repeat := _trace(again)) is None:
        return replace(options, not_twice=opened((NOT_TWICE, Premise.REPEATED, Premise.RESUMED))), {}
    steps = repeat.run.training.max_steps
    options = replace(options, repeat_steps=steps)
    done, checkpoint = _checkpoint(Path(again.folder) / OUTPUT, repeat)
    if checkpoint is None:
        return replace(options, not_twice={Premise.RESUMED: NO_CHECKPOINT}), {AttemptPurpose.REPEAT: repeat}
    resumed = replace(options, folder=str(scratch / "resume"), purpose=AttemptPurpose.RESUME.value)
    resumed = replace(resumed, steps=steps - done, checkpoint=str(checkpoint))
    run(resumed)
    runs = {AttemptPurpose.REPEAT: repeat, AttemptPurpose.RESUME: _trace(resumed)}
    return replace(options, resume_from=done), {purpose: trace for purpose, trace in runs.items() if trace is not None}


def _trace(options: Options) -> Trace | None:
    try:
        trace = read(trace_file(options, 1, 0))
        return trace if trace.main.all(Step) and "features" in trace.header.run else None
    except (TraceError, MissingEvidence):
        return None


def _checkpoint(folder: Path, trace: Trace) -> tuple[int, Path | None]:
    """Return the last checkpoint of the first half of the steps, with the steps that were done before it."""
    first, steps = trace.run.training.first_step, trace.run.training.max_steps
    named = [(re.fullmatch(r"checkpoint-(\d+)", path.name), path) for path in folder.glob("*")]
    found = {int(name[1]) - first: path for name, path in named if name}
    done = max((done for done in found if 0 < done <= steps // 2), default=0)
    return done, found.get(done)


def _attempt(purpose: AttemptPurpose, trace: Trace, first: int) -> Iterator[Record]:
    """Yield the records of a run as an attempt whose steps are counted from those of the watched one."""
    yield AttemptStart(purpose=purpose, device=trace.main.start.device)
    began, resumed = trace.run.training.first_step, purpose is AttemptPurpose.RESUME
    for record in trace.main.records:
        if isinstance(record, Step):
            yield replace(record, step=record.step + (began - first if resumed else 0))
        elif isinstance(record, Trained):
            yield record
    end = trace.main.end or AttemptEnd(outcome=AttemptOutcome.CUT_OFF, detail="", seconds=0.0)
    if began != first and not resumed:
        detail = f"it started at step {began}, the watched run at step {first}: the script resumes on its own"
        end = replace(end, outcome=AttemptOutcome.FAILED, detail=detail, cause=None)
    yield end


# In the watched process.


def keep_out_of_its_folders(trainer: Any, options: Options) -> None:
    """Have a Trainer write into a folder of this run alone, and report to nobody."""
    args = trainer.args
    args.output_dir, args.push_to_hub, args.save_total_limit = str(Path(options.folder) / OUTPUT), False, None
    for callback in list(trainer.callback_handler.callbacks):
        if type(callback).__module__.startswith("transformers.integrations."):
            trainer.remove_callback(callback)


def keeps_checkpoint(args: Any, state: Any, done: int, steps: int) -> bool:
    """Return whether a checkpoint is due after this many steps: in the middle, if the training keeps any to resume."""
    strategy = str(args.save_strategy).rpartition(".")[2].lower()
    resumable = strategy != "no" and not getattr(args, "save_only_model", False) and not args.ignore_data_skip
    return resumable and done == min(steps, state.max_steps) // 2
