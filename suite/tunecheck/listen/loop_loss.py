"""Which loss a loop differentiates: its model's own, a cross entropy of its logits, or one that is unknown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tunecheck.core.premises import Premise, opened
from tunecheck.listen.batches import batch_of, is_of_pairs
from tunecheck.probes.reference.forwards import parts_of
from tunecheck.probes.reference.loss_graph import gradients, graph_of, straight_back
from tunecheck.probes.reference.measures import PART
from tunecheck.training.data import IGNORED, Batch

UNKNOWN = "the loop computes its loss from the logits in a way that tunecheck does not follow"
FURTHER = "the loop adds a term to the loss"
OUTSIDE_ENTROPY = "it uses the logits outside cross_entropy"
OUTSIDE_FORWARD = "it uses parameters outside the model's forward pass"
WEIGHED = "the loop sums the losses of several passes with different factors"
FROM_PADDING = "rows are left-padded and their first token has a label, which a padded position predicts"
FROM_CACHE = "rows go on from a cache of keys and values, which holds earlier tokens"
OWN_MASK = "the script's own attention mask does more than separate documents"
ENTROPIES = "NllLossBackward0", "NllLoss2DBackward0"
"""What cross_entropy leaves in the graph, behind a log_softmax that keeps its result."""
FACTORS = "DivBackward0", "MulBackward0"
JOINS = *FACTORS, "AddBackward0", "SubBackward0", "NegBackward0", "ToCopyBackward0", "SqueezeBackward0", "ViewBackward0"
"""What leaves a mean in a loss a mean, but for a factor."""
VIEWS = "ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "UnsqueezeBackward0"
REDUCTIONS = "none", "mean", "sum"
MOST_DIFFERENCE = 1e-3
"""Between log-likelihoods computed twice in fp32; other logits (of another temperature or model) differ by far more."""


@dataclass(slots=True, eq=False)
class Pass:
    """A forward pass with gradients, from its call until the loop differentiates what it made of it."""

    given: dict[str, Any]
    logits: torch.Tensor | None = None
    loss: torch.Tensor | None = None
    hidden: torch.Tensor | None = None
    """What the model without its head gave."""
    scored: bool = False
    """Whether the head was called in it, by itself."""

    def returned(self, out: Any, *, of_head: bool = False) -> None:
        """Note what the model gave back; a head called again, for parts of the positions, gives no logits to place."""
        tensors = [part for part in parts_of(out) if isinstance(part, torch.Tensor)]
        self.loss = next((tensor for tensor in tensors[:1] if not tensor.ndim), None)
        given = next((tensor for tensor in tensors if tensor.ndim == 3), None)
        self.hidden = self.hidden if of_head else given
        self.logits = self.hidden if of_head and self.scored else given
        self.scored |= of_head

    def placed(self, entropy: Any, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the labels of a negative log-likelihood, [rows, tokens + 1], each behind the logits that predict it.

        It may cover a stretch, and count some by 0. None if its scores are not the logits or nothing tells what counts.
        """
        before = entropy.next_functions[0][0]
        while before is not None and before.name() in VIEWS:  # of scores with their classes second
            before = before.next_functions[0][0]
        if self.logits is None or not hasattr(before, "_saved_result"):
            return None
        scores, target = before._saved_result, entropy._saved_target.flatten()
        logits, (rows, positions, classes) = self.logits.detach(), self.logits.shape
        ids, kept = self.given.get("input_ids"), self.given.get("logits_to_keep", 0)
        if not isinstance(ids, torch.Tensor) or not isinstance(kept, int):
            return None
        left_out = ids.shape[1] - positions  # of logits_to_keep: the last positions alone
        scores = scores.movedim(before._saved_dim if before._saved_dim < scores.ndim else -1, -1).flatten(0, -2)
        if scores.shape != (len(target), classes) or not len(target) or len(target) % rows:
            return None
        if REDUCTIONS[entropy._saved_reduction] == "none":
            shares = gradients(tensor, [torch.autograd.graph.GradientEdge(entropy, 0)])
            if shares is None or not shares[0].any():
                return None
            target = target.masked_fill(shares[0].flatten() == 0, IGNORED)
        scores, target = scores.view(rows, -1, classes), target.view(rows, -1)
        width = target.shape[1]
        for first in range(positions - width + 1):
            if _same(logits[:1, first], scores[:1, 0]) and all(map(_same, logits[:, first : first + width], scores)):
                labels = torch.full((rows, ids.shape[1] + 1), IGNORED, dtype=torch.long, device=target.device)
                at = left_out + first + 1
                labels[:, at : at + width] = target.masked_fill(target == entropy._saved_ignore_index, IGNORED)
                return labels
        return None


