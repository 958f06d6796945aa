"""What every training child imports: loaded once into the fork server, so that a fresh child starts in milliseconds."""

import gc
import logging
import os

# The collector would walk what is being imported again and again: 5.8 s of processor time, 4.6 s without.
collects = gc.isenabled()
gc.disable()

# Nothing here compiles, but bitsandbytes decorates four functions with torch.compile at import: 6.3 s of imports with
# the compiler, 5.7 s without (user time, torch 2.13.0, bitsandbytes 0.50.2).
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

# Imported on a CPU with AVX512-BF16, bitsandbytes 0.50 (0.50.2 too) looks for a fused kernel in the optional package
# `kernels` and warns where it cannot load it (bitsandbytes#2064). In the fork server the warning goes to the user's
# terminal. The kernel only reads weights repacked for CPU inference, and tunecheck.training.load.apply_workarounds
# prevents that. Where `kernels` is installed, tunecheck.core.fork_server.hub_forbidden keeps it from downloading one.
logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(
    lambda record: not str(record.msg).startswith("Failed to load CPU gemm_4bit_forward from kernels-community")
)

import bitsandbytes  # noqa: F401 - safe in the fork server only without a GPU: its import initialises CUDA
import peft  # noqa: F401
import transformers
import transformers.models.llama.modeling_llama  # noqa: F401

import tunecheck.runner.child
import tunecheck.training.native  # noqa: F401 - brings torch

# The libraries' half million objects need not be walked each time that live tensors are counted (0.12 s) or the garbage
# is collected (0.2 s), and the pages they lie on stay shared with the fork server. Their garbage takes under 1 MB.
gc.freeze()
if collects:
    gc.enable()
