"""The Setup record: what a session resolved, on which device and libraries. Imports torch; child process only."""

import inspect
import platform
from typing import Any

import torch

from tunecheck.core.evidence import Setup
from tunecheck.hardware.host import distribution_version
from tunecheck.hardware.torch_facts import device_facts
from tunecheck.models.layer_names import attention_kernel
from tunecheck.training.restore import EXACT, products

LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes", "accelerate", "tokenizers", "safetensors", "trl")


def optimizer_kind(optimizer: Any) -> str:
    """Return what an optimizer computes, by its class's name; torch's AdamW is known by its code."""
    kind = type(optimizer)
    # a class that derives from it is another where it has a step of its own, and so is one that has its name alone
    own = inspect.unwrap(kind.step).__module__ if hasattr(kind, "step") else ""  # torch wraps the first one's
    if issubclass(kind, torch.optim.AdamW) and own.startswith("torch.optim."):
        return torch.optim.AdamW.__name__
    return f"{kind.__name__} of {kind.__module__}" if kind.__name__ == torch.optim.AdamW.__name__ else kind.__name__


def setup_of(session: Any, cap_bytes: int | None, *, declared_optimizer: str) -> Setup:
    """Return what the session resolved, and the numeric modes that it runs under."""
    cuda = None
    name = platform.processor() or platform.machine()
    if session.device.type == "cuda":
        card = torch.cuda.get_device_properties(session.device)
        name = card.name
        cuda = {
            **device_facts(card),
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
        optimizer=optimizer_kind(session.optimizer),
        declared_optimizer=declared_optimizer,
        workarounds=session.workarounds,
        numerics={
            "tf32_matmul": products()[0] == "tf32",
            "rounds_products": products()[session.device.type == "cpu"] not in EXACT,
            "tf32_cudnn": torch.backends.cudnn.allow_tf32,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
        },
        versions={name: version for name in LIBRARIES if (version := distribution_version(name)) is not None},
        cuda=cuda,
        vram_cap_bytes=cap_bytes,
    )