def _same(logits: torch.Tensor, scores: torch.Tensor) -> bool:
    """Return whether these are the log-likelihoods of these logits; in parts, as a copy of all may take gigabytes."""
    parts = (torch.split(each, max(1, PART // each.shape[-1])) for each in (logits, scores))
    apart = [(one.to(other).log_softmax(dim=-1) - other).abs().amax() for one, other in zip(*parts, strict=True)]
    return bool(torch.stack(apart).amax() <= MOST_DIFFERENCE)


@dataclass(slots=True)
class Loss:
    """What a tensor that a loop is about to differentiate is made of."""

    plain: list[Pass] = field(default_factory=list)
    """Passes whose own loss is in it."""
    entropies: list[tuple[Pass, Any, torch.Tensor]] = field(default_factory=list)
    """Passes of whose logits a cross entropy is in it, that, and the labels."""
    others: list[Pass] = field(default_factory=list)
    """Passes whose logits are in it otherwise."""
    further: bool = False
    """Whether parameters are in it by a way that leads through no pass."""
    weighed: bool = False
    """Whether its passes count differently."""

    @property
    def passes(self) -> list[Pass]:
        """Return the passes that are in it, each once."""
        return [*dict.fromkeys([*self.plain, *(each for each, _, _ in self.entropies), *self.others])]

    def factor(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the factor of its only pass's loss in the tensor; None where there are several, or none."""
        nodes: list[Any] = [each.loss.grad_fn for each in self.plain if each.loss is not None]
        nodes += [node for _, node, _ in self.entropies if REDUCTIONS[node._saved_reduction] == "mean"]
        found = gradients(tensor, [torch.autograd.graph.GradientEdge(nodes[0], 0)]) if len(nodes) == 1 else None
        return None if found is None else found[0].detach().float()

    def batch(self, each: Pass, device: torch.device) -> tuple[Batch, dict[Premise, str]]:
        """Return the micro-batch of this pass, and the premises that its loss leaves open, with the reason."""
        own = [(node, labels) for taken, node, labels in self.entropies if taken is each]
        declared = each.given.get("labels") is not None
        if len(own) + (each in self.plain) != 1:
            batch, reason = provisional(each.given, device), UNKNOWN
        else:
            batch = _compared(each.given, own[0][1], device) if own else batch_of(each.given, device)
            reason = FURTHER if self.further or each in self.others else ""
            if own and not reason and (reduction := REDUCTIONS[own[0][0]._saved_reduction]) != "mean":
                reason = f"cross_entropy(reduction={reduction!r}) leaves the normalisation to the loop"
            elif own and not reason and own[0][0]._saved_weight is not None:
                reason = "the loop's cross_entropy has class weights"
            reason = reason or WEIGHED * self.weighed
        premise = Premise.LABELS_KNOWN if reason == UNKNOWN and not declared else Premise.TOKEN_MEAN_LOSS
        left_open = opened((reason, premise), (FURTHER * self.further, Premise.GRADIENT_BY_FORWARD))
        given = batch_of(each.given, device) if declared else batch
        # labels that are shifted already suit a loss of the loop's own, which does not shift them
        batch = batch if own and _of_its_tokens(batch) and not _of_its_tokens(given) else given
        return batch, not_followed(each.given, batch) | left_open


def not_followed(given: Mapping[str, Any], batch: Batch) -> dict[Premise, str]:
    """Return the premises that this micro-batch leaves open, with the reason; the model was called with `given`."""
    own = given.get("attention_mask")
    if given.get("past_key_values", given.get("cache")) is not None:  # its newer name
        return opened((FROM_CACHE, Premise.ROWS_FOLLOWED, Premise.POSITIONS_FOLLOWED))
    if batch.sees is not None:
        return {Premise.ROWS_FOLLOWED: OWN_MASK}
    # transformers takes a mask for each kind of layer, too, and one of blocks
    if own is not None and getattr(own, "ndim", 0) != 2 and not is_of_pairs(own, batch.input_ids.shape[1]):
        return opened((OWN_MASK, Premise.ROWS_FOLLOWED, Premise.POSITIONS_FOLLOWED))
    mask, labels = batch.attention_mask, batch.labels
    if bool(((mask[:, :-1] == 0) & (mask[:, 1:] == 1) & (labels[:, 1:] != IGNORED)).any()):
        return {Premise.TOKEN_MEAN_LOSS: FROM_PADDING}
    return {}


def loss_of(tensor: torch.Tensor, passes: Sequence[Pass]) -> Loss:
    """Return what this tensor is made of, of these passes."""
    losses = {each.loss.grad_fn: each for each in passes if each.loss is not None}
    logits = {each.logits.grad_fn: each for each in passes if each.logits is not None}
    found, ends = Loss(), {*losses, *logits}
    for node in graph_of(tensor.grad_fn, ends):
        if node in losses:
            found.plain.append(losses[node])
        elif node in logits:
            found.others.append(logits[node])
        elif node.name() in ENTROPIES and (
            placed := next(((each, node, at) for each in passes if (at := each.placed(node, tensor)) is not None), None)
        ):
            found.entropies.append(placed)
            ends.add(node)
        else:
            found.further |= not node.next_functions
    nodes: list[Any] = [each.loss.grad_fn for each in found.plain if each.loss is not None]
    if len(nodes) > 1:
        factors = gradients(tensor, [torch.autograd.graph.GradientEdge(node, 0) for node in nodes])
        found.weighed = factors is None or _differ(torch.stack([*factors]))
    return found


def _differ(factors: torch.Tensor) -> bool:
    return bool((factors.max() - factors.min()).abs() > MOST_DIFFERENCE * factors.abs().max())


def weighed_apart(factors: Sequence[torch.Tensor | None], tokens: Sequence[int]) -> bool:
    """Return whether the losses of a step's micro-batches count differently, and not by their supervised tokens."""
    known = [factor for factor in factors if factor is not None]
    if len(known) < 2 or len(known) != len(tokens) or 0 in tokens:
        return False
    each = torch.stack(known)
    return _differ(each) and _differ(each / each.new_tensor(tokens))


def another_kind(tensor: torch.Tensor, passes: Sequence[Pass]) -> str:
    """Return why this is no cross entropy of these passes' logits, but another loss on purpose; "" where it is one."""
    losses = {each.loss.grad_fn for each in passes if each.loss is not None}
    logits = {each.logits.grad_fn for each in passes if each.logits is not None}
    ends = set(losses)
    for node in graph_of(tensor.grad_fn, ends):
        if node in losses:
            continue
        if node in logits:
            return OUTSIDE_ENTROPY
        if node.name() in ENTROPIES:
            ends.add(node)
            if (reduction := REDUCTIONS[node._saved_reduction]) == "none" or node._saved_weight is not None:
                return f"its cross_entropy has reduction={reduction!r} or class weights"
            likelihoods = straight_back(node.next_functions[0], logits)[0]
            scores = likelihoods.next_functions[0][0] if likelihoods is not None else None
            if straight_back((scores, 0), logits)[0] not in logits:
                return "its cross_entropy takes a function of the logits"
        elif not node.next_functions:
            return OUTSIDE_FORWARD
    return ""


def _compared(given: dict[str, Any], labels: torch.Tensor, device: torch.device) -> Batch:
    """Return the rows with what they are to predict; what the last position is to predict is one token more."""
    batch, labels = provisional(given, device), labels.to(device)
    if bool(((last := labels[:, -1:]) == IGNORED).all()):
        labels = labels[:, :-1]
    else:
        mask, positions = batch.attention_mask, batch.position_ids
        batch = replace(
            batch,
            input_ids=torch.cat([batch.input_ids, last.clamp(min=0)], dim=1),
            attention_mask=torch.cat([mask, mask[:, -1:] * (last != IGNORED)], dim=1),
            position_ids=None if positions is None else torch.cat([positions, positions[:, -1:] + 1], dim=1),
        )
    return replace(batch, labels=labels, supervised_tokens=int((labels[:, 1:] != IGNORED).sum()))


def _of_its_tokens(batch: Batch) -> bool:
    return bool(((batch.labels == batch.input_ids) | (batch.labels == IGNORED)).all())


def provisional(given: dict[str, Any], device: torch.device) -> Batch:
    """Return what the model was called with, all of it supervised. Raises Unsupported where it was given no tokens."""
    ids: Any
    ids, mask = given.get("input_ids"), given.get("attention_mask")
    hidden = mask == 0 if ids is not None and getattr(mask, "shape", None) == ids.shape else None
    return batch_of({**given, "labels": ids if hidden is None else ids.masked_fill(hidden, IGNORED)}, device)


def plainly(node: Any) -> str:
    return str(node.name()).partition("Backward")[0]


def are_stretched(*tensors: Any) -> bool:
    """Return whether one of two has its numbers repeated for the other, which has not just more axes in front.

    Not of two that are repeated for each other, whose pairs are meant, nor of a single number.
    """
    if not all(isinstance(each, torch.Tensor) and each.numel() > 1 for each in tensors):
        return False
    short, long = sorted((each.shape[::-1] for each in tensors), key=len)
    differ = {pair for pair in zip(short, long, strict=False) if len({*pair}) > 1}
    return len({one < other for one, other in differ}) == 1 and any(each.requires_grad for each in tensors)
