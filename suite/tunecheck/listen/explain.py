"""`tunecheck explain`: of every check whether it was judged, why not, and which declaration is missing."""

import textwrap
from collections.abc import Iterator

from tunecheck.checks import CHECKS
from tunecheck.core.check import grouped
from tunecheck.core.finding import Finding, Status
from tunecheck.core.trace import Trace
from tunecheck.listen.expectations import EXPECTATIONS
from tunecheck.results.rejudge import checks_of

FEATURES = {
    "adapters": "adapters of a LoraConfig",
    "frozen": "frozen tensors",
    "trains_base": "trained base weights",
    "quantized": "a 4-bit base (BitsAndBytesConfig)",
    "checkpointing": "gradient checkpointing",
    "dropout": "adapters with dropout",
    "several_steps": "--steps of at least 5",
    "evaluates": "evaluations (eval_strategy)",
    "merge": "adapters of a LoraConfig, merged after training",
    "expectations": "--expect",
    "unknown_rows": "a model or a loss of its own",
    "repeat": "--twice",
    "pairs": "a data set of preference pairs, or of labelled answers",
    "resume_declared": "a checkpoint to resume from (resume_from_checkpoint)",
    "resume": "--twice, and a Trainer that saves checkpoints",
}
"""Feature of a training to what gives it one. The other features are those of the suite's own runs, or of all."""
ALL = frozenset({"oracle", "user_code"})
"""Features that every training under watch has."""
ONLY_OWN = "only in tunecheck's own runs: they have the rows, phases or limits for it"
Told = dict[str, list[str]]
"""What is said of checks to their names."""


def afterwards(trace: Trace) -> Told:
    """Return what was said of every check, those that were asked of this trace first."""
    asked = checks_of(trace, [])
    others = (_not_asked(name, trace.run.features) for name in CHECKS if name not in asked)
    told = grouped([*(_answered(check(trace)) for check in asked.values()), *others])
    in_order: Told = {"passed": [], "FAILED": [], "SUSPECTED": []} | told
    return {said: names for said, names in in_order.items() if names}


def beforehand() -> Told:
    """Return what a training must have for each check to be judged, the checks that no training of others has last."""
    return dict(sorted(grouped(_not_asked(name, ALL) for name in CHECKS).items(), key=lambda pair: pair[0] == ONLY_OWN))


def lines(told: Told, width: int) -> Iterator[str]:
    """Yield it as text, the checks below what is said of them."""
    for said, checks in told.items():
        yield from textwrap.wrap(f"{said} ({len(checks)})", width, subsequent_indent="  ")
        names = ", ".join(checks)
        yield from textwrap.wrap(names, width, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)


def _answered(finding: Finding) -> tuple[str, str]:
    if finding.status is Status.UNJUDGED:  # of expectations by which it may be judged all the same
        keys = [f"--expect {key}=..." for key, one in EXPECTATIONS.items() if finding.check in one.opens]
        return f"unjudged: {finding.detail}" + (f"; declare it with {' '.join(keys)}" if keys else ""), finding.check
    return {Status.PASSED: "passed", Status.SUSPECTED: "SUSPECTED"}.get(finding.status, "FAILED"), finding.check


def _not_asked(name: str, features: frozenset[str]) -> tuple[str, str]:
    lacking = sorted(CHECKS[name].features() - features)
    if any(feature not in FEATURES for feature in lacking):
        return ONLY_OWN, name
    needed = " and ".join(FEATURES[feature] for feature in lacking)
    return f"judged with: {needed}" if needed else "judged in every training that declares what it needs", name
