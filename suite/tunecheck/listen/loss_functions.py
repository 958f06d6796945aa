"""What the loss functions of a training are given, by their arguments or their graph: expected or others."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from tunecheck.core.check import holding
from tunecheck.core.evidence import ScoresGiven
from tunecheck.listen.loop_loss import ENTROPIES, FACTORS, JOINS, MOST_DIFFERENCE, VIEWS, plainly
from tunecheck.listen.loss_calls import MOST_OF_LOG_1, MOST_ROUNDING, OF_SCORES, ROWS_SUMMED, LossCalls, centred
from tunecheck.listen.policy_loss import MOST_NODES, bounds_wrongly, clipped_ratio
from tunecheck.probes.reference import loss_graph
from tunecheck.probes.reference.measures import living

REACHES = {
    "TanhBackward0": (-1.0, 1.0),
    **dict.fromkeys(("SigmoidBackward0", "HardsigmoidBackward0", "SoftmaxBackward0"), (0.0, 1.0)),
    **dict.fromkeys(("ReluBackward0", "SoftplusBackward0", "ExpBackward0"), (0.0, math.inf)),
    **dict.fromkeys(("LogSoftmaxBackward0", "LogSigmoidBackward0"), (-math.inf, 0.0)),
}
"""Functions to the range of their results, whatever they are given."""
LEAST = "_saved_min", "_saved_min_val", "_saved_threshold"
"""What functions keep of the number that their results are at least."""
OF_TERMS = *JOINS, "MeanBackward0", "MeanBackward1", "SumBackward0", "SumBackward1", "StackBackward0"
"""What joins the terms of a loss, behind which the script's own factor of a micro-batch may stand."""
OF_PARTS = "SplitBackward0", "SplitWithSizesBackward0", "UnbindBackward0", "SelectBackward0", "SliceBackward0"
"""Functions that take a part of a tensor along one axis."""
FEWEST_TARGETS = 4
"""Equal targets of two parts of one output."""
FAR_OFF = 20
"""Cross entropies of a uniform guess; a model that has learnt something else is surer of wrong classes, but by less."""
MOST_CLASSES, FEWEST_LABELS, RARER = 100, 16, 3
"""Classes of a weighted loss, labels by which they are counted, and how much rarer one of them is than another."""
FEWEST_OF_A_ROW, BY_CHANCE, ONE_COPY = 256, 4.0, 0.999
"""Numbers of a row whose correlation tells something; how many standard errors of it come by chance in no row; and that
of a copy."""
SPREAD, PEAK = (0.8, 1.2), (2.5, 3.5)
"""Standard deviation and kurtosis of numbers that randn draws, also where an offset is added to them."""
TURNS = "TransposeBackward0", "PermuteBackward0", "TBackward0"
TO_COLUMN = "UnsqueezeBackward0", "ViewBackward0", "ReshapeAliasBackward0", *TURNS
OF_DIFFERENCES = "PowBackward0", "AbsBackward0"
ELEMENTWISE = ("MseLossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0", *OF_DIFFERENCES)
"""Losses of an output and a target each, which torch stretches to one size."""
MOVES = {
    *loss_graph.STRAIGHT,
    *OF_PARTS,
    *loss_graph.DIFFERENCES,
    *OF_DIFFERENCES,
    *FACTORS,
    "SigmoidBackward0",
    "TanhBackward0",
}
"""Functions behind which each number comes of one of a layer's outputs."""
LAST_LAYERS = {"AddmmBackward0": -1, "MmBackward0": -1, "BmmBackward0": -1, "ConvolutionBackward0": 1}
"""Functions of layers to the axis of their results' parts."""
SELECTS = re.compile(
    "Relu|Threshold|Clamp|Max|Min|Amax|Amin|Gather|Index|Where|Mask|Scatter|Topk|Sort|Dropout|Embedding"
)
"""In the names of functions that may leave out numbers of one batch, and others of another."""
FEWEST_ROWS = 3
"""Of a square of scores; any two rows' likelihoods may come of symmetric ones."""


