"""Start to end: every trainable tensor must have moved, every frozen byte must be the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from suite.core.evidence import Movement
from suite.probes.reference.four_bit import is_packed, statistics
from suite.probes.reference.measures import digest, sample, sampled_rows
from suite.training.events import Probe
from suite.training.session import Session
from suite.training.tensors import whole

if TYPE_CHECKING:
    from suite.training.data import Batch


class MovementProbe(Probe):
    """Keeps samples of what learns and digests of what does not."""

    emits = (Movement,)

    def start(self, session: Session) -> None:
        """Note the start."""
        self._trainable = [(name, p) for name, p in session.model.named_parameters() if p.requires_grad]
        # on the CPU: what is kept from step to step would be in the run's peak
        self._samples = [sample(p).cpu() for _, p in self._trainable]
        self._digests = [digest(p) for _, p in self._trainable]
        self._lookup = _lookup_table(session.model)
        self._read: set[int] = set()
        self._frozen = {name: (digest(tensor), tensor) for name, tensor in _frozen(session)}

    def step_begin(self, session: Session, step: int, window: Sequence[Batch]) -> None:
        """Keep the window."""
        self._window = window

    def backward_end(self, session: Session, step: int) -> None:
        """Note the tokens that were read: a table of its own learns in their rows alone."""
        if self._lookup is not None and self._lookup.requires_grad:
            for batch in self._window:
                self._read.update(batch.input_ids[batch.attention_mask.bool()].tolist())

    def end(self, session: Session) -> None:
        """Compare the end with the start."""
        # Names are looked up afresh: a tensor that was exchanged for another must show as changed.
        now = dict(_frozen(session))
        changed = [name for name, (before, _) in self._frozen.items() if name not in now or digest(now[name]) != before]
        appeared = [name for name in now if name not in self._frozen and name not in dict(self._trainable)]
        live = dict(session.model.named_parameters())
        after = [live.get(name, old) for name, old in self._trainable]
        shares = [self._moved_share(p, before) for p, before in zip(after, self._samples, strict=True)] or [0.0]
        least = min(range(len(shares)), key=shares.__getitem__)
        self.emit(
            Movement(
                unmoved=tuple(
                    name
                    for (name, _), p, before in zip(self._trainable, after, self._digests, strict=True)
                    if digest(p) == before
                ),
                smallest_moved_share=shares[least],
                smallest_moved_share_at=self._trainable[least][0] if self._trainable else "",
                frozen_tensors=len(self._frozen),
                frozen_bytes=sum(tensor.numel() * tensor.element_size() for _, tensor in self._frozen.values()),
                frozen_changed=tuple(changed + appeared),
                nonfinite=tuple(
                    name for (name, _), p in zip(self._trainable, after, strict=True) if not whole(p).isfinite().all()
                ),
            )
        )
        self._frozen.clear()

    def _moved_share(self, parameter: torch.Tensor, before: torch.Tensor) -> float:
        """Changed elements over those that could change."""
        moved = sample(parameter).cpu() != before
        if parameter is self._lookup:
            rows = sampled_rows(parameter).cpu()
            moved = moved[torch.isin(rows, torch.tensor(sorted(self._read)))]
        return float(moved.float().mean()) if moved.numel() else 0.0


def _lookup_table(model: Any) -> Any:
    """The embedding, where it is no head: only a head's every row has a gradient. None where they are tied."""
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    return None if table is head else table


def _frozen(session: Session) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor that must not change: frozen parameters, their quantisation statistics, buffers."""
    for name, parameter in session.model.named_parameters():
        if not parameter.requires_grad:
            yield name, parameter.detach()
            if is_packed(parameter):
                yield from ((f"{name}.{part}", tensor) for part, tensor in statistics(parameter))
    yield from session.model.named_buffers()
