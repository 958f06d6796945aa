"""What listening costs a training after the steps that are listened to: CPU seconds a step, with and without watch.

python -m benchmarks.scripts.overhead [--steps N] [--times N]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LISTENED = 10
FIRST = 20
"""The step from which on the CPU seconds are counted."""


def main() -> int:
    """Train in turns with and without watch, and print the medians; 1 where a step costs over 2 % more."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scripts.overhead", description=__doc__)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--child", choices=["trainer", "loop"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _train(options.child, options.steps)
        return 0
    worst = 0.0
    for kind in ("trainer", "loop"):
        pairs = [[_measured(kind, options.steps, watched) for watched in (False, True)] for _ in range(options.times)]
        alone, watched = (statistics.median(column) for column in zip(*pairs, strict=True))
        worst = max(worst, watched / alone - 1)
        told = f"{1000 * alone:.2f} ms a step alone, {1000 * watched:.2f} ms after listening"
        print(f"{kind}: {told}: {watched / alone - 1:+.1%} (CPU, medians of {options.times})", flush=True)
    return int(worst > 0.02)


def _measured(kind: str, steps: int, watched: bool) -> float:
    """Return the CPU seconds of a step in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.scripts.overhead", "--child", kind, "--steps", str(steps)]
    watch = [sys.executable, "-m", "tunecheck.cli", "watch", "--steps", str(LISTENED), "--"]
    with tempfile.TemporaryDirectory(prefix="tunecheck-overhead-") as folder:
        done = subprocess.run(
            [*watch, *command] if watched else command,
            env={**os.environ, "TUNECHECK_REPORTS": folder, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("CPU "))
    return float(line.split()[1])


def _train(kind: str, steps: int) -> None:
    """Train the tiny model and tell the CPU seconds of a step from FIRST on."""
    from transformers import TrainerCallback

    from benchmarks.scripts.script import Script, plain_loop, trained

    script = Script(steps=steps, rows=60, arguments={"logging_strategy": "no", "gradient_accumulation_steps": 1})
    marks: list[float] = []

    def mark(*_: Any, **__: Any) -> None:
        marks.append(time.process_time())

    if kind == "trainer":
        script.built.append(
            lambda trainer: trainer.add_callback(type("Marks", (TrainerCallback,), {"on_step_end": mark})())
        )
        with tempfile.TemporaryDirectory(prefix="tunecheck-overhead-") as folder:
            trained(script, Path(folder))
    else:
        model, tokenizer = script.model_and_tokenizer()
        rows = script.examples(tokenizer)
        plain_loop(script, model, [script.collate(tokenizer, rows[at : at + 2]) for at in range(0, 60, 2)], around=mark)
    print("CPU", (marks[-1] - marks[FIRST - 1]) / (len(marks) - FIRST))


if __name__ == "__main__":
    raise SystemExit(main())
