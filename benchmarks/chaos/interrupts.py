"""A signal at every moment of a command: `python -m benchmarks.chaos.interrupts [WORD ...]`.

Commands that train nothing get one at every import that they make, each time in a fork of their process. Those that
start other processes get them at times, as a terminal sends them, to all of the group, or to the command alone.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.chaos.session import RUN
from benchmarks.chaos.sweeps import SIGNALS, keep
from benchmarks.detection.trial import TINY
from tunecheck.core import interrupts
from tunecheck.core.paths import project_folder

AT_IMPORTS = (["list"], ["list", "--needs"], ["show", RUN], ["doctor"], ["history"], ["page", "reports"])
SET = [
    part
    for setting in (*TINY, "training.max_steps=200", "evaluation.batch_size=2", "device=cpu")
    for part in ("--set", setting)
]
SLEEP = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGINT, signal.SIG_DFL); time.sleep(60)"]
AT_TIMES = (
    ["run", RUN, *SET],
    ["bench", RUN, *SET, "--trainer", "native", "--trainer", "transformers", "--turns", "1"],
    ["fleet", "--engine", "local", RUN, *SET],
    ["watch", "--", *SLEEP],
    ["estimate", RUN],
    ["fetch", "tiny-llama"],
)
WITHOUT_VERDICT = ("estimate", "fetch")
"""Commands that may be done at the moment of the signal with nothing but 0 to tell."""
SECONDS = (0.3, 0.6, 1.0, 2.0, 4.0, 7.0, 11.0, 16.0)
BAD_WORDS = ("Traceback", "KeyboardInterrupt", "Exception ignored", "INTERNALERROR", "leaked")
PATIENCE_SECONDS = 60.0
SWEEP = """
import os, sys, _thread

main_thread, seen, sent, child = _thread.get_ident(), [], [], []

def at_import(event, arguments):
    if event != "import" or not interrupts._before or child or _thread.get_ident() != main_thread:
        return
    seen.append(arguments[0])
    if len(seen) % {every}:
        return
    number = interrupts.SIGNALS[len(sent) % 3]
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        child.append(True)
        os.kill(os.getpid(), number)
        return
    sent.append((arguments[0], number, os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])))

from tunecheck.core import interrupts
sys.addaudithook(at_import)
from tunecheck.cli import main

try:
    status = main({command})
except SystemExit as ended:
    status = ended.code
if child:
    sys.stdout.flush()
    os._exit(status)
wrong = [one for one in sent if one[2] != interrupts.INTERRUPTED]
print(f"sent: {{len(sent)}}, wrong: {{wrong}}")
"""
"""A program that sends one of the signals at every so manieth import of a command, each to a fork of its process."""


def main(words: Sequence[str]) -> int:
    """Return 0 when every signal ended its command as an interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # by a shell's background: the commands would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    wrong = 0
    for command in AT_IMPORTS:
        if not words or command[0] in words:
            sent, problems = at_imports(command)
            wrong += bool(problems)
            told = " ".join(command)
            print(f"{told}: {sent} signals{'; '.join(['', *problems])}", flush=True)
            keep(SIGNALS, told, {"sent": sent, "wrong": len(problems), "statuses": {interrupts.INTERRUPTED: sent}})
    for command in AT_TIMES:
        if not words or command[0] in words:
            statuses: Counter[str] = Counter()
            problematic = 0
            for line, status, problems in at_times(command):
                statuses[status] += 1
                problematic += bool(problems)
                print(f"{line}{'; '.join(['', *problems])}", flush=True)
            wrong += problematic
            keep(SIGNALS, command[0], {"sent": statuses.total(), "wrong": problematic, "statuses": statuses})
    return int(wrong > 0)


def at_imports(command: Sequence[str], every: int = 1) -> tuple[int, list[str]]:
    """Send a signal at every so manieth import; return how many ended the command as they should, and what is wrong."""
    program = SWEEP.format(every=every, command=list(command))
    done = subprocess.run([sys.executable, "-c", program], cwd=project_folder(), capture_output=True, text=True)
    last = done.stdout.splitlines()[-1] if done.stdout else "no output"
    found = re.fullmatch(r"sent: (\d+), wrong: \[\]", last)
    problems = [] if found else [last]
    return int(found[1]) if found else 0, problems + [
        f"{word}: {done.stderr[-500:]}" for word in BAD_WORDS if word in done.stderr
    ]


def at_times(command: Sequence[str]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield what came of each signal at each time, the status, and what is wrong with it.

    The last time is that at which the command had ended by itself.
    """
    for seconds in SECONDS:
        ended = False
        for number, whole_group in [(signal.SIGINT, True), *((number, False) for number in interrupts.SIGNALS)]:
            with tempfile.TemporaryDirectory(prefix="interrupts-") as name, tempfile.TemporaryFile("w+") as output:
                own = {"TUNECHECK_REPORTS": name, "TUNECHECK_HISTORY": f"{name}/history.sqlite"}
                process = subprocess.Popen(
                    [sys.executable, "-m", "tunecheck.cli", *command],
                    env={**os.environ, **own},
                    cwd=project_folder(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
                time.sleep(seconds)
                ended = process.poll() is not None
                if not ended:
                    (os.killpg if whole_group else os.kill)(process.pid, number)
                since = time.monotonic()
                try:
                    status = process.wait(PATIENCE_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    status = process.wait()
                output.seek(0)
                text = output.read()
                verdicts = len(list(Path(name).glob("*/verdict.json")))
                to = "group" if whole_group else "command"
                after = "before it" if ended else f"after {time.monotonic() - since:.1f} s"
                line = (
                    f"{command[0]}, {signal.Signals(number).name} to the {to} at {seconds} s: status {status} {after}, "
                )
                line += f"{verdicts} verdict.json "
                problems = [f"{word}: {text[-1500:]}" for word in BAD_WORDS if word in text]
                finished = status == 0 if ended or command[0] in WITHOUT_VERDICT else status in (0, 6) and verdicts
                if status != interrupts.INTERRUPTED and not finished:
                    problems.append(f"status {status}: {text[-1500:]}")
                yield line, f"{status}, done before it" if ended else str(status), problems
        if ended:
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
