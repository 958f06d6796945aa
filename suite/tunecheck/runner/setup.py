"""The Setup record: what a session resolved, on which device and libraries. Imports torch; child process only."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from tunecheck.core.evidence import Setup
from tunecheck.models.layer_names import attention_kernel

if TYPE_CHECKING:
    from tunecheck.training.session import Session

LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes", "accelerate", "tokenizers", "safetensors", "trl")
"""Distributions whose versions a trace names."""


def setup_of(session: Any, cap_bytes: int | None, *, declared_optimizer: str) -> Setup:
    """Return what the session resolved, and the numeric modes that it runs under."""
    import platform

    import torch

    cuda = None
    name = platform.processor() or platform.machine()
    if session.device.type == "cuda":
        card = torch.cuda.get_device_properties(session.device)
        name = card.name
        cuda = {
            "name": card.name,
            "uuid": f"GPU-{card.uuid}" if hasattr(card, "uuid") else None,
            "compute_capability": f"{card.major}.{card.minor}",
            "total_bytes": card.total_memory,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        }
    return Setup(
        device=str(session.device),
        device_name=name,
        precision=session.precision,
        threads=torch.get_num_threads(),
        attention=attention_kernel(session.model),
        optimizer=type(session.optimizer).__name__,
        declared_optimizer=declared_optimizer,
        workarounds=session.workarounds,
        numerics={
            "tf32_matmul": torch.backends.cuda.matmul.allow_tf32,
            "tf32_cudnn": torch.backends.cudnn.allow_tf32,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            **_attention_kernels(session),
            "openmp_spin_count": os.environ.get("GOMP_SPINCOUNT"),
            "torch_compile_off": os.environ.get("TORCHDYNAMO_DISABLE") == "1",
            "cublas_workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        },
        versions=versions(),
        cuda=cuda,
        vram_cap_bytes=cap_bytes,
    )


def _attention_kernels(session: Session) -> dict[str, Any]:
    """Return which kernels sdpa may take, and takes for the run's longest rows; nothing for other attention."""
    from tunecheck.training.attention import chosen_kernel, enabled_kernels

    if session.run.training.attention != "sdpa":
        return {}
    tokens = session.run.data.max_length
    return {
        "attention_kernels": enabled_kernels(),
        "attention_kernel": chosen_kernel(session.model, session.device, tokens, masked=False),
        "attention_kernel_masked": chosen_kernel(session.model, session.device, tokens, masked=True),
    }


def versions() -> dict[str, str]:
    """Return the version of each library that is installed."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