def scores_given(tensor: torch.Tensor, calls: LossCalls) -> ScoresGiven:
    """Return what the loss's functions of scores are given: a softmax of probabilities is nearly flat."""
    calls.over, found, entropies = True, calls.wrong[:1], list[Any]()
    counts = Counter(functions=calls.functions, softened=int(calls.softened or 0), reversed=calls.reversed)
    unreached = [lie for node in terms_of(tensor) if (lie := _unreached(tensor, node)) is not None]
    foreign = [told for node in terms_of(tensor) if (told := _is_foreign_noise(node)) is not None]
    counts.update(functions=len(unreached) + len(foreign), foreign=sum(foreign))
    nodes = [*islice(loss_graph.graph_of(tensor.grad_fn), MOST_NODES)]
    similar = [told for told in map(_is_of_itself, nodes) if told is not None]
    for node in nodes:
        counts["crossed"] += _crossed(node)
        counts["outside"] += node.name().startswith("BinaryCrossEntropy") and _learns_outside(tensor, node)
        ratio = clipped_ratio(node)
        counts["ratios"] += ratio is not None
        counts["unbounded"] += bounds_wrongly(tensor, node)
        if ratio is not None and calls.repeats:
            counts["functions"] += 1
            counts["off_policy"] += bool(((ratio.detach().float() - 1).abs() > calls.repeats).float().mean() > 0.2)
        if (squashed := OF_SCORES.get(node.name())) is not None:
            counts["functions"] += 1
            counts["cut_at_0"] += _is_cut_at_0(node)
            if node.name() == "LogSoftmaxBackward0":
                counts["of_itself"] += _highest_of_itself(node._saved_result)
                counts["over_positions"] += _is_over_positions(node)
                counts["flat"] += _is_flat(node)
            if (given := loss_graph.straight_back(node.next_functions[0])[0]) is not None and given.name() in squashed:
                found.append(f"{plainly(node)} of a {plainly(given)}")
            elif node.name() in ENTROPIES and given is not None:
                bounded = given.name() == "LogSoftmaxBackward0" and loss_graph.straight_back(given.next_functions[0])[0]
                found += ["cross_entropy of a Sigmoid"] if bounded and bounded.name() == "SigmoidBackward0" else []
                counts.update({_likeness(node, other) for other in entropies} - {""})
                counts["far_off"] += given.name() == "LogSoftmaxBackward0" and _is_far_off(node)
                counts["weighed_up"] += _weighs_up_the_frequent(node)
                counts["mispaired"] += loss_graph.positives_without_twin(node)
                entropies.append(node)
                counts["exchanged"] += given.name() == "LogSoftmaxBackward0" and _exchanged_by_view(given)
                total = node._saved_self.detach()[:ROWS_SUMMED].float().logsumexp(dim=min(1, node._saved_self.ndim - 1))
                counts["unnormalised"] += bool(total.abs().median() > MOST_OF_LOG_1)
    counts["unread"] += _unread_outputs(tensor)
    counts["of_itself"] += sum(similar) if all(similar) else 0  # distances hold a row's product with itself, too
    empty, alone = any(map(_multiplies_by_0, terms_of(tensor))), any(map(_is_of_one, nodes))
    why = {"it is multiplied by zeros": empty, "a softmax of it is over one score": alone}
    counts["crossed"] = max(counts["crossed"], calls.stretched)
    more: dict[str, Any] = {**counts, "unreached": tuple(filter(None, unreached)), "nothing": (*holding(why),)}
    return ScoresGiven(probabilities=tuple(found), **more)


def _is_flat(softmax: Any) -> bool:
    """Return whether it is nearly flat but for what a mask hides; SimCLR's cosines at a temperature of 0.5 span 4."""
    if (within := reach_of(softmax.next_functions[0], masked=True)) is None or within[1] - within[0] >= 0.5:
        return False
    result = softmax._saved_result.detach()
    below = result.amax(dim=softmax._saved_dim, keepdim=True) - result
    return bool((below[below < 1e3] < 0.5).all())  # a mask adds -1e4 or less


def _likeness(node: Any, other: Any) -> str:
    """Return whether two cross entropies of several equal targets are one `again`, or `parts_alike` of one output.

    Those are parts of its last axis; along another one they are other rows, or views of one, which may be alike.
    """
    target, others = node._saved_target, other._saved_target
    if target.device != others.device or target.numel() < 2 or not torch.equal(target, others):
        return ""
    if torch.equal(node._saved_self, other._saved_self):
        return "again"
    made = _part_of(node) if target.numel() >= FEWEST_TARGETS and len(target.unique()) > 1 else None
    return "parts_alike" if made is not None and made == _part_of(other) else ""


