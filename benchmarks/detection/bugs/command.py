"""`python -m benchmarks.detection`: the catalogue as a list, and single faults beside a healthy run."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.detection.bugs import FAULTS, NOT_SHOWN, Fault
from suite.config import find_run, load_run
from suite.core.finding import Finding, Status

RUN = "quick/smollm2-135m-qlora"
TINY = (
    "model.architecture.num_hidden_layers=2",
    "model.architecture.hidden_size=128",
    "model.architecture.intermediate_size=256",
    "model.architecture.num_attention_heads=4",
    "model.architecture.num_key_value_heads=2",
    "model.architecture.vocab_size=512",
    "model.parameters=361088",
    "model.sources=[{kind: random}]",
    "allow_random_weights=true",
    "data.max_length=512",
    "training.max_steps=5",
)
"""A random model of two layers: about two seconds a run."""


def list_faults(faults: Mapping[str, Fault], *, as_json: bool) -> int:
    """Print these faults by class, and what of the catalogue cannot be shown here with the reason; the exit status."""
    if as_json:
        rows = [{**dataclasses.asdict(fault), "kind": fault.kind, "does": fault.mechanism} for fault in faults.values()]
        print(json.dumps({"faults": rows, "not_shown": NOT_SHOWN if faults is FAULTS else {}}, indent=2))
        return 0
    for kind in dict.fromkeys(fault.kind for fault in faults.values()):
        held = [fault for fault in faults.values() if fault.kind == kind]
        print(f"{kind}: {len(held)}")
        for fault in held:
            tier = " with ".join([fault.tier, *(fault.settings and [" ".join(fault.settings)])])
            print(f"  {fault.id}: {fault.title} ({tier}: {', '.join(fault.caught_by) or 'no check yet'})")
    if faults is FAULTS:
        print(f"not shown: {len(NOT_SHOWN)}")
        for number, reason in NOT_SHOWN.items():
            print(f"  {number}: {reason}")
    return 0


def run_faults(faults: Sequence[Fault], settings: Sequence[str], *, real: bool) -> int:
    """Train each fault's run healthy and broken and print which checks failed; 1 unless all were named rightly.

    A fault of the catalogue is named when all checks that its row expects fail, one of another set when any does.
    """
    asked = [*(() if real else TINY), "device=cpu", *settings]
    failures = 0
    for fault in faults:
        own = [*asked, *fault.settings_on(real=real)]
        healthy, broken = failed(own, None), failed(own, fault)
        found = {finding.check for finding in broken}
        enough = all if fault.id in FAULTS else any
        named = bool(broken) and not healthy and enough(check in found for check in fault.caught_by)
        failures += not named
        print(f"{fault.id} {fault.title}\n  {fault.mechanism}")
        print(f"  healthy: {_names(healthy) or 'nothing failed'}\n  broken: {_names(broken) or 'nothing failed'}")
        if broken:
            print(f"  first: {broken[0].check}: {broken[0].detail}")
        verdict = (
            "named"
            if named
            else "NOT named in the quick run; `python -m benchmarks.detection matrix` tries convergence too"
        )
        print(f"  {verdict}, expected {', '.join(fault.caught_by) or 'no check yet'}")
    return int(failures > 0)


def failed(settings: Sequence[str], fault: Fault | None) -> list[Finding]:
    """The failed findings of the quick run with these settings, broken if a fault is given, in the table's order."""
    from suite.runner import Runner

    run = load_run(find_run(RUN), settings)
    with tempfile.TemporaryDirectory(prefix="tunecheck-") as folder:
        faults = (fault,) if fault else ()
        runner = Runner(folder=Path(folder), environment={}, gpu=False, say=lambda line: None, faults=faults)
        trace = runner.execute(run)
    findings = [check(trace) for check in run.resolved_checks().values()]
    return [finding for finding in findings if finding.status is Status.FAILED]


def _names(findings: Iterable[Finding]) -> str:
    return ", ".join(finding.check for finding in findings)
