"""Which loss a loop differentiates: its model's own, or a cross entropy that the loop computes.

The tensor's graph leads to the model's loss, or to a negative log-likelihood of the model's logits. Any other way to
the logits makes the loss unknown.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch

from tunecheck.core.evidence import ScoresGiven
from tunecheck.core.premises import Premise, opened
from tunecheck.listen.batches import batch_of, is_of_pairs
from tunecheck.listen.moments import SIGNS
from tunecheck.probes.reference.forwards import parts_of
from tunecheck.probes.reference.loss_graph import gradients, graph_of, positives_without_twin, size_of, straight_back
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
OF_SCORES = {
    "LogSoftmaxBackward0": ("SoftmaxBackward0",),
    "BinaryCrossEntropyWithLogitsBackward0": ("SoftmaxBackward0", "SigmoidBackward0"),
    **dict.fromkeys(ENTROPIES, ("SoftmaxBackward0", "SigmoidBackward0")),
}
"""Functions that expect scores, or their logarithms, to those whose results are probabilities already."""
REACHES = {
    "TanhBackward0": (-1.0, 1.0),
    **dict.fromkeys(("SigmoidBackward0", "HardsigmoidBackward0", "SoftmaxBackward0"), (0.0, 1.0)),
    **dict.fromkeys(("ReluBackward0", "SoftplusBackward0", "ExpBackward0"), (0.0, math.inf)),
    **dict.fromkeys(("LogSoftmaxBackward0", "LogSigmoidBackward0"), (-math.inf, 0.0)),
}
"""Functions to the range of their results, whatever they are given."""
FACTORS = "DivBackward0", "MulBackward0"
JOINS = *FACTORS, "AddBackward0", "SubBackward0", "NegBackward0", "ToCopyBackward0", "SqueezeBackward0", "ViewBackward0"
"""What leaves a mean in a loss a mean, but for a factor."""
OF_TERMS = *JOINS, "MeanBackward0", "MeanBackward1", "SumBackward0", "SumBackward1", "StackBackward0"
"""What joins the terms of a loss, behind which the script's own factor of a micro-batch may stand."""
DIFFERENCES = "SubBackward0", "RsubBackward1"
OF_DIFFERENCES = "PowBackward0", "AbsBackward0"
ELEMENTWISE = ("MseLossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0", *OF_DIFFERENCES)
"""Losses of an output and a target each, which torch stretches to one size."""
MOST_NODES = 2000
"""Of a loss's graph that are looked at: its own functions are the first ones."""
VIEWS = "ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "UnsqueezeBackward0"
REDUCTIONS = "none", "mean", "sum"
MOST_OF_LOG_1 = 0.05
"""Logarithm of the sum of probabilities at most, which 16 bit round, and to which a script may add a little."""
ROWS_SUMMED = 64
FLAT = 0.5
"""Range of the scores in a softmax that is nearly flat at best: no likelihood is 1.7 times another. SimCLR's cosines at
a temperature of 0.5 have 4."""
FEWEST_ROWS = 3
"""Of a square of scores; any two rows' likelihoods may come of symmetric ones."""
MOST_ROUNDING = 1e-2
"""Of a length that is 1, in 16 bit."""
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
        """Note what the model gave back: an output of transformers, a tuple that begins with the loss, or logits.

        A head that is called again, for each part of the positions, gives no logits that could be placed.
        """
        tensors = [part for part in parts_of(out) if isinstance(part, torch.Tensor)]
        self.loss = next((tensor for tensor in tensors[:1] if not tensor.ndim), None)
        given = next((tensor for tensor in tensors if tensor.ndim == 3), None)
        self.hidden = self.hidden if of_head else given
        self.logits = self.hidden if of_head and self.scored else given
        self.scored |= of_head

    def placed(self, entropy: Any, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the labels of a negative log-likelihood, [rows, tokens + 1], each behind the logits that predict it.

        It may cover a stretch of the positions. The loop may count some of them by 0 in the tensor. Return None if its
        scores are not these logits, or if nothing tells what counts.
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
        classes_at = before._saved_dim if before._saved_dim < scores.ndim else -1
        scores = scores.movedim(classes_at, -1).flatten(0, -2)
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
            if _same(logits[0, first], scores[0, 0]) and _same(logits[:, first : first + width], scores):
                labels = torch.full((rows, ids.shape[1] + 1), IGNORED, dtype=torch.long, device=target.device)
                at = left_out + first + 1
                labels[:, at : at + width] = target.masked_fill(target == entropy._saved_ignore_index, IGNORED)
                return labels
        return None


def _same(logits: torch.Tensor, scores: torch.Tensor) -> bool:
    return bool(((logits.to(scores.dtype).log_softmax(dim=-1) - scores).abs() <= MOST_DIFFERENCE).all())


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
        found = [*self.plain, *(each for each, _, _ in self.entropies), *self.others]
        return list({id(each): each for each in found}.values())

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
        left_open = opened([premise], reason) | opened([Premise.GRADIENT_BY_FORWARD], FURTHER * self.further)
        given = batch_of(each.given, device) if declared else batch
        # labels that are shifted already suit a loss of the loop's own, which does not shift them
        batch = batch if own and _of_its_tokens(batch) and not _of_its_tokens(given) else given
        return batch, not_followed(each.given, batch) | left_open


def not_followed(given: Mapping[str, Any], batch: Batch) -> dict[Premise, str]:
    """Return the premises that this micro-batch leaves open, with the reason; the model was called with `given`."""
    own = given.get("attention_mask")
    if given.get("past_key_values", given.get("cache")) is not None:  # its newer name
        return opened((Premise.ROWS_FOLLOWED, Premise.POSITIONS_FOLLOWED), FROM_CACHE)
    if batch.sees is not None:
        return {Premise.ROWS_FOLLOWED: OWN_MASK}
    if getattr(own, "ndim", 2) > 2 and not is_of_pairs(own, batch.input_ids.shape[1]):
        return opened((Premise.ROWS_FOLLOWED, Premise.POSITIONS_FOLLOWED), OWN_MASK)
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
    found.weighed = _weighed(tensor, [each.loss.grad_fn for each in found.plain if each.loss is not None])
    return found


def _weighed(tensor: torch.Tensor, losses: Sequence[Any]) -> bool:
    """Return whether these losses are in the tensor with different factors."""
    if len(losses) < 2:
        return False
    edges = [torch.autograd.graph.GradientEdge(node, 0) for node in losses]
    found = gradients(tensor, edges)
    return found is None or _differ(torch.stack([*found]))


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


@dataclass(slots=True)
class LossCalls:
    """Calls of losses that leave nothing of their own in the graph, and what they are given that they do not expect."""

    functions: int = 0
    wrong: list[str] = field(default_factory=list)

    def called(self, name: str, *given: Any, **named: Any) -> None:
        """Look at what this loss is about to be called with."""
        if name in SIGNS:
            target = named.get("target", given[SIGNS[name]] if len(given) > SIGNS[name] else None)
            if isinstance(target, torch.Tensor) and target.numel():
                self.functions += 1
                if float(target.min()) == 0:  # beside targets of -1 a 0 leaves a pair out
                    self.wrong.append(f"{name} of targets from 0, which are to be -1 or 1")
            return
        scores = named.get("input", next(iter(given), None))
        if not isinstance(scores, torch.Tensor) or not scores.requires_grad:
            return
        self.functions += 1
        target = named.get("target", given[1] if len(given) > 1 else None)
        if isinstance(target, torch.Tensor) and target.shape == scores.shape:
            axes, others = _normalised(scores), _normalised(target if named.get("log_target") else target.log())
            if axes and others and axes.isdisjoint(others):
                self.wrong.append(f"{name} of distributions over axis {min(axes)} and over axis {min(others)}")
                return
        made = straight_back((scores.grad_fn, 0))[0]
        if made is not None and made.name() in OF_SCORES["BinaryCrossEntropyWithLogitsBackward0"]:
            self.wrong.append(f"{name} of a {_plainly(made)}")


def _normalised(likelihoods: torch.Tensor) -> set[int]:
    """Return the axes over which these logarithms are of probabilities."""
    axes = (axis for axis, size in enumerate(likelihoods.shape) if size > 1)
    found = likelihoods.detach().float()
    return {axis for axis in axes if bool((found.logsumexp(dim=axis).abs() <= MOST_OF_LOG_1).all())}


def scores_given(tensor: torch.Tensor, calls: LossCalls) -> ScoresGiven:
    """Return what the loss's functions of scores are given: a softmax of probabilities is nearly flat."""
    functions, found, counts = calls.functions, calls.wrong[:1], Counter[str]()
    entropies = list[Any]()
    unreached = [lie for node in terms_of(tensor) if (lie := _unreached(tensor, node)) is not None]
    for node in islice(graph_of(tensor.grad_fn), MOST_NODES):
        counts["crossed"] += _crossed(node)
        counts["outside"] += node.name().startswith("BinaryCrossEntropy") and _learns_outside(tensor, node)
        squashed = OF_SCORES.get(node.name())
        if squashed is not None:
            functions += 1
            if node.name() == "LogSoftmaxBackward0":
                within = reach_of(node.next_functions[0])
                counts["of_itself"] += _highest_of_itself(node._saved_result)
                counts["over_positions"] += _is_over_positions(node)
                counts["flat"] += within is not None and within[1] - within[0] < FLAT
            given = straight_back(node.next_functions[0])[0]
            if given is not None and given.name() in squashed:
                found.append(f"{_plainly(node)} of a {_plainly(given)}")
            elif node.name() in ENTROPIES and given is not None:
                counts["again"] += any(_is_same_entropy(node, other) for other in entropies)
                counts["mispaired"] += positives_without_twin(node)
                entropies.append(node)
                counts["exchanged"] += given.name() == "LogSoftmaxBackward0" and _exchanged_by_view(given)
                total = node._saved_self.detach()[:ROWS_SUMMED].float().logsumexp(dim=min(1, node._saved_self.ndim - 1))
                counts["unnormalised"] += bool(total.abs().median() > MOST_OF_LOG_1)
    more: dict[str, Any] = {**counts, "unreached": tuple(filter(None, unreached))}
    return ScoresGiven(functions=functions + len(unreached), probabilities=tuple(found), **more)


def _is_same_entropy(node: Any, other: Any) -> bool:
    """Return whether two cross entropies are of equal scores of several rows, and equal targets."""
    if node._saved_target.numel() < 2 or node._saved_self.shape != other._saved_self.shape:
        return False
    return torch.equal(node._saved_target, other._saved_target) and torch.equal(node._saved_self, other._saved_self)


def _is_over_positions(softmax: Any) -> bool:
    """Return whether it runs over the positions of scores [rows, positions, tokens], not over the model's tokens."""
    shape, over = softmax._saved_result.shape, softmax._saved_dim
    if len(shape) != 3 or over != 1 or shape[1] == shape[2]:
        return False
    tables = (node for node in graph_of(softmax) if node.name() == "EmbeddingBackward0")
    sizes = {table._saved_weight_sym_argsize_0 for table in tables}
    return shape[2] in sizes and shape[1] not in sizes  # positions may have a table, and tokens may come second


def terms_of(loss: torch.Tensor) -> Iterator[Any]:
    """Yield the functions that join the terms of a loss, and the first ones of each term."""
    ends = set[Any]()
    for node in graph_of(loss.grad_fn, ends):
        if node.name() not in OF_TERMS:
            ends.add(node)
        yield node


def reach_of(edge: Any) -> tuple[float, float] | None:
    """Return the range of what a function gives, by its last bounded part and constant factors; None for others."""
    node = straight_back(edge)[0]
    if node is None or node.name() not in FACTORS:
        return None if node is None else (-1.0, 1.0) if _is_cosine(node) else REACHES.get(node.name())
    (given, (other, _)), factor = node.next_functions, node._saved_other
    within = reach_of(given) if other is None and isinstance(factor, torch.Tensor) and factor.numel() == 1 else None
    if within is None or not float(factor):
        return None
    by = 1 / float(factor) if node.name() == "DivBackward0" else float(factor)
    low, high = sorted(end * by + 0.0 for end in within)  # no -0.0
    return low, high


def _is_cosine(node: Any) -> bool:
    """Return whether these are products of vectors of length 1."""
    if (axes := {"MmBackward0": (1, 0), "BmmBackward0": (2, 1)}.get(node.name())) is not None:
        return all(map(_are_units, (node._saved_self, node._saved_mat2), axes))
    product = node.next_functions[0][0] if node.name() == "SumBackward1" and len(node._saved_dim) == 1 else None
    if product is None or product.name() != "MulBackward0":
        return False
    return all(map(_are_units, (product._saved_self, product._saved_other), 2 * node._saved_dim))


def _are_units(vectors: torch.Tensor | None, axis: int) -> bool:
    """Return whether the vectors along this axis have length 1; a first one is looked at before all are."""
    if vectors is None:
        return False
    found = vectors.detach().movedim(axis if axis < vectors.ndim else -1, -1)
    parts = (part.norm(dim=-1, dtype=torch.float32) for part in (found.flatten(0, -2)[:1], found))
    return all(bool(((length - 1).abs() <= MOST_ROUNDING).all()) for length in parts)


def _output_and_target(node: Any) -> tuple[Any, torch.Tensor | None]:
    """Return the edge of a loss's only output that learns, and its targets; None where they are not known."""
    by_hand = node.name() in OF_DIFFERENCES
    of_both = node.next_functions[0][0] if by_hand else node
    if of_both is None or of_both.name() not in (DIFFERENCES[:1] if by_hand else ELEMENTWISE):
        return None, None
    ways = of_both.next_functions[:2]
    own = [at for at, (made, _) in enumerate(ways) if made is not None]
    if len(own) != 1:
        return None, None
    edge = ways[own[0]]
    if not by_hand:
        return edge, (node._saved_target, node._saved_self)[own[0]].detach()
    result = getattr(edge[0], "_saved_result", None)
    known = result is not None and result.shape == node._saved_self.shape
    return edge, (result + (2 * own[0] - 1) * node._saved_self).detach() if known else None


def _unreached(tensor: torch.Tensor, node: Any) -> str | None:
    """Return how most targets of a loss lie out of its outputs' reach; "" for others, None where nobody can tell."""
    edge, target = _output_and_target(node)
    if target is None or (within := reach_of(edge)) is None or size_of(edge) != target.numel():
        return None
    slack = MOST_DIFFERENCE * (1 + max(abs(end) for end in within if math.isfinite(end)))
    outside = (target < within[0] - slack) | (target > within[1] + slack)
    edges = [torch.autograd.graph.GradientEdge(*edge)]
    found = gradients(tensor, edges) if 2 * outside.sum() > target.numel() else None
    learned = None if found is None else found[0] != 0
    if learned is None or 2 * (outside & learned).sum() <= learned.sum():
        return ""
    ends = f"{float(target.min()):g} to {float(target.max()):g}"
    return f"{_plainly(node)} of outputs that reach {within[0]:g} to {within[1]:g}, and targets from {ends}"


def _exchanged_by_view(softmax: Any) -> bool:
    """Return whether scores [rows, positions, classes] were viewed as [rows, classes, positions], not transposed."""
    (made, _), shape = softmax.next_functions[0], softmax._saved_result.shape
    if made is None or made.name() not in VIEWS or len(shape) < 3 or shape[1] == shape[2]:
        return False
    given = tuple(getattr(made, "_saved_self_sym_sizes", ()))
    return given == (shape[0], *shape[2:], shape[1])


def _learns_outside(tensor: torch.Tensor, node: Any) -> bool:
    """Return whether a binary cross entropy learns targets that are no probabilities: others may be left out of it."""
    target = node._saved_target
    outside = (target < -MOST_DIFFERENCE) | (target > 1 + MOST_DIFFERENCE)
    if not outside.any():
        return False
    edge = torch.autograd.graph.GradientEdge(*node.next_functions[0])
    found = gradients(tensor, [edge])
    return found is not None and bool((found[0][outside] != 0).any())


def _crossed(node: Any) -> bool:
    """Return whether these are losses of pairs, each output of a model with each of as many targets, in one square."""
    edge: Any = node.next_functions[0] if node.name() in ELEMENTWISE else (None, 0)
    if edge[0] is None:
        return False
    all_pairs, operands = size_of(edge), [edge]
    if node.name() in OF_DIFFERENCES:
        operands = [operand for operand in edge[0].next_functions if operand[0] is not None]
        if edge[0].name() not in DIFFERENCES or len(operands) != 1:  # of two outputs all pairs may be meant
            return False
    own = operands[0]
    own = own[0].next_functions[0] if own[0].name() == "ExpandBackward0" else own
    outputs = size_of(own)
    return outputs > 1 and all_pairs == outputs**2


def _highest_of_itself(likelihoods: torch.Tensor) -> bool:
    """Return whether these come of symmetric scores of which each row's highest is its own.

    A log-softmax adds a constant to each row. What differs from the transposed ones is then a difference of two.
    """
    rows = len(likelihoods) if likelihoods.ndim == 2 else 0
    if rows < FEWEST_ROWS or likelihoods.shape[1] != rows:
        return False
    found = likelihoods.detach().double()
    skew, least = found - found.t(), MOST_DIFFERENCE * found.abs().max()
    others = found.masked_fill(torch.eye(rows, dtype=torch.bool, device=found.device), -torch.inf)
    highest = found.diagonal() > others.amax(dim=1) + least
    return bool(highest.all()) and bool(((skew[:, :1] + skew[:1] - skew).abs() <= least).all())


def _plainly(node: Any) -> str:
    return str(node.name()).partition("Backward")[0]


def _compared(given: dict[str, Any], labels: torch.Tensor, device: torch.device) -> Batch:
    """Return the rows with what they are to predict; what the last position is to predict is one token more."""
    batch, labels = provisional(given, device), labels.to(device)
    last = labels[:, -1:]
    if bool((last == IGNORED).all()):
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
    """Return whether every label is the token at its place."""
    return bool(((batch.labels == batch.input_ids) | (batch.labels == IGNORED)).all())


def provisional(given: dict[str, Any], device: torch.device) -> Batch:
    """Return what the model was called with, all of it supervised. Raises Unsupported where it was given no tokens."""
    ids: Any
    ids, mask = given.get("input_ids"), given.get("attention_mask")
    hidden = None if ids is None or mask is None or mask.shape != ids.shape else mask == 0
    return batch_of({**given, "labels": ids if hidden is None else ids.masked_fill(hidden, IGNORED)}, device)
