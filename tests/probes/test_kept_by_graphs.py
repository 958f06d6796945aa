"""What is read of a loss's graph, which a checkpoint would compute once more and keep."""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint

from tunecheck.probes.preferences import _factors
from tunecheck.probes.reference.loss_graph import graph_of


def test_the_factors_of_rows_are_read_without_computing_a_layer_again():
    """Of the functions within a checkpoint nothing is there: each look would take its activations' memory."""
    calls, weights, advantages = [], torch.full((3,), 2.0), torch.tensor([[1.0], [-1.0]])

    def layer(x):
        calls.append(x)
        return (x * weights).exp() * weights

    out = checkpoint(layer, torch.ones(2, 3, requires_grad=True), use_reentrant=False)
    found = dict(_factors(graph_of((out * advantages).sum().grad_fn)))

    assert len(calls) == 1
    assert [factors.tolist() for factors in found.values()] == [[1.0, -1.0]]
