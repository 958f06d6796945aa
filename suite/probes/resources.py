"""Tensors that stay alive: during training their number must not grow."""

from __future__ import annotations

import gc

import torch

from suite.evidence import LiveTensors
from suite.probe import Probe
from suite.trainer import Session

WARM_UP_STEPS = 3
"""Optimizer state and caches appear in the first steps; the followed updates of another probe come and go."""


class LiveTensorProbe(Probe):
    """Counts live tensors at the same point of two steps: each count walks the interpreter's objects."""

    emits = (LiveTensors,)

    def start(self, session: Session) -> None:
        """Choose the steps: one after the warm-up and the last one."""
        self._steps = {WARM_UP_STEPS, session.run.training.max_steps - 1}

    def step_end(self, session: Session, step: int, applied: bool) -> None:
        """Count after the gradients are cleared."""
        if step in self._steps:
            tensors, size = live_tensors(session.device.type)
            self.emit(LiveTensors(step=step, tensors=tensors, bytes=size))


def live_tensors(device_type: str) -> tuple[int, int]:
    """Number and bytes of the distinct storages that Python can reach on this kind of device."""
    storages: dict[int, int] = {}
    for thing in gc.get_objects():  # less those that were frozen before the training began
        if issubclass(type(thing), torch.Tensor) and thing.device.type == device_type:
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return len(storages), sum(storages.values())
