"""`tunecheck explain`: of every check whether it was judged, why not, and which declaration is missing."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field

from tunecheck.checks import CHECKS
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


@dataclass(slots=True)
class Group:
    """Checks of which the same is to be said."""

    state: str
    why: str = ""
    way_out: str = ""
    checks: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """State, number, reason and way out in a sentence."""
        words = f"{self.state}: {self.why}" if self.why else self.state
        return f"{words}; {self.way_out}" if self.way_out else words


def afterwards(trace: Trace) -> list[Group]:
    """Return what was said of every check, those that were asked of this trace first."""
    asked = checks_of(trace, [])
    order = [Group("passed"), Group("FAILED"), Group("SUSPECTED")]
    found = [_answered(check(trace)) for check in asked.values()]
    others = [_not_asked(name, trace.run.features) for name in CHECKS if name not in asked]
    return _grouped([*order, *found, *others])


def beforehand() -> list[Group]:
    """Return what a training must have for each check to be judged, the checks that no training of others has last."""
    groups = _grouped([_not_asked(name, ALL) for name in CHECKS])
    return sorted(groups, key=lambda group: group.state == "only in tunecheck's own runs")


def lines(groups: list[Group], width: int) -> Iterator[str]:
    """Yield the groups as text, the checks below what is said of them."""
    for group in groups:
        yield from textwrap.wrap(f"{group.title} ({len(group.checks)})", width, subsequent_indent="  ")
        names = ", ".join(group.checks)
        yield from textwrap.wrap(names, width, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)


def _answered(finding: Finding) -> Group:
    if finding.status is Status.UNJUDGED:  # of expectations by which it may be judged all the same
        keys = [f"--expect {key}=..." for key, one in EXPECTATIONS.items() if finding.check in one.opens]
        return Group("unjudged", finding.detail, f"declare it with {' '.join(keys)}" if keys else "", [finding.check])
    states = {Status.PASSED: "passed", Status.SUSPECTED: "SUSPECTED"}
    return Group(states.get(finding.status, "FAILED"), checks=[finding.check])


def _not_asked(name: str, features: frozenset[str]) -> Group:
    lacking = sorted(CHECKS[name].features() - features)
    if any(feature not in FEATURES for feature in lacking):
        return Group("only in tunecheck's own runs", "they have the rows, phases or limits for it", checks=[name])
    if not lacking:
        return Group("judged in every training that declares what it needs", checks=[name])
    return Group("judged with", " and ".join(FEATURES[feature] for feature in lacking), checks=[name])


def _grouped(parts: list[Group]) -> list[Group]:
    groups: dict[str, Group] = {}
    for part in parts:
        groups.setdefault(part.title, Group(part.state, part.why, part.way_out)).checks += part.checks
    return [group for group in groups.values() if group.checks]
