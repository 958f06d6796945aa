"""What a card takes for itself, measured: scripts/card-constants.py [FILE]. Needs a GPU that nobody else uses.

The cache keeps it too, so that `tunecheck estimate` and the gate take these numbers instead of assumed ones.

Each figure comes from a fresh process. The device's use by NVML, less what torch's allocator reserved, is the context;
what the allocator holds after a product and its backward pass, with every tensor gone, are cuBLAS's workspaces.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

CHILD_SECONDS = 300
TOO_SMALL = 7
"""As the suite's own: this machine is too small."""
VARIANTS = {"default": {}, "deterministic": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}}


def main(arguments: list[str]) -> int:
    """Write the constants as JSON; returns the exit status."""
    from tunecheck.hardware import probe
    from tunecheck.memory.constants import own_constants_file

    cards = probe().visible_gpus
    found: dict[str, Any] = {"card": cards[0].name, "driver": cards[0].driver_version} if cards else {}
    if not cards:
        print("card-constants.py: this machine shows no GPU; `tunecheck doctor` says why", file=sys.stderr)
        return TOO_SMALL
    for name, environment in VARIANTS.items():
        found[name] = _measured({"CUDA_VISIBLE_DEVICES": cards[0].uuid, **environment})
    text = json.dumps(found, indent=2) + "\n"
    for path in (own_constants_file(), *map(Path, arguments)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    print(text, end="")
    return 0


def _measured(environment: dict[str, str]) -> dict[str, Any]:
    """What a fresh process finds. Raises CalledProcessError when it fails."""
    command = [sys.executable, __file__, "--child"]
    done = subprocess.run(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, timeout=CHILD_SECONDS, check=True
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def child() -> None:
    """Measure in this process and print one line of JSON."""
    before = _used_bytes()
    import torch

    def beyond_allocator() -> int:
        torch.cuda.synchronize()
        return _used_bytes() - before - torch.cuda.memory_reserved()

    torch.zeros(1, device="cuda")
    found: dict[str, Any] = {"torch": torch.__version__, "context_bytes": beyond_allocator()}
    import bitsandbytes

    held = torch.cuda.memory_allocated()
    for dtype in (torch.bfloat16, torch.float32):
        _product(torch, dtype)
    found["cublas_workspace_bytes"] = torch.cuda.memory_allocated() - held
    linear = bitsandbytes.nn.Linear4bit(256, 256, compute_dtype=torch.bfloat16, quant_type="nf4").to("cuda")
    linear(torch.ones(4, 256, dtype=torch.bfloat16, device="cuda"))
    found["context_with_libraries_bytes"] = beyond_allocator()
    print(json.dumps(found))


def _product(torch: Any, dtype: Any) -> None:
    """A product and its backward pass, which takes a thread and a handle of its own."""
    given = torch.ones(512, 512, dtype=dtype, device="cuda", requires_grad=True)
    (given @ given).sum().backward()


def _used_bytes() -> int:
    """Memory in use on the one visible card, by NVML in another process. Raises RuntimeError where it is untold."""
    from tunecheck.hardware import probe

    (card,) = probe().visible_gpus
    if card.total_bytes is None or card.free_bytes is None:
        raise RuntimeError(f"{card.name}: the driver does not tell its memory")
    return card.total_bytes - card.free_bytes


if __name__ == "__main__":
    if sys.argv[1:] == ["--child"]:
        child()
    else:
        sys.exit(main(sys.argv[1:]))
