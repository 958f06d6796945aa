"""Check that LLM fine-tuning works on this machine, with this stack, today.

    import tunecheck

    run = tunecheck.load_run("quick/smollm2-135m-qlora", ["training.seed=3"])
    trace = tunecheck.train(run, folder="reports/mine")
    for finding in tunecheck.judge(trace):
        print(finding)

    with tunecheck.watch(trainer) as watched:  # or watch(model=..., optimizer=...) around a loop of your own
        trainer.train()
    assert watched.verdict == "pass", watched.findings

    Trainer(..., callbacks=[tunecheck.watch()])  # or from inside of the training

What this module exports is public; every module below it may change between releases.

PYTEST_DONT_REWRITE: the command has imported this package before it calls pytest, which would warn that it is too late
to rewrite the assertions of a package that brings a plugin.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tunecheck.api import *  # noqa: F403

__version__ = "0.3.0"


def __getattr__(name: str) -> object:
    """Import the public face at its first use: every pytest session imports this package for its plugin."""
    if name == "__all__" or not name.startswith("_"):
        api = import_module("tunecheck.api")
        if name in ("__all__", *api.__all__):
            exported: object = getattr(api, name)
            return exported
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
