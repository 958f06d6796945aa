"""Is the attention kernel the one asked for?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check, some
from suite.evidence import ForwardPaths, LayerCalls
from suite.finding import Finding
from suite.trace import Trace

KERNELS = {"sdpa": "sdpa:", "eager": "eager", "flash_attention_2": "_flash_attn"}
"""Implementation to how its kernels' names begin; flash-attn has _flash_attn_forward and _flash_attn_varlen_forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionAsAsked(Check):
    """The model's layers call the attention implementation that the run names, and its kernel is what a step runs.

    No key-value cache is filled meanwhile: training has no use for one.
    """

    meaning: ClassVar[str] = (
        "another attention implementation took over: memory and speed, and sometimes masks, are not what was asked for"
    )
    remedy: ClassVar[str] = (
        "install what the implementation needs (flash-attn) or ask for sdpa; train with use_cache=False"
    )

    def judge(self, trace: Trace) -> Finding:
        asked, named = trace.run["training"]["attention"], trace.one(ForwardPaths).attention
        if named != asked or trace.run["training"]["max_steps"] == 1:  # a single step is not watched
            return self.found(
                named == asked, f"asked for {asked}, the layers call {named}", measured=named, limit=asked
            )
        calls = trace.one(LayerCalls)
        kernels = calls.attention_kernels
        as_asked = bool(kernels) and all(kernel.startswith(KERNELS[asked]) for kernel in kernels)
        detail = f"asked for {asked}, a training step ran {(ran := some(kernels) or 'no kernel at all')}"
        if calls.cached_calls:
            detail += f"; {calls.cached_calls} forwards of its layers filled a key-value cache that nothing reads"
        return self.found(as_asked and not calls.cached_calls, detail, measured=ran, limit=asked)
