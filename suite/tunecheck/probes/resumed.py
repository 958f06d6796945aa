"""What a training goes on from, and whether a resumed one has it back: weights, optimizer's state and settings."""

import json
from collections.abc import Iterable
from itertools import chain
from typing import Any

import torch

from tunecheck.core.evidence import TrainerState
from tunecheck.probes.reference.four_bit import with_statistics
from tunecheck.probes.reference.measures import digest, hex_digest, random_digest
from tunecheck.training.events import Probe
from tunecheck.training.session import Session


class ResumedProbe(Probe):
    """Looks once, before the step that is resumed from: where it was saved and where it was read.

    Where a reference is to start from the same, at all that the training starts from, too.
    """

    emits = (TrainerState,)

    def start(self, session: Session) -> None:
        """Note every tensor, quantisation statistics included, and the random state."""
        if session.run.probes.reference:
            every = chain(with_statistics(session.model.named_parameters()), session.model.named_buffers())
            drawn = {"random state": random_digest(session.device)}
            self.emit(TrainerState(step=0, tensors=_tensors(session, every), settings=_settings(session) | drawn))

    def step_begin(self, session: Session, step: int, window: object) -> None:
        """Note what the optimizer goes on from; most steps of most runs leave no record."""
        if step == session.run.probes.resume_from:
            trained = [(name, p) for name, p in session.model.named_parameters() if p.requires_grad]
            self.emit(TrainerState(step=step, tensors=_tensors(session, trained), settings=_settings(session)))


def steps_taken(optimizer: Any) -> int:
    """Return how many steps the optimizer has behind it; 0 where it does not count them."""
    return max((int(state.get("step", 0)) for state in optimizer.state.values()), default=0)


def _tensors(session: Session, named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
    """Digests of these and of what the optimizer keeps of the model's, 16 hex digits."""
    held: dict[str, Any] = dict(named)
    for name, parameter in session.model.named_parameters():
        state = session.optimizer.state.get(parameter, {})
        held |= {f"{key} of {name}": value for key, value in state.items() if isinstance(value, torch.Tensor)}
    return {name: hex_digest(digest(tensor)) for name, tensor in held.items()}


def _settings(session: Session) -> dict[str, str]:
    """What the optimizer's groups and the scaler are set to, as text."""
    found = {
        f"{key} of group {number}": json.dumps(value, default=str)  # betas come back from JSON as a list
        for number, group in enumerate(session.optimizer.param_groups)
        for key, value in group.items()
        if key != "params"
    }
    if session.scaler is not None:
        found["scaler"] = json.dumps(session.scaler.state_dict(), sort_keys=True)
    return found
