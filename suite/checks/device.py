"""Checks of device."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from suite.checks.telemetry import hardware_faults, telemetry, unclear_signs
from suite.core.check import Check, some
from suite.core.evidence import Census, ForwardPaths, LayerCalls, Quantization, Setup, Trained
from suite.core.finding import Finding
from suite.core.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareHealthy(Check):
    """While the run trained, the card and its driver reported no fault: memory errors, Xids, a reset that is due.

    Counters are compared before and after each attempt. Throttling is no fault, and what the card does not tell is
    neither good nor bad.
    """

    subject: ClassVar[str] = "hardware"
    meaning: ClassVar[str] = (
        "the card, its power, its slot or its driver is faulty: no result of this run can be trusted"
    )
    remedy: ClassVar[str] = (
        "look for Xid in the kernel log, reboot, run again; if it comes back, have the card replaced"
    )

    def judge(self, trace: Trace) -> Finding:
        if faults := hardware_faults(trace):
            return self.found(False, "; ".join(faults), measured=len(faults), limit=0)
        used = [attempt for attempt in trace.attempts if attempt.start.device.startswith("cuda")]
        if not used:
            device = trace.one(Setup).device  # a run that never began is no run on the CPU
            return self.unjudged(f"trained on {device}: no card was involved", expected=True)
        for attempt in used:
            seen = telemetry(attempt)
            if seen is None or not seen.complete:
                why = seen.problem if seen else "nobody metered it"
                return self.unjudged(f"the card was not watched to the end of the {attempt.start.purpose}: {why}")
        signs = unclear_signs(trace)
        return self.found(True, "; ".join(signs) or f"{len(used)} attempts watched", measured=0, limit=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAsAsked(Check):
    """Every parameter, buffer and optimizer state lies on the device of the attempt, and that is the one asked for."""

    meaning: ClassVar[str] = (
        "training ran somewhere else than asked: a silent fallback to the CPU, or a part of the model was left behind"
    )
    remedy: ClassVar[str] = (
        "run tunecheck doctor; look for .to() or device_map in the loading code and for a fallback in the attempts"
    )

    def judge(self, trace: Trace) -> Finding:
        device = trace.main.start.device
        asked = trace.run["device"]
        places = {device, "cpu"} if trace.run["training"].get("offload") == "parameters" else {device}
        elsewhere = {
            place: count
            for census in trace.all(Census)
            for place, count in census.devices.items()
            if place not in places
        }
        kind = device.partition(":")[0]
        fallback = kind == "cpu" and _may_end_on_cpu(trace.run["fallback"]) and _gpu_ran_out(trace)
        as_asked = asked in ("auto", kind) or fallback
        nothing_here = any(device not in census.devices for census in trace.all(Census))
        detail = f"asked for {asked}, ran on {device}" + (f", but tensors on {elsewhere}" if elsewhere else "")
        detail += f", but nothing lies on {device}" if nothing_here and not elsewhere else ""
        if fallback:
            detail += f" after: {trace.main.start.reason}"
        return self.found(as_asked and not elsewhere and not nothing_here, detail, measured=device, limit=asked)


def _may_end_on_cpu(fallback: list[str] | str) -> bool:
    """Whether the run's ladder, or in older traces its one word, has a training on the CPU."""
    return not {"cpu", "evaluate_on_gpu"}.isdisjoint([fallback] if isinstance(fallback, str) else fallback)


def _gpu_ran_out(trace: Trace) -> bool:
    """Whether an earlier attempt to train ended for lack of GPU memory: only that excuses the CPU."""
    tried = [a for a in trace.attempts if a.start.purpose == "train" and a.start.device.startswith("cuda")]
    return any(a.end is not None and a.end.outcome == "out_of_memory" for a in tried)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointingAsAsked(Check):
    """Each decoder layer runs once a micro-batch, twice with gradient checkpointing; the head takes what it may."""

    applies_to: ClassVar[frozenset[str]] = frozenset({"several_steps"})
    meaning: ClassVar[str] = (
        "gradient checkpointing or the loss in chunks is silently off (peak memory of a run without it), or the "
        "checkpointing is on (a third slower)"
    )
    remedy: ClassVar[str] = "check that the flag reaches every layer and that the model is in train mode while training"

    def judge(self, trace: Trace) -> Finding:
        calls = trace.one(LayerCalls)
        times = 2 if trace.run["training"]["gradient_checkpointing"] else 1
        wanted = calls.layers * calls.micro_batches * times
        detail = f"{calls.calls} layer forwards in a step of {calls.micro_batches} micro-batches, {calls.layers} layers"
        at_once = _most_logits(trace)
        if too_many := at_once is not None and calls.head_tokens > at_once:
            detail += f"; logits of {calls.head_tokens} tokens at a time, {at_once} are asked for"
        return self.found(calls.calls == wanted > 0 and not too_many, detail, measured=calls.calls, limit=wanted)


def _most_logits(trace: Trace) -> int | None:
    """Tokens that a part of the loss may take; None for a loss in one piece.

    A part has a position of every row more than it scores, and one position at least.
    """
    chunk, rows = trace.run["training"]["loss_chunk_tokens"], trace.run["training"]["micro_batch_size"]
    return None if chunk is None else max(chunk, rows) + rows


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulPrecision(Check):
    """A known fp32 product on this device agrees with float64 to fp32's precision."""

    meaning: ClassVar[str] = "TF32 is on, or the device computes wrongly"
    remedy: ClassVar[str] = (
        "torch.set_float32_matmul_precision('highest'); unset NVIDIA_TF32_OVERRIDE; if it stays, suspect the card"
    )

    max_error: float = 1e-5
    """fp32 gives 2e-7, TF32 about 5e-4."""

    def judge(self, trace: Trace) -> Finding:
        error = trace.one(ForwardPaths).matmul_error
        return self.found(
            error <= self.max_error, "256 x 256 product against float64", measured=error, limit=self.max_error
        )
