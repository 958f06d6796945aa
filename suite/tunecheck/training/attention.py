"""Which kernels torch's scaled_dot_product_attention may use, and which one it takes. Imports torch; child only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tunecheck.core.known_bugs import CUDNN_ATTENTION, cudnn_attention_gives_nan

if TYPE_CHECKING:
    from tunecheck.config.schema import Run

BACKENDS = ("flash", "mem_efficient", "cudnn", "math")


def choose_kernels(run: Run, device: torch.device) -> tuple[str, ...]:
    """Switch cuDNN attention on or off for this process; return a sentence where that works round a library's bug.

    It is off in a deterministic run, since its backward pass has no deterministic variant; the others have one.
    """
    wanted, sentences = run.training.cudnn_attention, tuple[str, ...]()
    if wanted is None and device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if cudnn_attention_gives_nan(torch.__version__, f"{major}.{minor}"):
            wanted = False
            if not run.training.deterministic:
                sentences = (
                    f"torch {torch.__version__}: cuDNN attention switched off, whose gradients may be NaN on compute "
                    f"capability {major}.{minor} ({CUDNN_ATTENTION})",
                )
    torch.backends.cuda.enable_cudnn_sdp(wanted is not False and not run.training.deterministic)
    return sentences


def enabled_kernels() -> list[str]:
    """Return the kernels that attention may use in this process."""
    return [name for name in BACKENDS if getattr(torch.backends.cuda, f"{name}_sdp_enabled")()]


def chosen_kernel(model: Any, device: torch.device, tokens: int, *, masked: bool) -> str:
    """Return the kernel that attention takes for one sequence of this length and the model's shape; "" if unknown."""
    config = model.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    like = torch.empty(1, config.num_attention_heads, tokens, width, device=device, dtype=model.dtype)
    like.requires_grad_(True)  # which kernel is taken depends on whether a backward pass will follow
    mask = torch.ones(1, 1, tokens, tokens, device=device, dtype=torch.bool) if masked else None
    number = torch._fused_sdp_choice(like, like, like, mask, 0.0, not masked)
    return {0: "math", 1: "flash", 2: "mem_efficient", 3: "cudnn", 4: "overrideable"}.get(int(number), "")