def _weighs_up_the_frequent(entropy: Any) -> bool:
    """Return whether the most frequent of its few classes has a larger weight than the rarest one."""
    weights, targets = loss_graph.saved(entropy, "weight"), entropy._saved_target.flatten()
    if weights is None or weights.numel() > MOST_CLASSES:
        return False
    labels = targets[(targets >= 0) & (targets != entropy._saved_ignore_index)]
    counts = torch.bincount(labels, minlength=weights.numel())
    counted = (counts > 0) & (weights > 0)
    counts, weights = counts[counted], weights[counted]
    told = len(counts) > 1 and int(counts.sum()) >= FEWEST_LABELS and int(counts.max()) >= RARER * int(counts.min())
    return bool(told and weights[counts.argmax()] > weights[counts.argmin()])


def _is_far_off(entropy: Any) -> bool:
    """Return whether its mean is that of scores which are very sure of wrong classes, though not of an infinite one."""
    likelihoods, target = entropy._saved_self.detach(), entropy._saved_target
    counted, axis = target != entropy._saved_ignore_index, min(1, likelihoods.ndim - 1)
    right = likelihoods.gather(axis, target.masked_fill(~counted, 0).unsqueeze(axis)).squeeze(axis)[counted]
    guess = max(1.0, math.log(likelihoods.shape[axis]))
    return bool(FAR_OFF * guess < -right.float().mean() < math.inf)  # the mean of none is not a number


def _part_of(entropy: Any) -> Any:
    """Return the function of whose result's last axis these scores are a part; None for others."""
    edge = entropy.next_functions[0][0].next_functions[0]
    while edge[0] is not None and (edge[0].name() in loss_graph.STRAIGHT or edge[0].name() in OF_PARTS):
        if edge[0].name() in OF_PARTS:
            made, axis = edge[0].next_functions[0], getattr(edge[0], "_saved_dim", None)
            told = made[0]._input_metadata[made[1]].shape if made[0] is not None else ()
            if axis is not None and len(told) > 1 and axis % 2**64 in (len(told) - 1, 2**64 - 1):
                return loss_graph.straight_back(made)
        edge = edge[0].next_functions[0]
    return None


def _is_cut_at_0(node: Any) -> bool:
    """Return whether scores are given that an activation has left nothing below 0."""
    made = loss_graph.straight_back(node.next_functions[0])[0]
    least = next((getattr(made, name) for name in LEAST if hasattr(made, name)), None)
    cut = made is not None and made.name() in ("ReluBackward0", "AbsBackward0")
    return cut or (isinstance(least, int | float) and least == 0)


def _is_over_positions(softmax: Any) -> bool:
    """Return whether it runs over the positions of scores [rows, positions, tokens], not over the model's tokens."""
    shape, over = softmax._saved_result.shape, softmax._saved_dim
    if len(shape) != 3 or over != 1 or shape[1] == shape[2]:
        return False
    tables = (node for node in loss_graph.graph_of(softmax) if node.name() == "EmbeddingBackward0")
    sizes = {table._saved_weight_sym_argsize_0 for table in tables}
    turned = softmax.next_functions[0][0].name() in TURNS  # positions may have a table, and tokens may come second
    return shape[2] in sizes and shape[1] not in sizes and not turned


def _unread_outputs(loss: torch.Tensor) -> int:
    """Return how many parts of a last layer's outputs no term of the loss is made of: none or at least a quarter.

    The graph alone is read: to differentiate the loss would call hooks of the script's own once more.
    """
    layers, read = set[Any](), defaultdict[Any, set[int]](set)
    for node in loss_graph.graph_of(loss.grad_fn, layers):
        if node.name() in LAST_LAYERS:
            layers.add(node)
        elif SELECTS.search(node.name()):
            return 0
        elif node.name() not in MOVES:
            for layer, parts in map(_parts_read, node.next_functions):
                read[layer].update(parts)
    left = ((len(_parts_of(layer)), len(parts)) for layer, parts in read.items() if layer is not None)
    return next((width - count for width, count in left if 4 * count <= 3 * width), 0)


def _parts_of(layer: Any) -> range:
    return range(layer._input_metadata[0].shape[LAST_LAYERS[layer.name()]])


