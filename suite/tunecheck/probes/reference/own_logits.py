"""The loss and its gradient at the trainer's own logits, in float64: behind these the model rounds nothing."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar

import torch

from tunecheck.probes.reference.forwards import IdsAndLabels
from tunecheck.probes.reference.measures import PART
from tunecheck.training.data import IGNORED, Batch
from tunecheck.training.hooks import Hooks
from tunecheck.training.ranks import Exchange

AT_ONCE, SAMPLED = PART // 16, PART // 4
"""Elements of the logits that are looked at together in float64, and those kept in host memory until their gradient
arrives: the logits as a whole may be all that a GPU has left. The loss itself takes several times the former."""

T = TypeVar("T")


def unpadded(window: Sequence[Batch]) -> list[IdsAndLabels]:
    """Return ids and labels of the window's rows without their padding."""
    rows = (zip(batch.input_ids, batch.labels, batch.attention_mask.bool(), strict=True) for batch in window)
    return [(ids[mask], labels[mask]) for ids, labels, mask in chain.from_iterable(rows)]


def _parts(positions: Sequence[T], classes: int) -> Iterator[Sequence[T]]:
    """Yield the positions in groups whose logits are looked at together."""
    together = max(1, AT_ONCE // classes)
    return (positions[at : at + together] for at in range(0, len(positions), together))


class OwnLogits:
    """Watch the model's forwards over these rows, unpadded ids and labels, until it is closed.

    Rows are recognised by their tokens, however they are batched and padded. A trainer that takes its loss in chunks
    calls the decoder and then the head; where a chunk begins is read off the hidden states that the head is given.
    """

    def __init__(self, model: Any, rows: Sequence[IdsAndLabels], hooks: Hooks, *, gradients: bool = False) -> None:
        self._hooks = hooks
        self._rows = [(ids.to("cpu"), labels.to("cpu")) for ids, labels in rows]
        self._waiting = list(range(len(rows)))
        # position p predicts label p + 1
        self._open = [torch.cat([labels[1:] != IGNORED, torch.zeros(1, dtype=torch.bool)]) for _, labels in self._rows]
        self._tokens = sum(int(wanted.sum()) for wanted in self._open)
        self._seen, self._unknown = 0, False
        self._total: float | torch.Tensor = 0.0
        """On the logits' device: reading it would wait for the GPU in the middle of the step."""
        self._gradients = gradients
        self._logits: dict[tuple[int, int], tuple[torch.Tensor, int]] = {}
        """Row and position to its logits and the token that they are to predict."""
        self._got: dict[tuple[int, int], torch.Tensor] = {}
        self._others = 0.0
        """Squares of the gradient where nothing is supervised."""
        self.gradient_noise: float | None = None
        """A unit in the last place of that gradient's largest element, over its norm: one that rounds otherwise."""
        self.foreign_rows = 0
        """Rows of the forwards that hold other tokens than any of these."""
        self._within = False
        self._hidden: tuple[torch.Tensor, list[int | None]] | None = None
        decoder, head = model.get_decoder(), model.get_output_embeddings()
        hooks.before(model, self._enter)
        hooks.after(model, self._leave, with_kwargs=True, always_call=True)
        hooks.after(decoder, self._decoded, with_kwargs=True)
        hooks.after(head, self._projected)

    def close(self) -> None:
        """Watch no longer, and keep no tensor but those of the gradient: a loss that the trainer holds keeps this."""
        self._hooks.remove()
        self._hidden, self._rows, self._open = None, [], []

    def loss_of(self, exchange: Exchange) -> float | None:
        """Return the mean negative log-likelihood of the supervised tokens, by the forwards of all ranks.

        None unless each token was seen, in known rows alone.
        """
        seen, totals, unknown = zip(*exchange.gathered((self._seen, float(self._total), self._unknown)), strict=True)
        return sum(totals) / self._tokens if not any(unknown) and sum(seen) == self._tokens > 0 else None

    def gradient_error(self, scale: float) -> float | None:
        """Relative error of the gradient by the logits of sampled positions, for a loss that is multiplied by `scale`.

        What it must be is rounded to the logits' dtype first, and 0 where nothing is supervised. None if none arrived.
        """
        logits, arrived, self._logits, self._got = self._logits, self._got, {}, {}
        difference, norm, largest, dtype = self._others, 0.0, 0.0, torch.float64
        for part in _parts(list(logits), next((len(scores) for scores, _ in logits.values()), 1)):
            scores = torch.stack([logits[place][0] for place in part])
            wanted, dtype = scores.double().softmax(dim=-1), scores.dtype
            wanted[list(range(len(part))), [logits[place][1] for place in part]] -= 1
            wanted = (wanted * (scale / self._tokens)).to(dtype).double()
            largest = max(largest, float(wanted.abs().max()))
            norm += float(wanted.square().sum())
            missing = torch.zeros_like(scores[0])
            got = torch.stack([arrived.get(place, missing) for place in part]).double()
            difference += float((got - wanted).square().sum())
        if not norm or not arrived:
            return None
        self.gradient_noise = torch.finfo(dtype).eps * largest / norm**0.5
        return float((difference / norm) ** 0.5)

    def _enter(self, *_: object) -> None:
        self._within = True

    def _leave(self, _model: Any, args: Any, others: dict[str, Any], out: Any) -> None:
        self._within = False
        logits = getattr(out, "logits", None)
        if logits is None or (self._gradients and not torch.is_grad_enabled()):  # the latter is no pass of the training
            return
        rows, kept = self._recognised(args, others), others.get("logits_to_keep", 0)
        if isinstance(kept, int):  # the last positions alone; 0 keeps all
            ids = others.get("input_ids", args[0] if args else logits)
            self._look(rows, logits, ids.shape[1] - logits.shape[1] if kept else 0)
        else:
            self._unknown = True

    def _decoded(self, _decoder: Any, args: Any, others: dict[str, Any], out: Any) -> None:
        # a model that names no decoder is its own, and returns no hidden states
        if not self._within and (torch.is_grad_enabled() or not self._gradients) and hasattr(out, "last_hidden_state"):
            self._hidden = (out.last_hidden_state.detach(), self._recognised(args, others))

    def _projected(self, _head: Any, args: Any, logits: torch.Tensor) -> None:
        if self._within:
            return
        given = args[0].detach()
        if self._hidden is None or given.untyped_storage().data_ptr() != self._hidden[0].untyped_storage().data_ptr():
            self._unknown = True  # selected or copied positions: which ones cannot be told
            return
        hidden, rows = self._hidden
        self._look(rows, logits, (given.storage_offset() - hidden.storage_offset()) // max(1, hidden.stride(1)))

    def _recognised(self, args: Any, others: dict[str, Any]) -> list[int | None]:
        """The rows of a call, each taken once; None for one that was not announced."""
        if not isinstance(ids := others.get("input_ids", args[0] if args else None), torch.Tensor):
            return []
        found: list[int | None] = []
        shifted = [False] * len(ids)
        if isinstance(mask := others.get("attention_mask"), torch.Tensor) and mask.shape == ids.shape:
            shifted = (mask[:, 0] == 0).tolist()  # padded on the left: its positions are others
        for given, is_shifted in zip(ids.to("cpu"), shifted, strict=True):
            if is_shifted:
                found.append(None)
                continue
            same = [n for n in self._waiting if torch.equal(given[: len(self._rows[n][0])], self._rows[n][0])]
            if (longest := max(same, key=lambda n: len(self._rows[n][0]), default=None)) is not None:
                self._waiting.remove(longest)
            else:  # a row that comes a second time is not foreign
                self.foreign_rows += not any(torch.equal(given[: len(row)], row) for row, _ in self._rows)
            found.append(longest)
        return found

    def _look(self, rows: list[int | None], logits: torch.Tensor, first: int) -> None:
        """Add the likelihoods of positions not seen before; `logits` are [rows, positions from the first, classes]."""
        if not rows or None in rows:
            self._unknown = True
            return
        every = max(1, -(-self._tokens // max(1, SAMPLED // logits.shape[-1])))
        watched: list[tuple[int, int, int]] = []
        unsupervised = torch.ones(logits.shape[:2], dtype=torch.bool)
        for place, row in enumerate(rows):
            assert row is not None
            wanted = self._rows[row][1]
            last = min(first + logits.shape[1], len(wanted) - 1)
            supervised = [p for p in range(first, last) if wanted[p + 1] != IGNORED]
            unsupervised[place, [position - first for position in supervised]] = False
            fresh = [p for p in supervised if self._open[row][p]]
            self._open[row][fresh] = False
            with torch.no_grad():  # an index that autograd keeps would be one more than a recomputation has
                for part in _parts(fresh, logits.shape[-1]):
                    # where they are: on the host this took most of a small model's step
                    scores = logits[place, [p - first for p in part]].double()
                    chosen = scores.gather(1, wanted[1:][part][:, None].to(scores.device))[:, 0]
                    self._total = self._total - (chosen - scores.logsumexp(dim=-1)).sum()
                sampled = fresh[-self._seen % every :: every] if self._gradients and logits.requires_grad else []
                for part in _parts(sampled, logits.shape[-1]):
                    for position, scored in zip(part, logits[place, [p - first for p in part]].cpu(), strict=True):
                        self._logits[row, position] = scored, int(wanted[position + 1])
            self._seen += len(fresh)
            watched += [(place, row, p) for p in supervised if (row, p) in self._logits]
        if self._gradients and logits.requires_grad:
            self._hooks.gradient(logits, lambda gradient: self._arrived(gradient, watched, unsupervised, first))

    def _arrived(
        self, gradient: torch.Tensor, watched: list[tuple[int, int, int]], unsupervised: torch.Tensor, first: int
    ) -> None:
        # in parts: a norm in another dtype copies all of what it is given
        gradient, classes = gradient.detach(), gradient.shape[-1]
        parts = [part for row in gradient for part in torch.split(row, max(1, AT_ONCE // classes))]
        norms = torch.cat([torch.linalg.vector_norm(part, dim=-1, dtype=torch.float32) for part in parts])
        norms = norms.to("cpu").view(gradient.shape[:2])
        self._others += float(norms[unsupervised].square().sum())
        for part in _parts(watched, classes):
            copies = gradient[[place for place, _, _ in part], [position - first for _, _, position in part]].cpu()
            for (_, row, position), got in zip(part, copies, strict=True):
                self._got[row, position] = self._got[row, position] + got if (row, position) in self._got else got
