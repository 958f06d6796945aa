"""A trace: what happened in one run, as plain records, written live as JSON lines and read back whole.

A file holds one `RunHeader` line, then the records of each attempt between an `AttemptStart` and an `AttemptEnd`. A
crash leaves what was written so far; a line that was cut in half by it is dropped. Where several processes train, the
lines of all but the first have the key `rank`.
"""

import dataclasses
import json
import math
import typing
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import tunecheck
from tunecheck.core import evidence
from tunecheck.core.errors import MissingEvidence, TraceError
from tunecheck.core.files import TRACE_BYTES, parse_json, read_bytes
from tunecheck.core.premises import OF_THE_RUN, Fact, Premise, Source, edits, facts
from tunecheck.core.redaction import redactor
from tunecheck.core.snapshot import RunSnapshot, changed, require_settings
from tunecheck.core.typed import MISFITS, build

SCHEMA = 7
"""The only schema that is read. Raised when a reader of older traces would misread a newer one."""

ADAMW = "AdamW"
"""Class of the optimizer whose closed form is known here."""

WITH_FIRST_LABELS = "; the trainer also counts each row's first label"

R = TypeVar("R", bound=evidence.Record)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One child process: its settings, everything it recorded, and how it ended."""

    start: evidence.AttemptStart
    records: tuple[evidence.Record, ...]
    end: evidence.AttemptEnd | None
    """None when the session itself was killed, so that no end was written."""
    of_ranks: Mapping[int, tuple[evidence.Record, ...]] = field(default_factory=dict)
    """The records of each further process, from rank 1 on; `records` are those of rank 0."""

    @property
    def finished(self) -> bool:
        return self.outcome == evidence.AttemptOutcome.FINISHED

    @property
    def outcome(self) -> evidence.AttemptOutcome:
        """How it ended; CUT_OFF without an end."""
        return self.end.outcome if self.end is not None else evidence.AttemptOutcome.CUT_OFF

    @property
    def ending(self) -> str:
        """Outcome and error in a clause: "ran out of memory: CUDA out of memory. Tried to allocate ..."."""
        words = evidence.outcome_words(self.outcome)
        return f"{words}: {self.end.detail}" if self.end is not None and self.end.detail else words

    def all(self, kind: type[R]) -> list[R]:
        return [record for record in self.records if isinstance(record, kind)]

    def of_rank(self, rank: int) -> "Attempt":
        return replace(self, records=self.of_ranks[rank], of_ranks={}) if rank in self.of_ranks else self


@dataclass(frozen=True)
class Trace:
    """One run with all its attempts."""

    header: evidence.RunHeader
    attempts: tuple[Attempt, ...]

    @property
    def settings(self) -> dict[str, Any]:
        """The main attempt's resolved configuration as plain JSON: the header's with its fallback step's changes."""
        return changed(self.header.run, trained[-1].start.changes if (trained := self.trainings) else {})

    @property
    def run(self) -> RunSnapshot:
        return RunSnapshot(self.settings)

    def answered(self, ignore: Mapping[str, str], *, strict: bool) -> "Trace":
        """Return the trace as of a run with these answers of its user, which go before its own."""
        answers = {"ignore": {**self.run.ignore, **ignore}, "strict": strict or self.run.strict}
        return replace(self, header=replace(self.header, run={**self.header.run, **answers}))

    @cached_property
    def facts(self) -> Mapping[str, Fact]:
        """Premise to what is known about it; what the training did says more than what it declares."""
        found = dict(self.run.premises)
        if self.made_for(evidence.AttemptPurpose.MERGE):
            found[Premise.MERGED] = Fact(source=Source.OBSERVED, where="an attempt of its own")
        opened = [*(record.reasons for record in self.records(evidence.PremisesOpen)), dict(_left_open(self))]
        if found.get(Premise.STEP_DECLARED, OF_THE_RUN).source is Source.OPEN:
            opened.append(edits({order.step: order.calls for order in self.records(evidence.CallOrder)}))
        found |= {premise: fact for reasons in opened for premise, fact in facts(reasons).items()}
        left = {premise for premise, fact in found.items() if fact.source is Source.OPEN}
        own = Premise.LABELS_KNOWN in left if Premise.CAUSAL_LM not in left else Premise.STEP_DECLARED not in left
        norms = [step.gradient_norm for step in self.records(evidence.Step)]
        return found | facts({Premise.GRADIENT_DUE: ALL_AS_GOOD} if own and norms and not any(norms) else {})

    def holds(self, premise: Premise) -> bool:
        return self.facts.get(premise, OF_THE_RUN).source is not Source.OPEN

    def why(self, needed: Collection[str], source: Source = Source.OPEN) -> str:
        """Return why the first of the needed premises is open, or known by another source; "" where none is."""
        told = {premise: fact.where for premise, fact in self.facts.items() if fact.source is source}
        return next((told[premise] for premise in Premise if premise in needed and premise in told), "")

    @property
    def trainings(self) -> list[Attempt]:
        """Every attempt to train, in order: all but the last one were replaced by the next."""
        return self.made_for(evidence.AttemptPurpose.TRAIN)

    def made_for(self, purpose: str) -> list[Attempt]:
        return [attempt for attempt in self.attempts if attempt.start.purpose == purpose]

    @property
    def main(self) -> Attempt:
        """The attempt that counts: the last one that trained (not a repeat, not a resume). Raises MissingEvidence."""
        return self.last(evidence.AttemptPurpose.TRAIN)

    def last(self, purpose: str) -> Attempt:
        """Return the last attempt made for this purpose. Raises MissingEvidence when there was none."""
        if made := self.made_for(purpose):
            return made[-1]
        raise MissingEvidence(f"no attempt with the purpose {str(purpose)!r} was made")

    def finished(self, purpose: str) -> Attempt:
        """Return the last attempt made for this purpose. Raises MissingEvidence also when it did not finish."""
        if not (found := self.last(purpose)).finished:
            raise MissingEvidence(f"the {purpose} attempt did not finish: it {found.ending}")
        return found

    def of_all_attempts(self, kind: type[R]) -> list[R]:
        return [record for attempt in self.attempts for record in attempt.all(kind)]

    def records(self, kind: type[R]) -> list[R]:
        """Return the main attempt's records of this kind; none where nothing was trained."""
        return self.main.all(kind) if self.trainings else []

    def all(self, kind: type[R]) -> list[R]:
        """Return the main attempt's records of this kind. Raises MissingEvidence without any, and as `whole` does."""
        if records := self.whole(kind):
            return records
        raise MissingEvidence(f"the trace holds no {kind.__name__} record")

    def whole(self, kind: type[R]) -> list[R]:
        """Return the same, or none. Raises MissingEvidence when the probe that writes them failed: some may be lost."""
        for failure in self.main.all(evidence.ProbeFailed):
            if kind.__name__ in failure.kinds:
                raise MissingEvidence(f"probe {failure.probe} failed at {failure.moment}: {failure.error}")
        return self.main.all(kind)

    def one(self, kind: type[R]) -> R:
        """Return the main attempt's last record of this kind. Raises MissingEvidence when there is none."""
        return self.all(kind)[-1]

    @property
    def ranks(self) -> list[int]:
        """The processes that left evidence of the main attempt, by rank; 0 alone where one trained."""
        return [0, *sorted(self.main.of_ranks)] if self.trainings else [0]

    def of_rank(self, rank: int) -> "Trace":
        return Trace(self.header, tuple(attempt.of_rank(rank) for attempt in self.attempts))

    def of_every_rank(self, kind: type[R]) -> dict[int, list[R]]:
        """Return each rank's records of this kind. Raises MissingEvidence where one of the run's processes has none."""
        found = {}
        for rank in range(self.run.processes):
            if rank not in self.ranks:
                raise MissingEvidence(f"rank {rank} left no trace")
            try:
                found[rank] = self.of_rank(rank).all(kind)
            except MissingEvidence as error:
                raise MissingEvidence(f"rank {rank}: {error}") from None
        return found

    @property
    def averaged_at_times(self) -> str:
        """That the ranks' weights differ and are equal again later, as in local SGD (arXiv 1805.09767); else ""."""
        if self.holds(Premise.AVERAGED_EACH_STEP):
            return ""
        held = [{seen.steps: seen.digest for seen in self.of_rank(at).records(evidence.Replica)} for at in self.ranks]
        after = {at: len({digests[at] for digests in held}) > 1 for at in sorted(set.intersection(*map(set, held)))}
        differ = next((at for at, differing in after.items() if differing), math.inf)
        again = next((at for at, differing in after.items() if at > differ and not differing), None)
        return "" if again is None else f"ranks differ after {differ} steps and are equal after {again}"

    @property
    def steps(self) -> list[evidence.Step]:
        return self.all(evidence.Step)

    @property
    def skipped(self) -> set[int]:
        """The numbers of its steps that the gradient scaler skipped."""
        return {step.step for step in self.steps if not step.applied}

    def first_labels_counted(self, step: int) -> float:
        """Return the share of the tokens that a trainer counts beside the supervised ones: rows' first labels, or 0."""
        counted = next((seen.supervised_tokens for seen in self.steps if seen.step == step), 0)
        window = next((seen for seen in self.records(evidence.Window) if seen.step == step), None)
        rows = 0 if window is None else len(window.rows)
        return rows / counted if window is not None and counted == window.supervised_tokens + rows else 0.0

    @property
    def unused(self) -> frozenset[str]:
        """The trained tensors of parts that no pass of a user's training calls, as a tower of pictures for text.

        Of a model whose formulas are not known here, also those that no step gives a gradient: its loss may need no
        pooler.
        """
        if self.holds(Premise.INTENT_DECLARED):
            return frozenset()
        known = all(seen.has_formulas for seen in self.records(evidence.ForwardReference))
        zero = [] if known else [frozenset(seen.zero) for seen in self.records(evidence.Gradients)]
        called = (names for seen in self.records(evidence.Movement) for names in seen.uncalled.values())
        return frozenset(name for names in called for name in names).union(
            frozenset.intersection(*zero) if zero else ()
        )

    @property
    def left_out(self) -> frozenset[str]:
        """The trainable tensors, most of all elements, that a script's own optimizer holds not one of.

        Whoever forgets a tensor leaves out a few. Whoever trains a new head, or factors of LoRA, leaves out the rest.
        """
        seen = self.one(evidence.Census)
        chosen = not self.holds(Premise.SETTINGS_DECLARED) and self.run.lora is None and "?" not in seen.optimized
        rest = chosen and 0 < 2 * seen.held_parameters < seen.trainable_parameters
        return frozenset(seen.trainable).difference(seen.optimized) if rest else frozenset()

    @property
    def trains_16bit_weights(self) -> bool:
        """Whether the trained weights are meant to be 16-bit; where nobody declares it, by the model's dtype."""
        if not self.holds(Premise.DTYPES_DECLARED):
            return not {"bfloat16", "float16"}.isdisjoint(self.one(evidence.Census).trainable_dtypes)
        lora = self.run.lora
        return lora is not None and lora.adapter_dtype == "model" and self.one(evidence.Setup).precision != "fp32"

    @property
    def knows_model(self) -> bool:
        """Whether the model is its library class's, and one whose formulas are known here."""
        known = self.holds(Premise.ARCHITECTURE_KNOWN) and not self.why({Premise.ARCHITECTURE_KNOWN}, Source.PRESUMED)
        return known and all(seen.has_formulas for seen in self.records(evidence.ForwardReference))