def _parts_read(edge: Any) -> tuple[Any, range]:
    """Return the last layer of whose outputs an edge carries parts, and these: all where that is not told."""
    way = [edge]
    while way[-1][0] is not None and way[-1][0].name() in MOVES:
        learned = [behind for behind in way[-1][0].next_functions if behind[0] is not None]
        way.append(learned[0] if len(learned) == 1 else (None, 0))
    if (layer := way[-1][0]) is None or layer.name() not in LAST_LAYERS:
        return None, range(0)
    parts = every = _parts_of(layer)
    for (node, number), (behind, at) in reversed([*pairwise(way)]):
        shape = behind._input_metadata[at].shape
        axis = LAST_LAYERS[layer.name()] % len(shape)
        if node.name() in TURNS or shape[axis] != len(parts):
            return layer, every
        if node.name() in OF_PARTS and node._saved_dim in (axis, axis - len(shape) + 2**64):
            parts = parts[_taken(node, number, len(parts))]
            if node.name() in ("SelectBackward0", "UnbindBackward0"):  # which leaves no such axis
                break
    return layer, parts


def _taken(node: Any, number: int, width: int) -> slice:
    """Return what a function takes of an axis as its output of this number: torch keeps -1 as the largest integer."""

    def signed(value: int) -> int:
        return value - 2**64 if value >= 2**63 else value

    match node.name():
        case "SliceBackward0":
            return slice(signed(node._saved_start), signed(node._saved_end), node._saved_step)
        case "SplitBackward0":
            return slice(number * node._saved_split_size, (number + 1) * node._saved_split_size)
        case "SplitWithSizesBackward0":
            begin = sum(node._saved_split_sizes[:number])
            return slice(begin, begin + node._saved_split_sizes[number])
    at = number if node.name() == "UnbindBackward0" else signed(node._saved_index) % width
    return slice(at, at + 1)


def terms_of(loss: torch.Tensor) -> Iterator[Any]:
    """Yield the functions that join the terms of a loss, and the first ones of each term."""
    ends = set[Any]()
    for node in loss_graph.graph_of(loss.grad_fn, ends):
        if node.name() not in OF_TERMS:
            ends.add(node)
        yield node


def reach_of(edge: Any, *, masked: bool = False) -> tuple[float, float] | None:
    """Return the range of what a function gives, by its last bounded part and constant factors; None for others.

    With `masked` constants that are added, as those of a mask are, count as 0.
    """
    node = loss_graph.straight_back(edge)[0]
    if masked and node is not None and node.name() in ("AddBackward0", "SubBackward0"):
        (edge, (other, _)) = node.next_functions
        return reach_of(edge, masked=True) if other is None else None
    if node is not None and node.name() == "CatBackward0":
        parts = [reach_of(part, masked=masked) for part in node.next_functions]
        ends = [end for part in parts if part is not None for end in part]
        return None if None in parts or not ends else (min(ends), max(ends))
    if node is None or node.name() not in FACTORS:
        most = None if node is None else _largest_product(node)
        return REACHES.get("" if node is None else node.name()) if most is None else (-most, most)
    (given, (other, _)), factor = node.next_functions, node._saved_other
    constant = other is None and isinstance(factor, torch.Tensor) and factor.numel() == 1
    if (within := reach_of(given, masked=masked) if constant else None) is None or not float(factor):
        return None
    by = 1 / float(factor) if node.name() == "DivBackward0" else float(factor)
    low, high = sorted(end * by + 0.0 for end in within)  # no -0.0
    return low, high


def _largest_product(node: Any) -> float | None:
    """Return how large products of vectors can be that have one length, as cosines have 1; None for others."""
    pairs, edges = None, node.next_functions
    if (axes := {"MmBackward0": (1, 0), "BmmBackward0": (2, 1)}.get(node.name())) is not None:
        pairs = zip((node._saved_self, node._saved_mat2), axes, strict=True)
    elif (product := _summed_product(node)) is not None:
        pairs = zip((product._saved_self, product._saved_other), 2 * node._saved_dim, strict=True)
        edges = product.next_functions
    if pairs is None or any(hasattr(loss_graph.straight_back(edge)[0], "variable") for edge in edges):
        return None  # a weight's own length changes, and may be 0 at first
    lengths = [_common_length(vectors, axis) for vectors, axis in pairs]
    known = [length for length in lengths if length is not None]
    return math.prod(known) if known and known == lengths else None


def _summed_product(node: Any) -> Any:
    """Return the function of the products that are summed along one axis; None for others."""
    product = node.next_functions[0][0] if node.name() == "SumBackward1" and len(node._saved_dim) == 1 else None
    return product if product is not None and product.name() == "MulBackward0" else None


