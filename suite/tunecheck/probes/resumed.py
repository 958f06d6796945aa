"""Whether a resumed training has its weights, its optimizer's state and its settings back."""

import json
from typing import Any

import torch

from tunecheck.core.evidence import TrainerState
from tunecheck.probes.reference.measures import digest, hex_digest
from tunecheck.training.events import Probe
from tunecheck.training.session import Session


class ResumedProbe(Probe):
    """Looks once, before the step that is resumed from: where it was saved and where it was read."""

    emits = (TrainerState,)

    def step_begin(self, session: Session, step: int, window: object) -> None:
        """Note what the optimizer goes on from; most steps of most runs leave no record."""
        if step == session.run.probes.resume_from:
            self.emit(TrainerState(step=step, tensors=_tensors(session), settings=_settings(session)))


def steps_taken(optimizer: Any) -> int:
    """Return how many steps the optimizer has behind it; 0 where it does not count them."""
    return max((int(state.get("step", 0)) for state in optimizer.state.values()), default=0)


def _tensors(session: Session) -> dict[str, str]:
    """Digests of what learns and of what the optimizer keeps for each, 16 hex digits."""
    named = {name: p for name, p in session.model.named_parameters() if p.requires_grad}
    held: dict[str, Any] = dict(named)
    for name, parameter in named.items():
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