ALL_AS_GOOD = "every gradient is 0, as when all samples of a step are worth the same"
"""Of an objective of the script's own, as a policy's on its own samples."""


def _left_open(trace: Trace) -> Iterator[tuple[str, str]]:
    """Yield the premises that what was recorded leaves open, each with the reason."""
    if not all(weights.pretrained for weights in trace.records(evidence.Weights)):
        yield Premise.PRETRAINED, "the weights are random, so learning is not judged"
    for optimizer in {setup.declared_optimizer for setup in trace.records(evidence.Setup)} - {ADAMW, ""}:
        yield Premise.UPDATE_RULE_KNOWN, f"the trainer declares {optimizer}, whose update rule differs from {ADAMW}"
    if not all(rows.end_tokens for rows in trace.records(evidence.RowSpans)):
        name = "set the Trainer's processing_class, or eos_token_id in the model's configuration"
        yield Premise.END_KNOWN, f"the end token is unknown: {name}, or pass tokenizer= to tunecheck.watch"
    windows = trace.records(evidence.Window)
    if (empty := [window for window in windows if not window.supervised_tokens]) and not trace.records(evidence.Oracle):
        yield Premise.TOKEN_MEAN_LOSS, f"{len(empty)} of {len(windows)} steps supervise no token: their mean is 0/0"


