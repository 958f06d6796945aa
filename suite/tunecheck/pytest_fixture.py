"""The fixture `tunecheck` for tests of one's own, and nothing else: pytest loads it wherever this is installed."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tunecheck.listen.context import Watch
    from tunecheck.results import Report


class Tunecheck:
    """Trainings of a test, listened to; one that does not pass fails the test with what was found."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._trainings = folder, 0

    @contextmanager
    def watch(self, trainer: Any = None, **given: Any) -> "Iterator[Watch]":
        """Listen to the training in the block, given as to `tunecheck.watch`, and require that it passes."""
        from tunecheck.listen.context import Watch

        with Watch(trainer, **{"folder": self._next(), "tell": False, **given}) as watched:
            yield watched
        _require_passed(watched.report, watched.folder)

    def run(
        self,
        command: Sequence[str],
        *,
        steps: int = 10,
        expect: Sequence[str] = (),
        ignore: Sequence[str] = (),
        strict: bool = False,
    ) -> "Report":
        """Run a command that trains, as `tunecheck watch -- COMMAND` does, require a pass and return the report."""
        from tunecheck.config.answers import read_ignored
        from tunecheck.core.redaction import shown
        from tunecheck.listen.expectations import read_expectations
        from tunecheck.listen.launch import run_name, watch
        from tunecheck.listen.options import Options

        folder = self._next()
        options = Options(
            folder=str(folder),
            name=run_name(command),
            steps=steps,
            expect=read_expectations(expect),
            ignore=read_ignored(ignore),
            strict=strict,
            command=shown(command),
        )
        report, _ = watch(command, options)
        _require_passed(report, folder)
        return report

    def _next(self) -> Path:
        self._trainings += 1
        return self._folder / f"tunecheck-{self._trainings}"


def _require_passed(report: "Report | None", folder: Path) -> None:
    from tunecheck.report.view import session_view

    if report is None or report.verdict == "pass":
        return
    view = session_view(report)
    told = [failure.block() for failure in view.failures]
    told += [f"{run.name}: {run.reason}" for run in view.runs if run.reason]
    pytest.fail("\n\n".join([*told, f"{report.headline}; traces in {folder}"]), pytrace=False)


@pytest.fixture
def tunecheck(tmp_path: Path) -> Tunecheck:
    """Judge trainings: `with tunecheck.watch(trainer): trainer.train()`, `tunecheck.run(["python", "train.py"])`."""
    return Tunecheck(tmp_path)
