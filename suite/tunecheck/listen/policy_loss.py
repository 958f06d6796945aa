"""What a policy's loss does with its ratios of likelihoods, and with its distance from a reference."""

from collections import Counter
from itertools import islice
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from tunecheck.core.evidence import ScoresGiven
from tunecheck.probes.reference import loss_graph

MOST_NODES = 2000
"""Of a loss's graph that are looked at: its own functions are the first ones."""


def penalties_of(loss: torch.Tensor) -> ScoresGiven:
    """Return how many divergences from a reference are in a later step's loss, are from itself, or make it smaller.

    Those are exponentials of a fixed likelihood less a learned one, as GRPO's; a policy's ratio has the learned first.
    """
    found = Counter(functions=0)
    for node in islice(loss_graph.graph_of(loss.grad_fn), MOST_NODES):
        before = node.next_functions[0][0] if node.name() == "ExpBackward0" else None
        if before is None or before.name() != "SubBackward0":
            continue
        ((fixed, _), (learned, _)), result = before.next_functions, loss_graph.saved(node, "result")
        if fixed is None and learned is not None and result is not None and result.numel() > 1:
            found["functions"] += 1
            found["without_reference"] += bool((result == 1).all())
            found["rewarded"] += _pull(loss, node) < 0
    return ScoresGiven(probabilities=(), **dict[str, Any](found))


def _pull(loss: torch.Tensor, node: Any) -> int:
    """Return 1 where a loss rises with every number that a function gives, -1 where it falls, 0 for others."""
    pulls = loss_graph.gradients(loss, [GradientEdge(node, 0)])
    least, most = pulls[0].aminmax() if pulls is not None else (0.0, 0.0)
    return 1 if least >= 0 < most else -1 if least < 0 >= most else 0


def bounds_wrongly(loss: torch.Tensor, node: Any) -> bool:
    """Return whether the smaller loss counts of ratios and clipped ones; the larger is to (arXiv 1707.06347, eq. 7)."""
    if (way := {"MaximumBackward0": -1, "MinimumBackward0": 1}.get(node.name())) is None:
        return False
    parts = [_behind_factors(following) for following, _ in node.next_functions]
    clipped = [part for part in parts if part is not None and clipped_ratio(part) is not None]
    made = [loss_graph.straight_back(part.next_functions[0])[0] for part in clipped]
    return len(made) == 1 and made[0] in parts and _pull(loss, node) == way


def _behind_factors(node: Any) -> Any:
    """Return the function whose result stands behind signs and factors that nothing learns from."""
    while node is not None and node.name() in ("MulBackward0", "NegBackward0"):
        learned = [following for following, _ in node.next_functions if following is not None]
        node = learned[0] if len(learned) == 1 else None
    return node


def clipped_ratio(node: Any) -> torch.Tensor | None:
    """Return the ratios of likelihoods that a policy's loss clips around 1; None of other functions."""
    if node.name() != "ClampBackward1" or node._saved_min is None or node._saved_max is None:
        return None
    made = loss_graph.straight_back(node.next_functions[0])[0]
    is_ratio = made is not None and made.name() in ("ExpBackward0", "DivBackward0")
    return node._saved_self if is_ratio and 0 < node._saved_min < 1 < node._saved_max <= 2 else None
