"""Start listening in every Python process of a watched command: found by Python itself, through PYTHONPATH.

Nothing is imported until the training imports transformers or torch, and no error here reaches the program. A
sitecustomize of the user's own, which this one hides, is run as well.
"""

import importlib.machinery
import importlib.util
import os
import signal
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _run_the_hidden_one() -> None:
    elsewhere = [path for path in sys.path if os.path.abspath(path or os.curdir) != _HERE]
    found = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if found is not None and found.loader is not None:
        module = importlib.util.module_from_spec(found)
        sys.modules["sitecustomize"] = module
        found.loader.exec_module(module)


def _listen() -> None:
    found = importlib.util.spec_from_file_location("_tunecheck_imports", os.path.join(_HERE, os.pardir, "imports.py"))
    if found is not None and found.loader is not None:
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        module.install()


def _tell() -> None:
    try:  # noqa: SIM105 - nothing is imported that the program might not
        os.close(os.open(os.environ.get("TUNECHECK_HEARD", os.devnull), os.O_CREAT | os.O_WRONLY))
    except OSError:  # it is said that nothing was heard, and only where there is no trace either
        pass


_before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C is the program's own, once that begins
try:
    if os.environ.get("TUNECHECK_WATCH"):
        _listen()
        _tell()
except Exception as error:
    print(f"tunecheck: cannot listen to this process ({type(error).__name__}: {error})", file=sys.stderr)
finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, _before)
_run_the_hidden_one()
