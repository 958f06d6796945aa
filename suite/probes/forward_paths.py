"""Properties of one forward pass: the same twice, causal, blind to padding and to other rows; and one known product."""

from __future__ import annotations

import torch

from suite.evidence import ForwardPaths, LayerCalls
from suite.probe import Probe
from suite.trainer import Session

ROW_TOKENS, SHORT_TOKENS = 16, 10


class ForwardProbe(Probe):
    """Three small forwards before training, and a count of layer calls during one step."""

    emits = (ForwardPaths, LayerCalls)

    def start(self, session: Session) -> None:
        """Compare logits of rows that differ in one respect each."""
        ids = torch.tensor([row.input_ids[:ROW_TOKENS] for row in session.batches.heldout[:3] for _ in range(1)])
        row, other = ids[0], ids[1]
        later = torch.cat([row[:-1], other[-1:] + (other[-1:] == row[-1:]).long()])
        padded = torch.cat([row[:SHORT_TOKENS], other[SHORT_TOKENS:]])
        mask = torch.ones(3, ROW_TOKENS, dtype=torch.long)
        mask[2, SHORT_TOKENS:] = 0
        first = self._logits(session, torch.stack([row, later, padded]), mask)
        again = self._logits(session, torch.stack([row, later, padded]), mask)
        among_others = self._logits(session, torch.stack([row, other, padded]), mask)
        scale = float(first.abs().max())
        self.emit(
            ForwardPaths(
                repeat_difference=_largest(first, again),
                future_token_difference=_largest(first[0, :-1], first[1, :-1]) / scale,
                padding_difference=_largest(first[0, :SHORT_TOKENS], first[2, :SHORT_TOKENS]) / scale,
                other_row_difference=_largest(first[0], among_others[0]) / scale,
                matmul_error=_matmul_error(session.device),
                attention=str(session.model.config._attn_implementation),
            )
        )

    def step_begin(self, session: Session, step: int, window: object) -> None:
        """Count layer calls during the second step."""
        if step == 1:
            self._calls, self._micro_batches = 0, len(list(window))  # type: ignore[call-overload]
            layers = [module for module in session.model.modules() if type(module).__name__.endswith("DecoderLayer")]
            self._layers = len(layers)
            self._handles = [layer.self_attn.register_forward_pre_hook(self._count) for layer in layers]

    def backward_end(self, session: Session, step: int) -> None:
        """The second step's backward is done, recomputed layers included."""
        if step == 1:
            for handle in self._handles:
                handle.remove()
            self.emit(LayerCalls(layers=self._layers, micro_batches=self._micro_batches, calls=self._calls))

    def _count(self, *_: object) -> None:
        self._calls += 1

    def _logits(self, session: Session, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """In the mode the model is in: without dropout that is the training path itself."""
        model, was_training = session.model, session.model.training
        model.train(session.run.lora is None or session.run.lora.dropout == 0)
        try:
            with torch.no_grad():
                output = model(
                    input_ids=ids.to(session.device), attention_mask=mask.to(session.device), use_cache=False
                )
                logits: torch.Tensor = output.logits.float()
                return logits
        finally:
            model.train(was_training)


def _largest(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max())


def _matmul_error(device: torch.device) -> float:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 256, 256, generator=generator)
    wanted = a.double() @ b.double()
    got = (a.to(device) @ b.to(device)).cpu().double()
    return float((got - wanted).norm() / wanted.norm())
