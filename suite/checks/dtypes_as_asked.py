"""Do the tensors have the dtypes that were asked for?"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from suite.check import Check, some
from suite.evidence import Census, LayerCalls, Quantization, Setup, Trained
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class DtypesAsAsked(Check):
    """Adapters, base, hidden states, products and 4-bit arithmetic have the dtypes that the configuration gives.

    In fp16 the loss is scaled up, since small gradients lie below what it can hold.
    """

    meaning: ClassVar[str] = (
        "a dtype argument was ignored or a helper upcast the model: memory doubles, or precision is lost, "
        "without an error"
    )
    remedy: ClassVar[str] = (
        "compare the dtypes below with the configuration; do not call prepare_model_for_kbit_training; pass "
        "dtype and the 4-bit compute dtype"
    )

    def judge(self, trace: Trace) -> Finding:
        precision = trace.one(Setup).precision
        dtype = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[precision]
        lora = trace.run.get("lora")
        learning = "float32" if lora is None or lora["adapter_dtype"] != "model" else dtype
        base = "float32" if lora is None else dtype  # a base that learns in part is fp32 whole
        frozen = {base, "uint8"} if trace.run.get("quantization") else {base}
        problems = []
        for census in trace.all(Census):
            if wrong := {name: count for name, count in census.trainable_dtypes.items() if name != learning}:
                problems.append(f"{census.when}: trained tensors in {wrong}, not {learning}")
            if wrong := {name: count for name, count in census.frozen_dtypes.items() if name not in frozen}:
                problems.append(f"{census.when}: frozen tensors in {wrong}, not {base}")
        if trace.run.get("quantization"):
            computes = trace.one(Quantization).compute_dtypes
            if wrong := {name: count for name, count in computes.items() if name != dtype}:
                problems.append(f"4-bit linears compute in {wrong}, not {dtype}")
        if precision == "fp16" and not _scale(trace.one(Trained)) > 1:
            problems.append("the loss is not scaled: in fp16 small gradients are lost")
        if "several_steps" in trace.run["features"]:
            problems += _while_training(trace.one(LayerCalls), lora, dtype)
        return self.found(not problems, "; ".join(problems) or f"base in {base}, trained tensors in {learning}")


def _scale(trained: Trained) -> float:
    """What the loss was multiplied by in the last step."""
    return float(json.loads(trained.scaler or "{}").get("scale", 1))


def _while_training(calls: LayerCalls, lora: dict[str, Any] | None, dtype: str) -> list[str]:
    """What is computed in another dtype than the run's."""
    problems = []
    if products := sorted(set(calls.product_dtypes) - {dtype}):
        problems.append(f"products in {some(products)}, not {dtype}")
    if lora is None:  # autocast's hidden states are fp32 by design
        return problems
    if states := sorted(set(calls.hidden_dtypes) - {dtype}):
        problems.append(f"hidden states in {some(states)}, not {dtype}")
    wanted = "float32" if lora["adapter_dtype"] == "fp32" else dtype
    norms = {"float32"} if lora["use_dora"] else set()  # of the sum's rows, which DoRA has the factors multiplied for
    if set(calls.adapter_dtypes) | norms != {wanted} | norms:
        problems.append(f"adapters multiply in {some(calls.adapter_dtypes) or 'nothing'}, not {wanted}")
    return problems
