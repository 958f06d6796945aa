"""Every error that a user may see. Each states the value, where it came from, the rule and the next step."""

from tunecheck.core.finding import Domain
from tunecheck.core.redaction import redacted

TRAIN_EXTRA = "install the extra train: `pip install -e '.[train]'` in a clone, or `pip install 'WHEEL[train]'`"


class SuiteError(Exception):
    """Base of all errors that are messages for the user, shown without a traceback and without secrets."""

    def __str__(self) -> str:
        return redacted(super().__str__())


class ConfigError(SuiteError):
    """All problems of one configuration, a line each."""

    def __init__(self, problems: list[str], name: str = "") -> None:
        """`name` is that of the run, or of the file of runs, in whose place the error stands: "quick/my-run"."""
        self.problems, self.name = problems, name
        super().__init__("\n".join(problems))


class WeightsUnavailable(SuiteError):
    """No source could deliver the model; the message lists the answer of each."""


class WeightsDamaged(WeightsUnavailable):
    """A weight file is truncated or altered."""


class DataError(SuiteError):
    """A data set cannot be used."""


class BadRow(DataError):
    """A line of a data set is no row."""


class TraceError(SuiteError):
    """A trace cannot be read."""


class HistoryError(SuiteError):
    """The history of previous sessions cannot be read or written; no session depends on it."""


class HistoryDamaged(HistoryError):
    """The store is broken or of another schema."""


class MachineTooSmall(SuiteError):
    """This machine cannot run a configuration: a sentence that says what is missing."""


class GpuUnusable(SuiteError):
    """A GPU is there, and it, its driver or torch's build keeps runs from it."""

    def __init__(self, message: str, domain: Domain = Domain.ENVIRONMENT) -> None:
        self.domain = domain
        super().__init__(message)


class Unsupported(SuiteError):
    """A combination of settings that is refused instead of being applied in part."""


class BrokenRules(Unsupported):
    """Keys of a run that break a rule, found where the places of the keys are not known."""

    def __init__(self, *rules: tuple[str, str]) -> None:
        """`rules` are dotted keys ("lora.target_modules.0"), each with the rule that it breaks."""
        self.rules = rules
        super().__init__("; ".join(f"{key}: {rule}" for key, rule in rules))


class NotApplicable(SuiteError):
    """A training leaves a check nothing to judge, and no evidence was lost: the finding is unjudged, as expected."""


class MissingEvidence(SuiteError):
    """The trace lacks what a check needs: the finding is unjudged, never passed."""


class NothingCompared(MissingEvidence):
    """A check compared nothing: no tensor, no step, no row. That is neither good nor bad."""
