"""What a user's answers make of findings: which are meant, and whether a suspicion fails."""

from collections.abc import Iterable, Mapping
from dataclasses import field, replace

from tunecheck.core.finding import Finding, Status
from tunecheck.core.frozen import Frozen
from tunecheck.core.snapshot import RunSnapshot


class Answers(Frozen):
    """The user's answers for one session."""

    ignore: Mapping[str, str] = field(default_factory=dict)
    """Check to the reason why what it finds is meant."""
    strict: bool = False

    def before(self, run: RunSnapshot) -> "Answers":
        """Return these answers and the run's own, where these say nothing else."""
        return Answers(ignore={**run.ignore, **self.ignore}, strict=self.strict or run.strict)

    def applied(self, finding: Finding) -> Finding:
        """Return the finding as these answers have it."""
        if finding.status not in (Status.FAILED, Status.SUSPECTED):
            return finding
        if reason := self.ignore.get(finding.check):
            return replace(finding, status=Status.IGNORED, meant=reason)
        return replace(finding, status=Status.FAILED) if self.strict else finding

    def needless(self, findings: Iterable[Finding]) -> tuple[str, ...]:
        """Return the checks that are ignored although they found nothing."""
        found = {finding.check for finding in findings if finding.status in (Status.FAILED, Status.SUSPECTED)}
        return tuple(check for check in self.ignore if check not in found)


NO_ANSWERS = Answers()