class TraceWriter:
    """Append records to a trace file, making its folder; each line has left this process when `write` returns."""

    def __init__(self, path: Path, rank: int = 0) -> None:
        self.path, self._rank = path, rank
        try:
            path.parent.mkdir(0o700, parents=True, exist_ok=True)
            path.open("ab").close()
        except OSError as error:
            why = f"cannot be written: {error.strerror}"
            raise TraceError(f"{path}: {why}; name another folder for the reports") from error

    def write(self, *records: evidence.Record) -> None:
        """Append these records, a line each, in one write. Raises TraceError when the disk refuses them."""
        lines = "".join(encode(record, self._rank) + "\n" for record in records)
        self._append(lines.encode("utf-8", "backslashreplace"))

    def append(self, path: Path) -> None:
        """Append the whole lines of another writer's file; nothing where there is none."""
        if path.exists():
            whole, newline, _ = path.read_bytes().rpartition(b"\n")
            self._append(whole + newline)

    def end_line(self) -> None:
        """Begin a new line if another process, killed in the middle of one, left the last one unfinished."""
        if self.path.read_bytes()[-1:] not in (b"", b"\n"):
            self._append(b"\n")

    def _append(self, data: bytes) -> None:
        try:
            # a handle that is kept would be another file's, once a script has closed all; a buffer fails at the close
            with self.path.open("ab", buffering=0) as file:
                while data:  # a disk that is nearly full takes a part
                    data = data[file.write(data) :]
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be written: {error.strerror}; make room and run again") from error


