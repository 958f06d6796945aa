"""How a session begins, in one digest: two attempts with the same settings must begin alike. Imports torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch

from tunecheck.core.evidence import Beginning
from tunecheck.probes.reference.four_bit import is_packed, statistics
from tunecheck.probes.reference.measures import digest


def beginning(session: Any) -> Beginning:
    """The digest of all that training starts from: tensors by name, quantisation statistics, the random state."""
    state = hashlib.sha256()
    tensors = 0
    for tensors, (name, tensor) in enumerate(_tensors(session.model), start=1):  # noqa: B007 - the count is wanted
        state.update(f"{name} {digest(tensor)}\n".encode())
    state.update(torch.get_rng_state().numpy().tobytes())
    held = sum(bool(values) for values in session.optimizer.state.values())
    return Beginning(tensors=tensors, digest=state.hexdigest()[:16], optimizer_states=held)


def _tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in model.named_parameters():
        yield name, parameter
        if is_packed(parameter):
            yield from ((f"{name}.{part}", tensor) for part, tensor in statistics(parameter))
    yield from model.named_buffers()
