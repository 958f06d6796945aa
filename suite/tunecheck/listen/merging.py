"""Several processes of one command that trained together: their traces become one, and so one verdict.

Listening exchanges nothing between them: a script may do in one process what it does not in another. So each leaves a
trace of its own, and these are put together when the command has ended.
"""

from dataclasses import replace
from itertools import count
from pathlib import Path

from tunecheck.core.errors import TraceError
from tunecheck.core.evidence import FileWritten, PremisesOpen
from tunecheck.core.trace import Trace, TraceWriter, read
from tunecheck.listen.options import Options, trace_file


def merge_ranks(options: Options) -> None:
    """Make one trace of each training whose processes were all heard to the same end; leave the others apart."""
    for number in count(1):
        first = trace_file(options, number, 0)
        if not first.exists():
            return
        files = [first]
        while (file := trace_file(options, number, len(files))).exists():
            files.append(file)
        try:
            traces = [read(file) for file in files]
        except TraceError:
            continue  # told where the traces are judged
        if len(files) > 1 and _alike(traces):
            _merge(files, traces)


def _alike(traces: list[Trace]) -> bool:
    """Return whether these are all processes of one training."""
    processes = traces[0].header.environment.get("processes")
    facts = {(trace.main.outcome, tuple(trace.header.run.get("features", ()))) for trace in traces}
    return processes == len(traces) and len(facts) == 1 and "features" in traces[0].header.run


def _merge(files: list[Path], traces: list[Trace]) -> None:
    """Write the first one anew, with the records of the others behind their ranks, and remove these."""
    first = traces[0]
    run = {
        **first.header.run,
        "parallel": {"processes": len(traces)},
        "features": sorted({*first.header.run["features"], "parallel"}),
    }
    beside = files[0].with_suffix(".merged")
    beside.unlink(missing_ok=True)
    writer = TraceWriter(beside)
    writer.write(replace(first.header, run=run), first.main.start, *first.main.records, *_files_written_later(first))
    for rank, trace in enumerate(traces[1:], start=1):
        own = TraceWriter(beside, rank)
        own.write(
            PremisesOpen(reasons=dict(trace.run.open_premises)), *trace.main.records, *_files_written_later(trace)
        )
        own.close()
    if first.main.end is not None:
        writer.write(first.main.end)
    for saved in first.attempts[1:]:  # by the first process alone
        writer.write(saved.start, *saved.records, *([saved.end] if saved.end else []))
    writer.close()
    beside.replace(files[0])
    for file in files[1:]:
        file.unlink()


def _files_written_later(trace: Trace) -> list[FileWritten]:
    """Return the files that a process wrote when its training was over."""
    return [seen for attempt in trace.attempts if attempt is not trace.main for seen in attempt.all(FileWritten)]
