"""The answer while the training goes on: what its window says, judged by the parent as soon as that is over."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from tunecheck.core.evidence import AttemptEnd, AttemptOutcome, WindowEnded
from tunecheck.core.trace import encode, read
from tunecheck.listen.merging import merge_ranks
from tunecheck.listen.options import Options, trace_file

SETTLED_SECONDS = 1.0
"""A training that ends sooner after its window is judged once, at its end."""
_WINDOW_OVER, _TRAINING_OVER = (f'"kind": "{kind.__name__}"'.encode() for kind in (WindowEnded, AttemptEnd))


class Early:
    """Looks, now and then, whether the window of the first training is over in all of its processes."""

    def __init__(self, options: Options, tell: Callable[[Path], None]) -> None:
        """Call `tell` once, with a folder that holds the traces so far; it is removed afterwards."""
        self._options, self._tell = options, tell
        self._over_since = 0.0
        self._told = False

    def look(self) -> None:
        """Tell, where the window has been over for a moment."""
        if self._told or not (files := self._files()):
            return
        now = time.monotonic()
        self._over_since = self._over_since or now
        if now - self._over_since < SETTLED_SECONDS:
            return
        self._told = True
        with TemporaryDirectory(prefix="tunecheck-early-") as folder:
            for file in files:
                whole, _, _ = file.read_bytes().rpartition(b"\n")
                if _TRAINING_OVER in whole:
                    return
                ended = AttemptEnd(outcome=AttemptOutcome.FINISHED, detail="", seconds=0.0)
                (Path(folder) / file.name).write_bytes(whole + b"\n" + encode(ended).encode() + b"\n")
            merge_ranks(replace(self._options, folder=folder))
            self._tell(Path(folder))

    def _files(self) -> list[Path]:
        """Return the first training's traces, one of each process; [] where one is missing or its window goes on.

        Nor where a training has ended: its verdict is about to come.
        """
        files: list[Path] = []
        while (file := trace_file(self._options, 1, len(files))).exists():
            seen = file.read_bytes()
            if _WINDOW_OVER not in seen or _TRAINING_OVER in seen:
                return []
            files.append(file)
        processes = read(files[0]).header.environment.get("processes", 1) if files else 0
        return files if processes == len(files) else []
