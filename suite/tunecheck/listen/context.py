"""Listen from inside a script or a notebook: a context around a training, and its verdict afterwards."""

import io
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from tunecheck.config.answers import read_ignored
from tunecheck.core.errors import SuiteError
from tunecheck.core.finding import Finding, Status
from tunecheck.core.paths import session_folder
from tunecheck.core.redaction import shown
from tunecheck.listen import unheard
from tunecheck.listen.expectations import read_expectations
from tunecheck.listen.imports import hear_script
from tunecheck.listen.launch import rows_of
from tunecheck.listen.options import Options, from_environment
from tunecheck.report.page import rows_html
from tunecheck.report.terminal import print_report
from tunecheck.results import Report, reporting


class Findings(list[Finding]):
    """What each check concluded; shown in short, as in the message of an assertion."""

    def __repr__(self) -> str:
        told = [str(found) for found in self if found.status in (Status.FAILED, Status.SUSPECTED)]
        counts = Counter(found.status.value for found in self)
        return "\n".join([*told, ", ".join(f"{number} {status}" for status, number in counts.items())])


class Heard:
    """A training that was listened to: its report and what that says."""

    report: Report | None = None
    """None until the training has ended."""

    @property
    def verdict(self) -> str:
        """pass, fail or inconclusive; the last also before the training has ended."""
        return self.report.verdict if self.report is not None else "inconclusive"

    @property
    def findings(self) -> list[Finding]:
        return Findings(finding for run in (self.report.runs if self.report else ()) for finding in run.findings)

    def __repr__(self) -> str:
        told = self.report.headline if self.report is not None else "the training has not ended"
        return f"<{type(self).__name__}: {told}>"


class Watch(Heard):
    """A context in which one training is listened to; the report is there when it has ended."""

    def __init__(
        self,
        trainer: Any = None,
        *,
        model: Any = None,
        optimizer: Any = None,
        tokenizer: Any = None,
        steps: int = 10,
        expect: Mapping[str, Any] | None = None,
        ignore: Mapping[str, str] | None = None,
        strict: bool = False,
        folder: str | Path | None = None,
        tell: bool = True,
    ) -> None:
        if (trainer is None) == (model is None):
            raise SuiteError("watch: pass either a trainer, or a model and its optimizer")
        if steps < 2:
            raise SuiteError(f"watch: steps should be at least 2 (got {steps})")
        self._trainer = trainer
        self._loop = {"model": model, "optimizer": optimizer, "tokenizer": tokenizer}
        self._tell = tell
        self.folder = Path(folder).absolute() if folder is not None else session_folder()
        self._options = Options(
            folder=str(self.folder),
            name=Path(sys.argv[0]).stem or "training",
            steps=steps,
            expect=read_expectations(f"{key}={value}" for key, value in (expect or {}).items()),
            ignore=read_ignored(f"{check}={reason}" for check, reason in (ignore or {}).items()),
            strict=strict,
            command=shown(sys.argv),
        )
        self._stack = ExitStack()

    def __enter__(self) -> "Watch":
        self._reported = reporting(self._options.command)
        self._earlier = self._traces()
        if from_environment() is None:  # the command hears saves of the whole process
            self._stack.enter_context(hear_script())
            self._stack.callback(unheard.begin().remove)
        if self._trainer is not None:
            from tunecheck.listen.hf_trainer import TrainerListener

            self._stack.enter_context(TrainerListener(self._trainer, self._options))
        else:
            from tunecheck.listen.loop import LoopHooks

            hooks = LoopHooks(self._options, **self._loop)
            hooks.attach()
            self._stack.push(lambda kind, error, trace: hooks.detach(error))
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._stack.__exit__(kind, error, trace)
        silent = "the block trained nothing that tunecheck can watch: the model made no optimizer step in it"
        if error is not None:
            silent = f"the block ended before its first step: {type(error).__name__}: {error}".rstrip(": ")
        rows = rows_of(self.folder, self._options, 0, silent, dict(self._earlier.items() & self._traces().items()))
        told = unheard.told() if from_environment() is None else ""
        self.report = self._reported(rows, interrupted=isinstance(error, KeyboardInterrupt), problems=told)
        if self._tell:
            print_report(self.report, Console())

    def _traces(self) -> dict[Path, int]:
        """Return the traces in the folder, which other trainings may have left there, and when each was changed."""
        return {path: path.stat().st_mtime_ns for path in self.folder.glob("watch-*.jsonl")}

    def _repr_html_(self) -> str:
        """Return the report as a notebook shows it, and below it the rows as the model got them."""
        if self.report is None:
            return "<pre>tunecheck is recording; the report follows at the end of the block</pre>"
        console = Console(record=True, width=100, file=io.StringIO())
        print_report(self.report, console)
        told = console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
        return told + rows_html(self.report, self.folder)
