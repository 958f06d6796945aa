"""Table of the peers: what is installed, how each is attached, and how much of a script that changes. No torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A tool that says something about a training."""

    name: str
    packages: tuple[str, ...] = ()
    """Installed without dependencies above this environment's own libraries; empty for what is no package."""
    adapter: str
    """Module in benchmarks/peers/adapters, with a function `said(scenario, folder)`."""
    lines: int
    """Lines that a user adds to a script, as its documentation has them."""
    attached: str
    """How, in a clause."""

    @property
    def release(self) -> str:
        """What was tried: the package and its version, or the name of what is none."""
        return self.packages[0] if self.packages else self.name


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            name="tunecheck watch",
            adapter="tunecheck_watch",
            lines=0,
            attached="the command wraps the script; it watches ten steps",
        ),
        Peer(
            name="smoke test",
            adapter="smoke_test",
            lines=3,
            attached="it ended, losses are finite, the last third's mean loss is below the first third's",
        ),
        Peer(
            name="torcheck",
            packages=("torcheck==1.0.1",),
            adapter="torcheck",
            lines=6,
            attached="registers the optimizer; every trained tensor must change and stay finite",
        ),
        Peer(
            name="traintools",
            packages=("traintools==0.6.2",),
            adapter="traintools",
            lines=7,
            attached="BatchInspector, GradientHealthMonitor; a Trainer also has TraintoolsCallback",
        ),
        Peer(
            name="thermoclaw",
            packages=("thermoclaw==0.1.6",),
            adapter="thermoclaw",
            lines=6,
            attached="ThermoclawCallback; in a plain loop Observer, EntropySplit, CollapseDetector and diagnose",
        ),
        Peer(
            name="trainproof",
            packages=("trainproof==0.22.0",),
            adapter="trainproof",
            lines=2,
            attached="TrainproofCallback with its objective check; `trainproof epoch` on the log afterwards",
        ),
        Peer(
            name="torch-preflight",
            packages=("torch-preflight==0.5.0", "libcst", "pyyaml"),
            adapter="torch_preflight",
            lines=0,
            attached="`torch-preflight check` on the script as one file; nothing runs",
        ),
        Peer(
            name="neural-net-checklist",
            packages=("neural-net-checklist==1.1.0", "pillow"),
            adapter="neural_net_checklist",
            lines=14,
            attached="its assertions for causal models on model and batch, without the two about fresh weights",
        ),
        Peer(
            name="traincheck",
            packages=(
                *("traincheck==0.2.0", "astor", "numba", "llvmlite", "orjson", "pandas", "polars", "polars-runtime-32"),
                *("python-dateutil", "pytz", "six", "tzdata", "watchdog"),
            ),
            adapter="traincheck",
            lines=0,
            attached="three commands: infer invariants from the healthy script's trace, check them on the other's",
        ),
    )
}
