"""Were the weights of the file really loaded?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check, some
from suite.evidence import BaseFidelity
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseMatchesFile(Check):
    """Every base tensor is the file's, quantised ones within their error; rotary buffers and tied head are right."""

    meaning: ClassVar[str] = (
        "weights were not loaded, overwritten by an initialisation after loading, or loaded into the wrong "
        "place; generated text is noise"
    )
    remedy: ClassVar[str] = (
        "compare the tensors named below with the file; update transformers; do not call init_weights after "
        "from_pretrained"
    )

    max_error_nf4: float = 0.14
    """Relative error of an nf4 tensor in blocks of 64: 0.091 to 0.113 over the 210 of SmolLM2-135M, 24 rows of each."""
    max_error_fp4: float = 0.18
    """The same for fp4, whose error on normal weights is 0.124."""

    def judge(self, trace: Trace) -> Finding:
        seen = trace.one(BaseFidelity)
        problems = []
        if seen.differing:
            problems.append(
                f"{len(seen.differing)} of {seen.tensors} tensors are not the file's: {some(seen.differing)}"
            )
        if seen.buffers_differing:
            problems.append(f"rotary buffers are not their closed form: {some(seen.buffers_differing)}")
        if seen.tied != seen.tied_expected:
            problems.append(
                f"the head is {'tied' if seen.tied else 'not tied'} to the embedding, the configuration says otherwise"
            )
        largest = seen.weight_errors.get("largest")
        limit = None
        if largest is not None:
            fp4 = (trace.run["quantization"] or {}).get("quant_type") == "fp4"
            limit = self.max_error_fp4 if fp4 else self.max_error_nf4
            if not largest <= limit:
                problems.append(f"{seen.worst_weight} differs from the file by {largest:.3f} of its norm")
        detail = "; ".join(problems) or f"{seen.tensors} tensors compared"
        return self.found(not problems and seen.tensors > 0, detail, measured=largest, limit=limit)
