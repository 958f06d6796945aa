"""What a loss's graph tells of the cross entropies in it: their scores' gradient, and the tokens that these come from.

Whatever a model returns, a cross entropy leaves a log-softmax in the graph, and a trained embedding its tokens.
"""

import math
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge

_MOVES = "View UnsafeView ReshapeAlias Unsqueeze Squeeze Slice Select Index T Transpose Permute Clone Alias ToCopy"
STRAIGHT = frozenset(["SqueezeBackward1", *(f"{name}Backward0" for name in _MOVES.split())])
"""What selects, moves or casts scores, and computes nothing of them."""
DIFFERENCES = "SubBackward0", "RsubBackward1"
COUPLES_ROWS = "BatchNorm"
"""In the names of functions that couple rows by the statistics of a batch."""
FEWEST_PAIRS = 6
"""Rows of a loss of pairs."""
MOST_READ_ALONE = 4
"""Tokens that an embedding may have beyond those that are predicted."""
LEAST_AHEAD = 1e-5
"""Of the largest score, or the largest dependence of one on a token, what one on a token that is not to be seen is at
most: 0 but for rounding, of whatever precision."""


class Scored(NamedTuple):
    """Scores of which a log-softmax is taken, and one way in which their model reads tokens."""

    edge: GradientEdge
    gradient: torch.Tensor
    """Of the loss by the scores, classes last."""
    classes_last: bool
    """Whether the scores themselves have their classes last, not second."""
    read: torch.Tensor
    """Tokens that an embedding of as many classes looks up: one for each score, [rows, positions]."""
    embedding: Any

    def copies(self) -> bool:
        """Return whether a score depends on the token at its own place, and on none behind it in its row or column."""
        row, at = (size // 2 for size in self.read.shape)
        places = torch.zeros_like(self.read, dtype=torch.bool)
        places[row, at] = True
        if (pull := self._pull(places)) is None or not at:
            return False
        behind = torch.cat([pull[row, at + 1 :], pull[row + 1 :, at], pull.new_zeros(1)]).max()
        return float(behind) <= LEAST_AHEAD * float(pull.max()) < float(pull[row, at])

    def rows_that_see(self, at: int, *, turned: bool) -> torch.Tensor | None:
        """Return of each row, or column, whether its scores at this position depend on the token behind it."""
        places = torch.zeros_like(self.read, dtype=torch.bool)
        (places.t() if turned else places)[:, at] = True
        if (pull := self._pull(places)) is None:
            return None
        pull = pull.t() if turned else pull
        return pull[:, at + 1] > LEAST_AHEAD * pull.amax(dim=1)

    def _pull(self, places: torch.Tensor) -> torch.Tensor | None:
        """Return how much the scores at these places depend on the token at each; None where the graph refuses."""
        classes = torch.arange(self.gradient.shape[-1], device=places.device).cos()  # no plain sum: it may be constant
        given = (places[..., None] * classes).to(self.gradient).reshape(self.gradient.shape)
        given = given if self.classes_last else given.movedim(-1, 1)
        found = gradients(self.edge, [GradientEdge(self.embedding, 0)], given)
        return None if found is None else torch.linalg.vector_norm(found[0].float(), dim=-1)


def graph_of(begin: Any, ends: Collection[Any] = ()) -> Iterator[Any]:
    """Yield a graph's functions from one or several on, the nearest first; `ends`, to which one may add, end a way."""
    waiting, seen = deque[Any](begin if isinstance(begin, list) else [begin]), set[Any]()
    while waiting:
        if (node := waiting.popleft()) is None or node in seen:
            continue
        seen.add(node)
        yield node
        if node not in ends:
            waiting.extend(following for following, _ in node.next_functions)


def gradients(
    output: torch.Tensor | GradientEdge, edges: Sequence[GradientEdge], given: torch.Tensor | None = None
) -> tuple[torch.Tensor, ...] | None:
    """Return an output's gradients by these edges; None where one gets none, or a function in Python stands before."""
    begin = output.node if isinstance(output, GradientEdge) else output.grad_fn
    if any(isinstance(node, BackwardCFunction) for node in graph_of(begin, {edge.node for edge in edges})):
        return None
    try:
        return torch.autograd.grad(output, edges, given, retain_graph=True)
    except RuntimeError:
        return None


def straight_back(edge: Any, ends: Collection[Any] = ()) -> Any:
    """Return the edge, (function, number of its output), of these ends or of what first computes something."""
    return _way_back(edge, ends)[-1]


def _way_back(edge: Any, ends: Collection[Any] = ()) -> list[Any]:
    way = [edge]
    while way[-1][0] is not None and way[-1][0] not in ends and way[-1][0].name() in STRAIGHT:
        way.append(way[-1][0].next_functions[0])
    return way


def saved(node: Any, name: str) -> Any:
    """Return what a function keeps by this name for its backward pass; None where a hook computes it once more."""
    held = getattr(node, f"_raw_saved_{name}", None)
    return getattr(node, f"_saved_{name}", None) if getattr(held, "unpack_hook", None) is None else None


def shape_of(edge: Any) -> tuple[int, ...] | None:
    """Return the shape of what a function gave; None where torch does not tell."""
    return tuple(told[edge[1]].shape) if len(told := getattr(edge[0], "_input_metadata", ())) > edge[1] else None


def size_of(edge: Any) -> int:
    """Return how many numbers a function gave; 0 where torch does not tell."""
    return 0 if (shape := shape_of(edge)) is None else math.prod(shape)


def scores_of(loss: torch.Tensor) -> Iterator[list[Scored]]:
    """Yield for each log-softmax of this loss the ways in which its scores' model reads tokens.

    Without those whose gradient tells no row from another.
    """
    for node in [node for node in graph_of(loss.grad_fn) if node.name() == "LogSoftmaxBackward0"]:
        result, dim = node._saved_result, node._saved_dim
        classes = result.shape[dim if dim < result.ndim else -1]
        way = _way_back(node.next_functions[0])
        behind = [*graph_of(way[-1][0])]
        looked_up = [n for n in behind if n.name() == "EmbeddingBackward0" and _fits(n, classes)]
        if not looked_up or any(COUPLES_ROWS in n.name() for n in behind):
            continue
        read = {n._saved_indices.numel() for n in looked_up}  # by a part of the scores, where rows begin with others
        edge = GradientEdge(*next((edge for edge in reversed(way) if size_of(edge) // classes in read), way[-1]))
        if (found := gradients(loss, [edge])) is None:
            continue
        (gradient,) = found
        if not (last := gradient.shape[-1] == classes) and (gradient.ndim < 3 or gradient.shape[1] != classes):
            continue
        gradient = gradient if last else gradient.movedim(1, -1)
        fitting = (n for n in looked_up if n._saved_indices.numel() == gradient.numel() // classes)
        yield [Scored(edge, gradient, last, n._saved_indices, n) for n in fitting]


def positives_without_twin(entropy: Any) -> bool:
    """Return whether a cross entropy of pairs has positives of two other texts, where each text is there twice.

    As in SimCSE (arXiv 2104.08821), which encodes each twice. Two rows are looked at, by the tokens looked up.
    """
    target, softmax = entropy._saved_target, straight_back(entropy.next_functions[0])[0]
    pairs = entropy._saved_self.ndim == 2 and FEWEST_PAIRS <= len(target) == len(target.unique())
    if not pairs or softmax is None or softmax.name() != "LogSoftmaxBackward0":
        return False
    scores = GradientEdge(*softmax.next_functions[0])
    tables = [node for node in graph_of(softmax) if node.name() == "EmbeddingBackward0"]
    for node in (node for node in tables if node._saved_indices.ndim == 2):
        _, kinds, times = node._saved_indices.unique(dim=0, return_inverse=True, return_counts=True)
        if not bool((times == 2).all()):
            continue
        apart = []
        for row in (0, len(target) - 1):
            one = torch.zeros_like(entropy._saved_self)
            one[row, target[row]] = 1
            found = gradients(scores, [GradientEdge(node, 0)], one)
            used = [] if found is None else kinds[(found[0].flatten(1) != 0).any(dim=1)].tolist()
            apart.append(len(used) == 2 and used[0] != used[1])
        return all(apart)
    return False


def _fits(node: Any, classes: int) -> bool:
    """Return whether an embedding looks up rows of tokens of these classes, and not the same places in each row.

    It may have a few tokens more that are only read, such as those of padding and of masks.
    """
    read = node._saved_indices
    fits = read.ndim == 2 and 0 <= node._saved_weight_sym_argsize_0 - classes <= min(MOST_READ_ALONE, classes // 8)
    return fits and read.numel() > 0 and not bool((read == torch.arange(read.shape[1], device=read.device)).all())
