"""GPU memory that a process needs besides tensors, with the provenance of each number."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tunecheck.core.files import read_json
from tunecheck.core.frozen import Frozen
from tunecheck.core.paths import cache_folder, evidence_folder


class Constant(Frozen):
    """Bytes that a process takes on a GPU whatever it trains."""

    bytes: int
    provenance: str
    """measured; deduced from source code until it is."""
    source: str


class CardShare(Frozen):
    """Constants of one GPU."""

    cublas_workspace: Constant
    """Workspace of cuBLAS: allocated by the caching allocator, so part of the allocator's peak."""
    cuda_context: Constant
    """Context and loaded kernels: in the process's memory, outside the allocator."""


CUBLAS_WORKSPACE = Constant(
    bytes=2 * 32 * 2**20,
    provenance="deduced, and measured on one GPU",
    source="PyTorch's ATen source: 32 MiB on compute capability 9, 10 and 12 (8.1 MiB on others), once for the thread "
    "of the forward pass and once for that of the backward pass; CUBLAS_WORKSPACE_CONFIG=:16:8 makes it 0.3 MB. "
    "The same on an H100 with torch 2.11",
)
"""Of a GPU of unknown capability, and of any in a deterministic training, whose CUBLAS_WORKSPACE_CONFIG is :4096:8."""
SMALL_WORKSPACE_BYTES, LARGE_WORKSPACE = 2 * (4096 * 2 + 16 * 8) * 2**10, ("9", "10", "12")
"""Both workspaces on other GPUs (:4096:2:16:8, in KiB), and the major capabilities that have the large one (torch 2.13,
aten/src/ATen/cuda/CublasHandlePool.cpp: getChosenWorkspaceSize)."""
CUDA_CONTEXT = Constant(
    bytes=787_283_968,
    provenance="measured on another GPU",
    source="NVIDIA H100 80GB HBM3, torch 2.11.0+cu130, with bitsandbytes; 141 MiB are published for a T4 (fitcheck-llm "
    "0.3.1)",
)
UNMEASURED = CardShare(cublas_workspace=CUBLAS_WORKSPACE, cuda_context=CUDA_CONTEXT)

CARD_CLASSES_GB = (6, 8, 12, 16, 24, 48, 80)
"""Sizes that GPUs are sold with. Each has so many GiB, and counts as 1e9 bytes a GB: 7 % are for the driver and the
allocator's fragmentation, which cannot be computed."""


def share_of(card: str | None, *, deterministic: bool = False, capability: str | None = None) -> CardShare:
    """Return the constants measured on a GPU of this name; without a measurement those of its compute capability."""
    own, evidence = own_constants_file(), sorted(evidence_folder().glob("*/constants.json"), reverse=True)
    for path in (own, *evidence) if card else ():
        found: Any = None
        with suppress(OSError, ValueError):
            found = read_json(path)
        numbers = found.get("deterministic" if deterministic else "default") if isinstance(found, dict) else None
        if not isinstance(numbers, dict) or found.get("card") != card:
            continue
        workspace, context = numbers.get("cublas_workspace_bytes"), numbers.get("context_with_libraries_bytes")
        if isinstance(workspace, int) and isinstance(context, int):
            stack = f"driver {found.get('driver')}, torch {numbers.get('torch')}"
            about = {"provenance": "measured", "source": f"{card}, {stack}, {path.parent.name}/{path.name}"}
            return CardShare(
                cublas_workspace=Constant(bytes=workspace, **about), cuda_context=Constant(bytes=context, **about)
            )
    if deterministic or capability is None or capability.partition(".")[0] in LARGE_WORKSPACE:
        return UNMEASURED
    return replace(UNMEASURED, cublas_workspace=replace(CUBLAS_WORKSPACE, bytes=SMALL_WORKSPACE_BYTES))


def own_constants_file() -> Path:
    """Return the file in which scripts/card-constants.py keeps its measurements of this machine."""
    return cache_folder() / "cards" / "constants.json"