def _is_of_itself(node: Any) -> bool | None:
    """Return whether similarities are those of rows of length 1 with themselves; None of what is no similarity."""
    one, other = (loss_graph.saved(_summed_product(node), name) for name in ("self", "other"))
    if one is None or other is None or one.ndim < 2 or len(one) < FEWEST_ROWS or one.shape != other.shape:
        return None
    length = _common_length(one, node._saved_dim[0]) if torch.equal(one, other) else None
    return length is not None and abs(length - 1) <= MOST_ROUNDING


def _is_of_one(node: Any) -> bool:
    """Return whether a softmax of the loss is over one score."""
    if node.name() == "LogSoftmaxBackward0":
        return not bool(node._saved_result.any())
    sums = node.name() == "LogsumexpBackward0"
    return sums and bool(loss_graph.size_of(node.next_functions[0]) == node._saved_result.numel())


def _multiplies_by_0(node: Any) -> bool:
    """Return whether what learns is multiplied by a tensor of several numbers, all 0."""
    factors = zip(node.next_functions, ("other", "self"), strict=False) if node.name() == "MulBackward0" else ()
    others = [loss_graph.saved(node, name) for (made, _), name in factors if made is not None]
    return len(others) == 1 and others[0] is not None and others[0].numel() > 1 and not bool(others[0].any())


def _common_length(vectors: torch.Tensor | None, axis: int) -> float | None:
    """Return the length that all vectors along this axis have, None where they differ; two are looked at first."""
    if vectors is None or not vectors.numel():
        return None
    found = vectors.detach().movedim(axis if axis < vectors.ndim else -1, -1).flatten(0, -2)
    length = float(found[0].norm(dtype=torch.float32))
    parts = (part.norm(dim=-1, dtype=torch.float32) for part in (found[-1:], found))
    return length if all(bool(((each - length).abs() <= MOST_ROUNDING * length).all()) for each in parts) else None


def _output_and_target(node: Any) -> tuple[Any, torch.Tensor | None]:
    """Return the edge of a loss's only output that learns, and its targets; None where they are not known."""
    by_hand = node.name() in OF_DIFFERENCES
    of_both = node.next_functions[0][0] if by_hand else node
    if of_both is None or of_both.name() not in (loss_graph.DIFFERENCES[:1] if by_hand else ELEMENTWISE):
        return None, None
    ways = of_both.next_functions[:2]
    if len(own := [at for at, (made, _) in enumerate(ways) if made is not None]) != 1:
        return None, None
    edge = ways[own[0]]
    if not by_hand:
        return edge, (node._saved_target, node._saved_self)[own[0]].detach()
    known = (result := getattr(edge[0], "_saved_result", None)) is not None and result.shape == node._saved_self.shape
    return edge, (result + (2 * own[0] - 1) * node._saved_self).detach() if known else None


def _unreached(tensor: torch.Tensor, node: Any) -> str | None:
    """Return how most targets of a loss lie out of its outputs' reach; "" for others, None where nobody can tell."""
    edge, target = _output_and_target(node)
    if target is None or (within := reach_of(edge)) is None or loss_graph.size_of(edge) != target.numel():
        return None
    slack = MOST_DIFFERENCE * (1 + max(abs(end) for end in within if math.isfinite(end)))
    outside = (target < within[0] - slack) | (target > within[1] + slack)
    found = loss_graph.gradients(tensor, [GradientEdge(*edge)]) if 2 * outside.sum() > target.numel() else None
    if found is None or 2 * (outside & (learned := found[0] != 0)).sum() <= learned.sum():
        return ""
    ends = f"{float(target.min()):g} to {float(target.max()):g}"
    return f"{plainly(node)} of outputs that reach {within[0]:g} to {within[1]:g}, and targets from {ends}"


