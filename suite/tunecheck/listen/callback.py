"""`callbacks=[tunecheck.watch()]`: listen to a Trainer from inside of its own training. Imports transformers."""

import sys
from inspect import signature
from traceback import walk_stack
from typing import Any

from transformers import Trainer, TrainerCallback

from tunecheck.core.errors import SuiteError
from tunecheck.listen.context import Heard, Watch
from tunecheck.listen.problems import say
from tunecheck.training.hooks import located


class WatchCallback(Heard, TrainerCallback):
    """Listens to a Trainer's training. After a training that raises it has no report; the context manager has one."""

    def __init__(self, **given: Any) -> None:
        signature(Watch).bind(**given)  # a wrong keyword is an error here, not in the training
        self._given = given
        self._watch: Watch | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to listen."""
        self.report = None
        # a callback is told of everything but of the Trainer that calls it
        calling = (frame.f_locals.get("self") for frame, _ in walk_stack(sys._getframe(1)))
        if (trainer := next((held for held in calling if isinstance(held, Trainer)), None)) is None:
            raise SuiteError("watch: only a transformers Trainer may call this callback")
        try:
            self._watch = Watch(trainer, **self._given).__enter__()
        except SuiteError:
            raise  # of what it was given
        except Exception as error:
            say(f"cannot watch this training: {located(error)}")
            self._watch = None

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Judge what was heard."""
        if self._watch is not None:
            self._watch.__exit__(None, None, None)
            self.report = self._watch.report

    def __enter__(self) -> Any:
        raise SuiteError("watch: pass a trainer or a model, as in tunecheck.watch(trainer)")

    def __exit__(self, *_: object) -> None: ...
