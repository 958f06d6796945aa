"""An attempt in several processes, which torch's elastic agent, the attempt's child, starts: they die with it."""

import contextlib
import faulthandler
import logging
import os
import pickle
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from tunecheck.core.evidence import AttemptOutcome, Record
from tunecheck.core.helper import die_with_parent
from tunecheck.core.trace import TraceWriter
from tunecheck.runner.outcome import Outcome, carried_out, crash_of, imported
from tunecheck.runner.request import Request, card_of_rank, show_only

LOST_ANOTHER = (
    *("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out waiting"),
    *("remote process exited", "network error or remote process exiting", "NCCL communicator was aborted"),
)
"""Words of gloo's errors and of NCCL's, the same in a wrapped one: consequences of what another rank did, or not."""
WAITING = ("distributed_c10d.py", "torch/autograd/graph.py", "torch/nn/parallel/distributed.py")
"""Files whose frames a rank stands in while it waits for the others: a collective, and DDP's in a backward pass."""
STACK_SECONDS = 1.0
START_METHODS = {"cpu": "fork", "cuda": "spawn"}
"""How ranks are made, by their device: forked, the libraries are loaded; but a rank on a GPU has to see its own alone
before they initialise CUDA."""


def train_in_ranks(request: Request, connection: Connection) -> Outcome:
    """Train in as many processes as the run says and return how the attempt ended; rank 0 sends its steps."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # its traceback of a rank that failed would push the rank's own out of the end of the log
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    for library in ("GLOO", "NCCL"):  # one machine: a name that resolves to nothing must not matter
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=request.run.processes,
        run_id=request.run.id,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        start_method=START_METHODS[request.device],
        shutdown_timeout=5,  # for the other ranks to end when one has failed, before they are killed
        # a SIGTERM must end the agent as it ends any other attempt; its own handler would make an error of it
        signals_to_handle="SIGUSR2",
    )
    try:
        elastic_launch(config, _rank)(request, connection)
    except ChildFailedError as error:
        failed = error.failures.items()
        ends = {rank: (float(end.timestamp), crash_of(end.exitcode, "", began=True)) for rank, end in failed}
        for rank in range(request.run.processes):  # of one that the agent killed meanwhile, too
            if (left := _beside(request, rank, "outcome")).exists():
                ends[rank] = left.stat().st_mtime, pickle.loads(left.read_bytes())
        # the agent may see one that lost another before that other one
        first = min(ends, key=lambda rank: (_lost_another(ends[rank][1]), ends[rank][0]))
        return _of_rank(first, ends[first][1])
    return Outcome(AttemptOutcome.FINISHED)


def _of_rank(rank: int, outcome: Outcome) -> Outcome:
    of_the_run = outcome.outcome in (AttemptOutcome.MISCONFIGURED, AttemptOutcome.UNAVAILABLE)  # every rank's
    return outcome if of_the_run else outcome._replace(detail=f"rank {rank}: {outcome.detail}")


def _rank(request: Request, connection: Connection) -> None:
    rank = int(os.environ["RANK"])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()
    stacks = _beside(request, rank, "stack").open("w")
    stacks.write(f"{os.getpid()}\n")
    stacks.flush()
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=False, chain=True)
    own = replace(request, trace=rank_trace(request, rank))
    if request.device == "cuda":
        own = replace(own, cards=card_of_rank(request.cards, rank))
        show_only(own.cards)
        os.environ["LOCAL_RANK"] = "0"  # accelerate and torch's device meshes take it for the number of the card

    def work() -> None:
        from torch.distributed import destroy_process_group

        from tunecheck.runner.child import carry_out
        from tunecheck.training.ranks import join

        join(request.run, request.device)
        carry_out(own, (lambda step: None) if rank else connection.send, rank)  # rank 0 alone tells of its steps
        destroy_process_group()

    outcome = imported(quiet=True) or carried_out(work, request.device, request.written)
    sys.stdout.flush()
    sys.stderr.flush()
    if outcome.outcome == AttemptOutcome.FINISHED:
        return
    if _lost_another(outcome):
        time.sleep(3)  # so that the agent sees first who ended by itself
    _beside(request, rank, "outcome").write_bytes(pickle.dumps(outcome))
    os._exit(1)


def _lost_another(outcome: Outcome) -> bool:
    return any(words in outcome.detail for words in LOST_ANOTHER)


def rank_trace(request: Request, rank: int) -> Path:
    """Return the file that this rank writes its evidence to: the run's own trace for rank 0."""
    return _beside(request, rank, "jsonl") if rank else request.trace


def merge_traces(request: Request, writer: TraceWriter, seen: Sequence[Sequence[Record]]) -> None:
    """Append the other ranks' traces and what was seen of each card to the run's trace; remove the ranks' files."""
    for rank in range(1, request.run.processes):
        writer.append(rank_trace(request, rank))
    for rank, records in enumerate(seen):
        TraceWriter(writer.path, rank).write(*records)
    for file in request.checkpoint.parent.glob("rank-*"):
        file.unlink()


def hanging(request: Request) -> str:
    """Return, at the deadline, which ranks the others wait for, with what each is doing: a clause after "; "."""
    if request.run.parallel is None:
        return ""
    ranks = range(request.run.parallel.processes)
    for rank in ranks:
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(_beside(request, rank, "stack").read_text().split()[0]), signal.SIGUSR1)
    time.sleep(STACK_SECONDS)
    places = {rank: _place(_beside(request, rank, "stack")) for rank in ranks}
    # one that waits in a collective is a consequence of one that does not come
    if not (awaited := {rank: place for rank, (place, waits) in places.items() if not waits}):
        return "; every rank waits for the others: " + _told({rank: place for rank, (place, _) in places.items()})
    waiting = [str(rank) for rank in ranks if rank not in awaited]
    return f"; {_told(awaited)}" + (f", while rank {', '.join(waiting)} waited for it" if waiting else "")


def _told(places: dict[int, str]) -> str:
    return ", ".join(f"rank {rank} {place}" for rank, place in places.items())


def _place(file: Path) -> tuple[str, bool]:
    """Return what the rank was doing, by its stack in this file, and whether it waited for the others."""
    try:
        frames = [line.strip() for line in file.read_text().splitlines() if line.strip().startswith("File ")]
    except OSError:
        return "had not begun", False
    if not frames:
        return "did not answer: it is stopped, or stuck outside of Python", False
    own = next((frame for frame in frames if "site-packages" not in frame and "/lib/python" not in frame), frames[0])
    name, _, rest = own.removeprefix("File ").partition(", ")
    place = "/".join(Path(name.strip('"')).parts[-2:])
    return f"was at {place}, {rest}", any(part in frame for frame in frames for part in WAITING)


def _beside(request: Request, rank: int, what: str) -> Path:
    return request.checkpoint.parent / f"rank-{rank}.{what}"
