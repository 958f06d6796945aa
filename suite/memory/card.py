"""What a card takes for itself besides tensors, with the provenance of each number. None of them was measured here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """Bytes that a process pays on a card whatever it trains."""

    bytes: int
    provenance: str
    """deduced (from source code) or assumed, until it is measured."""
    source: str


CUBLAS_WORKSPACE = Constant(
    bytes=2 * 32 * 2**20,
    provenance="deduced, not measured",
    source="PyTorch's ATen source: 32 MiB on compute capability 9 (8.1 MiB on others), once for the thread of the "
    "forward pass and once for that of the backward pass; CUBLAS_WORKSPACE_CONFIG=:16:8 makes it 0.3 MB",
)
"""Comes from the caching allocator, so it is part of the allocator's peak."""
CUDA_CONTEXT = Constant(
    bytes=500_000_000,
    provenance="assumed, not measured",
    source="between two published figures: 141 MiB on a T4 (fitcheck-llm 0.3.1) and 850 MB, what PyTorch's own test "
    "runner reserves for a process",
)
"""Context and loaded kernels: in the process's memory, outside the allocator."""

CARD_CLASSES_GB = (6, 8, 12, 16, 24, 48, 80)


def holds(card_gb: int, process_bytes: int) -> bool:
    """Whether a card sold with so many GB holds the process.

    Such a card has that many GiB; a GB counts 1e9 bytes here. The 7 % between them are for what the driver keeps and
    for the allocator's fragmentation, which no arithmetic tells.
    """
    return process_bytes <= card_gb * 10**9