def _is_foreign_noise(node: Any) -> bool | None:
    """Return whether a loss's target is noise that no input and no other tensor holds; None where nobody can tell."""
    edge, target = _output_and_target(node)
    if target is None or target.ndim < 3 or len(target) < FEWEST_TARGETS or not target.is_floating_point():
        return None
    rows = centred(target.reshape(len(target), -1))
    spread, size = rows.std(), rows.shape[1]
    drawn = SPREAD[0] < spread < SPREAD[1] and PEAK[0] < (rows / spread).pow(4).mean() < PEAK[1]
    neighbours = (rows[:, 1:] * rows[:, :-1]).mean().abs() / spread**2  # alike in pictures and series
    if size < FEWEST_OF_A_ROW or not drawn or neighbours > BY_CHANCE / rows.numel() ** 0.5:
        return None

    def shares(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cosine_similarity(rows, centred(tensor.reshape(len(target), -1)), dim=1).abs()

    least = BY_CHANCE / size**0.5
    read = [shares(given) for given in _read_by(edge[0], target.numel())]
    if not read or any(bool((found > least).any()) for found in read):
        return False if read else None
    alive = (each for each in living(torch.Tensor) if each.shape == target.shape and each.device == target.device)
    made = (shares(each) for each in alive if each.is_floating_point() and not each.requires_grad)
    return not any(least < found.median() < ONE_COPY for found in made)


def _read_by(function: Any, size: int) -> Iterator[torch.Tensor]:
    """Yield the tensors of this size, in which nothing learns, that layers behind this function multiply."""
    for node in loss_graph.graph_of(function):
        for name, place in (("input", 0), ("mat1", 1), ("self", 0)):  # what is kept, and its place among the edges
            given = loss_graph.saved(node, name) if node.next_functions[place : place + 1] == ((None, 0),) else None
            if isinstance(given, torch.Tensor) and given.numel() == size:
                yield given.detach()


def _exchanged_by_view(softmax: Any) -> bool:
    """Return whether scores [rows, positions, classes] were viewed as [rows, classes, positions], not transposed."""
    (made, _), shape = softmax.next_functions[0], softmax._saved_result.shape
    if made is None or made.name() not in VIEWS or len(shape) < 3 or shape[1] == shape[2]:
        return False
    return tuple(getattr(made, "_saved_self_sym_sizes", ())) == (shape[0], *shape[2:], shape[1])


def _learns_outside(tensor: torch.Tensor, node: Any) -> bool:
    """Return whether a binary cross entropy learns targets that are no probabilities: others may be left out of it."""
    target = node._saved_target
    if not (outside := (target < -MOST_DIFFERENCE) | (target > 1 + MOST_DIFFERENCE)).any():
        return False
    found = loss_graph.gradients(tensor, [GradientEdge(*node.next_functions[0])])
    return found is not None and bool((found[0][outside] != 0).any())


def _crossed(node: Any) -> bool:
    """Return whether these are losses of pairs, each output of a model with each of as many targets, in one square.

    So are differences of a row of outputs and a column of as many that nothing has made a column.
    """
    if node.name() in loss_graph.DIFFERENCES:
        made_by = {
            loss_graph.shape_of(edge) or (): edge[0].name() for edge in node.next_functions if edge[0] is not None
        }
        rows = next((shape[0] for shape in made_by if len(shape) == 1), 1)
        return rows > 1 and made_by.get((rows, 1), TO_COLUMN[0]) not in TO_COLUMN
    edge: Any = node.next_functions[0] if node.name() in ELEMENTWISE else (None, 0)
    if edge[0] is None:
        return False
    all_pairs, operands = loss_graph.size_of(edge), [edge]
    if node.name() in OF_DIFFERENCES:
        operands = [operand for operand in edge[0].next_functions if operand[0] is not None]
        if edge[0].name() not in loss_graph.DIFFERENCES or len(operands) != 1:  # of two outputs all pairs may be meant
            return False
    own = operands[0]
    own = own[0].next_functions[0] if own[0].name() == "ExpandBackward0" else own
    return (outputs := loss_graph.size_of(own)) > 1 and all_pairs == outputs**2


def _highest_of_itself(likelihoods: torch.Tensor) -> bool:
    """Return whether these come of symmetric scores of which each row's highest is its own.

    A log-softmax adds a constant to each row. What differs from the transposed ones is then a difference of two.
    """
    if (rows := len(likelihoods) if likelihoods.ndim == 2 else 0) < FEWEST_ROWS or likelihoods.shape[1] != rows:
        return False
    found = likelihoods.detach().double()
    skew, least = found - found.t(), MOST_DIFFERENCE * found.abs().max()
    others = found.masked_fill(torch.eye(rows, dtype=torch.bool, device=found.device), -torch.inf)
    highest = found.diagonal() > others.amax(dim=1) + least
    return bool(highest.all()) and bool(((skew[:, :1] + skew[:1] - skew).abs() <= least).all())
