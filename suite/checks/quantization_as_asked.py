"""Is the base quantised as asked?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check, some
from suite.evidence import Quantization
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationAsAsked(Check):
    """Every linear of the decoder is 4-bit with the configured type, block and double quantisation; the head is not.

    Those of the smallest shape, quantised once more from the file, have the same bytes, and none is kept unpacked for
    the backward pass.
    """

    applies_to: ClassVar[frozenset[str]] = frozenset({"quantized"})
    meaning: ClassVar[str] = (
        "4-bit loading was bypassed for some or all layers, another type than the configured one was used, or a "
        "product keeps the weight that it unpacked, and with it the memory that 4 bit should save"
    )
    remedy: ClassVar[str] = (
        "pass the quantization config to from_pretrained; bitsandbytes' own defaults are fp4 and fp32"
    )

    def judge(self, trace: Trace) -> Finding:
        seen, wanted = trace.one(Quantization), trace.run["quantization"]
        expected, got = set(seen.expected_modules), set(seen.quantized_modules)
        problems = []
        if missing := sorted(expected - got):
            problems.append(f"{len(missing)} of {len(expected)} linears are not 4-bit: {some(missing)}")
        if extra := sorted(got - expected):
            problems.append(f"4-bit though they should not be: {some(extra)}")
        for what, counts, value in (
            ("type", seen.quant_types, wanted["quant_type"]),
            ("block size", seen.block_sizes, wanted["block_size"]),
            ("double quantisation", seen.double_quant, wanted["double_quant"]),
        ):
            if counts.keys() - {str(value)}:
                problems.append(f"{what} {counts}, configured {value}")
        if seen.packed_bytes != seen.expected_bytes:
            problems.append(f"{seen.packed_bytes:,} bytes packed, {seen.expected_bytes:,} by arithmetic")
        if seen.requantized == 0 or seen.requantized_differing:
            told = some(seen.requantized_differing) or "none could be compared"
            problems.append(f"not what quantising the file's weights once more gives: {told}")
        if seen.unpacked_kept:
            problems.append(f"unpacked weights are kept for the backward pass: {some(seen.unpacked_kept)}")
        detail = "; ".join(problems) or f"{len(got)} linears, {seen.packed_bytes:,} bytes as by arithmetic"
        return self.found(not problems and bool(got), detail, measured=len(got), limit=len(expected))
