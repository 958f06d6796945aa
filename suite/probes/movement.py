"""Start to end: every trainable tensor must have moved, every frozen byte must be the same."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from suite.evidence import Movement
from suite.probe import Probe
from suite.tensors import digest, is_packed, sample, statistics
from suite.trainer import Session


class MovementProbe(Probe):
    """Keeps samples of what learns and digests of what does not."""

    emits = (Movement,)

    def start(self, session: Session) -> None:
        """Note the start."""
        self._trainable = [(name, p) for name, p in session.model.named_parameters() if p.requires_grad]
        self._samples = [sample(p) for _, p in self._trainable]
        self._digests = [digest(p) for _, p in self._trainable]
        self._frozen = {name: (digest(tensor), tensor) for name, tensor in _frozen(session)}

    def end(self, session: Session) -> None:
        """Compare the end with the start."""
        # Names are looked up afresh: a tensor that was exchanged for another must show as changed.
        now = dict(_frozen(session))
        changed = [name for name, (before, _) in self._frozen.items() if name not in now or digest(now[name]) != before]
        appeared = [name for name in now if name not in self._frozen and name not in dict(self._trainable)]
        live = dict(session.model.named_parameters())
        unseen = _embedding_alone(session)
        after = [live.get(name, old) for name, old in self._trainable]
        shares = [
            1.0 if p is unseen else float((sample(p) != before).float().mean())
            for p, before in zip(after, self._samples, strict=True)
        ] or [0.0]
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
                    name for (name, _), p in zip(self._trainable, after, strict=True) if not p.isfinite().all()
                ),
            )
        )
        self._frozen.clear()


def _embedding_alone(session: Session) -> object:
    """An embedding that is not the head too: rows of tokens that never came have no gradient, and rightly stay."""
    embedding, head = session.model.get_input_embeddings().weight, session.model.get_output_embeddings()
    return None if head is not None and head.weight is embedding else embedding


def _frozen(session: Session) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor that must not change: frozen parameters, their quantisation statistics, buffers."""
    for name, parameter in session.model.named_parameters():
        if not parameter.requires_grad:
            yield name, parameter.detach()
            if is_packed(parameter):
                yield from ((f"{name}.{part}", tensor) for part, tensor in statistics(parameter))
    yield from session.model.named_buffers()
