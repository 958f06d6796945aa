"""A call of the decoder, carried out again right after it: the same inputs must give the same bits.

Imports torch; child process only.
"""

from dataclasses import dataclass
from typing import Any

import torch

from tunecheck.probes.reference.measures import Digest, digest
from tunecheck.training.hooks import Hooks
from tunecheck.training.restore import model_mode


@dataclass(slots=True)
class Call:
    """The first call of a decoder in a stretch of the training: what it was given, and what came out."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None
    """None until there was one."""
    hidden: Digest = ()
    training: bool = False
    gradients: bool = False
    autocast: torch.dtype | None = None

    def note(self, decoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """A forward hook."""
        if self.kwargs is None and hasattr(out, "last_hidden_state"):  # a model that names no decoder returns another
            kind = str(out.last_hidden_state.device.type)
            self.args, self.kwargs, self.hidden = args, kwargs, digest(out.last_hidden_state)
            self.training, self.gradients = decoder.training, torch.is_grad_enabled()
            self.autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None

    def repeats(self, model: Any) -> bool | None:
        """Call the decoder again in the same mode; whether the same bits come out. None where there was no call."""
        if self.kwargs is None:
            return None
        decoder = model.get_decoder()
        kind = next(decoder.parameters()).device.type
        with (
            model_mode(decoder, self.training),
            torch.set_grad_enabled(self.gradients),
            torch.autocast(kind, self.autocast, enabled=self.autocast is not None),
        ):
            again = digest(decoder(*self.args, **self.kwargs).last_hidden_state)
        self.args, self.kwargs = (), None
        return again == self.hidden


def first_call(model: Any, hooks: Hooks) -> Call:
    """Return the first call of this model's decoder, as it will have been before these hooks are removed."""
    call = Call()
    hooks.after(model.get_decoder(), call.note, with_kwargs=True)
    return call