def header_of(run: dict[str, Any], fingerprint: str, environment: dict[str, Any]) -> evidence.RunHeader:
    """Return the header of a trace that begins now."""
    return evidence.RunHeader(
        schema=SCHEMA,
        tunecheck_version=tunecheck.__version__,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        run=run,
        fingerprint=fingerprint,
        environment=environment,
    )


def encode(record: evidence.Record, rank: int = 0) -> str:
    """Return a rank's record as one line of JSON. Non-finite numbers are spelled as text, since JSON has none."""
    held = {"kind": type(record).__name__, **({"rank": rank} if rank else {}), **spelled(record)}
    return json.dumps(held, allow_nan=False, ensure_ascii=False)


def decode(line: str) -> tuple[int, evidence.Record]:
    """Return rank and record, as `encode` wrote them. Raises TraceError for anything else."""
    try:
        payload = parse_json(line)
        kind, rank = evidence.record_kind(payload.pop("kind")), build(int, payload.pop("rank", 0))
        if isinstance(record := typing.cast(evidence.Record, build(kind, payload)), evidence.RunHeader):
            require_settings(record.run)
        return rank, record
    except MISFITS as error:
        raise TraceError(f"not a trace record: {line[:120]!r} ({type(error).__name__}: {error})") from error


def read(path: Path) -> Trace:
    """Read a trace. Raises TraceError with the line number for an unreadable, foreign or newer file."""
    header: evidence.RunHeader | None = None
    begun: list[tuple[evidence.AttemptStart, dict[int, list[evidence.Record]]]] = []
    ends: dict[int, evidence.AttemptEnd] = {}
    for rank, record in _records(path):
        if isinstance(record, evidence.RunHeader):
            header = record
        elif isinstance(record, evidence.AttemptStart):
            try:
                require_settings(changed(header.run if header else {}, record.changes))
            except MISFITS as error:
                raise TraceError(f"{path}: an attempt changes what its header does not have: {error}") from None
            begun.append((record, defaultdict(list)))
        elif not begun or len(begun) in ends:
            raise TraceError(f"{path}: a {type(record).__name__} record before any attempt began")
        elif isinstance(record, evidence.AttemptEnd):
            ends[len(begun)] = record
        else:
            begun[-1][1][rank].append(record)
    if header is None:
        raise TraceError(f"{path}: no run header; this is not a trace, or its first line is lost")
    attempts = []
    for number, (start, held) in enumerate(begun, start=1):
        others = {rank: tuple(records) for rank, records in held.items()}
        attempts.append(Attempt(start, others.pop(0, ()), ends.get(number), others))
    return Trace(header, tuple(attempts))


def _records(path: Path) -> Iterator[tuple[int, evidence.Record]]:
    """Yield rank and record of the file's lines but one that was cut off: the last, or what a killed child left."""
    try:
        lines = read_bytes(path, TRACE_BYTES).split(b"\n")
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from error
    cut: TraceError | None = None
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        _require_known_schema(path, line)
        try:
            rank, record = decode(line.decode("utf-8"))
        except (TraceError, UnicodeDecodeError) as error:
            cut = cut or TraceError(f"{path}:{number}: {error}")
            continue
        failed = isinstance(record, evidence.AttemptEnd) and record.outcome != evidence.AttemptOutcome.FINISHED
        if cut is not None and not failed:
            raise cut
        cut = None
        yield rank, record
    if cut is not None and lines[-1] == b"":  # the bad line was written to its end
        raise cut


def _require_known_schema(path: Path, line: bytes) -> None:
    """Raise TraceError for the header of a schema that is not read here, whatever fields it has."""
    try:
        header: Any = parse_json(line) if b'"RunHeader"' in line[:40] else {"schema": SCHEMA}
        commit = ((header.get("environment") or {}).get("git") or {}).get("commit")
    except (ValueError, AttributeError):  # no header at all: told when it is decoded
        return
    if header.get("schema") != SCHEMA:
        writer = str(header.get("tunecheck_version")) + (f", commit {str(commit)[:12]}" if commit else "")
        schemas = f"trace schema {header.get('schema')}, this tunecheck reads {SCHEMA}"
        raise TraceError(f"{path}: {schemas}; judge it with the tunecheck that wrote it ({writer})")


def spelled(value: Any, hide: Callable[[str], str] | None = None) -> Any:
    """Return the value for JSON: non-finite numbers as text, tuples as lists, texts without secrets."""
    hide = hide or redactor()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        return value.value if isinstance(value, Enum) else hide(value)
    if isinstance(value, dict):
        return {hide(str(key)): spelled(item, hide) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [spelled(item, hide) for item in value]
    if dataclasses.is_dataclass(value):
        return {one.name: spelled(getattr(value, one.name), hide) for one in dataclasses.fields(value)}
    return value
