"""Where and in which numbers the training computes: device, dtypes, kernels, the health of the GPU."""

import json

from tunecheck.checks.telemetry import hardware_faults, unclear_signs, unwatched
from tunecheck.core import evidence
from tunecheck.core.check import Check, recorded, required, said_once, some
from tunecheck.core.finding import Finding
from tunecheck.core.premises import Premise
from tunecheck.core.trace import Trace


class HardwareHealthy(Check):
    """The GPU and its driver report no fault during the run: no memory error, no Xid, no pending reset.

    The check compares counters before and after each attempt. Throttling is not a fault. A counter that the GPU does
    not report counts as neither good nor bad.
    """

    needs = frozenset({"suite_rows"})
    meaning = "The GPU, its power supply, its slot or its driver is faulty. No result of this run is reliable."
    remedy = "Search the kernel log for Xid, reboot, and run again. If the fault returns, replace the GPU."

    def judge(self, trace: Trace) -> Finding:
        if faults := hardware_faults(trace):
            return self.unless(faults, "")
        used = [attempt for attempt in trace.attempts if attempt.start.device.startswith("cuda")]
        device = "" if used else trace.one(evidence.Setup).device  # a run that never began is no run on the CPU
        required(used, f"trained on {device}: no GPU was used")
        for attempt in used:
            why = unwatched(attempt)
            recorded(not why, f"the GPU was not monitored until the end of the {attempt.start.purpose} attempt: {why}")
        return self.unless((), "; ".join(unclear_signs(trace)) or f"{len(used)} attempts watched")


class DeviceAsConfigured(Check):
    """Every parameter, buffer and optimizer state is on the configured device."""

    needs = frozenset({Premise.DEVICE_DECLARED})
    meaning = "Training fell back to the CPU without an error, or a part of the model was not moved."
    remedy = "Run tunecheck doctor. Search the loading code for .to() and device_map, and the report for a fallback."

    def judge(self, trace: Trace) -> Finding:
        device, configured = trace.main.start.device, trace.run.device
        places = {device, "cpu"} if trace.run.training.offloads_parameters else {device}
        seen = {place: count for census in trace.all(evidence.Census) for place, count in census.devices.items()}
        elsewhere = {place: count for place, count in seen.items() if place not in places}
        kind = device.partition(":")[0]
        # nothing else than a GPU whose memory ran out justifies the CPU
        outcomes = [attempt.outcome for attempt in trace.trainings if attempt.start.device.startswith("cuda")]
        may_fall_back = not {"cpu", "evaluate_on_gpu"}.isdisjoint(trace.run.fallback)
        fallback = kind == "cpu" and may_fall_back and evidence.AttemptOutcome.OUT_OF_MEMORY in outcomes
        as_configured = configured in ("auto", kind) or fallback
        nothing_here = any(device not in census.devices for census in trace.all(evidence.Census))
        detail = f"configured {configured}, ran on {device}" + (f", but tensors on {elsewhere}" if elsewhere else "")
        detail += f", but no tensor is on {device}" if nothing_here and not elsewhere else ""
        detail += f" after: {trace.main.start.explanation}" if fallback else ""
        misplaced = [*elsewhere, *([device] if nothing_here else [])]
        return self.found(as_configured, detail, measured=device, limit=configured, problems=misplaced)


class DtypesAsConfigured(Check):
    """Adapters, base, hidden states, products and 4-bit arithmetic have the configured dtypes.

    In fp16 the loss is scaled up, because fp16 cannot represent small gradients.
    """

    needs = frozenset({Premise.CAUSAL_LM, Premise.DTYPES_DECLARED})
    meaning = "A dtype argument was ignored, or a helper upcast the model. Memory doubles, or precision is lost."
    remedy = """Compare the dtypes in this finding with the configuration. Do not call prepare_model_for_kbit_training.
    Pass dtype and the 4-bit compute dtype."""

    def judge(self, trace: Trace) -> Finding:
        precision = trace.one(evidence.Setup).precision
        dtype = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[precision]
        lora, quantized = trace.run.lora, trace.run.quantization is not None
        learning = "float32" if lora is None or lora.adapter_dtype != "model" else dtype
        base = "float32" if lora is None else dtype  # a base that is trained in part is kept in fp32 as a whole
        frozen = {base, "uint8"} if quantized else {base}
        others = []
        for census in trace.all(evidence.Census):
            if wrong := {name: count for name, count in census.trainable_dtypes.items() if name != learning}:
                others.append((census.when, f"trained tensors in {wrong}, not {learning}", ""))
            if wrong := {name: count for name, count in census.frozen_dtypes.items() if name not in frozen}:
                others.append((census.when, f"frozen tensors in {wrong}, not {base}", ""))
        problems = [*said_once(others)]
        if quantized:
            computes = trace.one(evidence.Quantization).compute_dtypes
            if wrong := {name: count for name, count in computes.items() if name != dtype}:
                problems.append(f"4-bit linears compute in {wrong}, not {dtype}")
        if precision == "fp16" and not json.loads(trace.one(evidence.Trained).scaler or "{}").get("scale", 1) > 1:
            problems.append("the loss is not scaled: in fp16 small gradients are lost")
        calls = trace.one(evidence.LayerCalls) if "several_steps" in trace.run.features else None
        if calls and (products := sorted({*calls.product_dtypes} - {dtype})):
            problems.append(f"products in {some(products)}, not {dtype}")
        if calls and lora:  # else autocast's hidden states are fp32 by design
            if states := sorted({*calls.hidden_dtypes} - {dtype}):
                problems.append(f"hidden states in {some(states)}, not {dtype}")
            wanted = "float32" if lora.adapter_dtype == "fp32" else dtype
            # DoRA multiplies the factors for the row norms of their sum, and takes these in fp32.
            norms = {"float32"} if lora.use_dora else set()
            if {*calls.adapter_dtypes, *norms} != {wanted, *norms}:
                problems.append(f"adapters multiply in {some(calls.adapter_dtypes) or 'nothing'}, not {wanted}")
        return self.unless(problems, f"base in {base}, trained tensors in {learning}")


KERNELS = {"sdpa": "sdpa:", "eager": "eager", "flash_attention_2": "_flash_attn"}
"""Implementation to how its kernels' names begin; flash-attn has _flash_attn_forward and _flash_attn_varlen_forward."""


class AttentionAsConfigured(Check):
    """The model calls the configured attention implementation, and a training step runs its kernel.

    Training fills no key-value cache. Kernels are not recorded in a run of a single step.
    """

    needs = frozenset({Premise.CAUSAL_LM, Premise.ARCHITECTURE_KNOWN, Premise.ATTENTION_DECLARED})
    meaning = "The model uses another attention implementation. Memory, speed and sometimes masks then differ."
    remedy = "Install the implementation's package (flash-attn), or configure sdpa. Train with use_cache=False."

    def judge(self, trace: Trace) -> Finding:
        wanted, named = trace.run.training.attention, trace.one(evidence.ForwardPaths).attention
        if named != wanted or trace.run.training.max_steps == 1:
            detail = f"configured {wanted}, the layers call {named}"
            return self.found(named == wanted, detail, measured=named, limit=wanted)
        calls = trace.one(evidence.LayerCalls)
        kernels = calls.attention_kernels
        known = trace.one(evidence.ForwardReference).has_formulas  # the layers of others may attend without a softmax
        required(kernels or known, "no layer computes a softmax over what it attends to")
        as_configured = bool(kernels) and all(kernel.startswith(KERNELS[wanted]) for kernel in kernels)
        detail = f"configured {wanted}, a training step ran {(ran := some(kernels) or 'no kernel at all')}"
        cached = calls.cached_calls if not trace.run.training.use_cache else 0
        detail += f"; {cached} forwards of its layers filled an unused key-value cache" if cached else ""
        meant = "the cache takes memory and time, and changes no result" if cached and as_configured else ""
        return self.found(as_configured, detail, measured=ran, limit=wanted, problems=range(cached), meant=meant)


class CheckpointingAsConfigured(Check):
    """Each decoder layer runs once per micro-batch, and twice with gradient checkpointing.

    A chunked loss computes at most one chunk of logits at a time. In a watched script, the loss may call the model more
    often, for a teacher, a reference or a second view. There the check counts the layers that run within the backward
    pass.
    """

    needs = frozenset({"several_steps", Premise.CAUSAL_LM, Premise.ARCHITECTURE_KNOWN, Premise.CHECKPOINTING_DECLARED})
    meaning = """Gradient checkpointing or the chunked loss is silently off, so it saves no memory. Or checkpointing is
    on without being configured, and costs a third of the speed."""
    remedy = "Check that the flag reaches every layer, and that the model is in train mode while training."

    def judge(self, trace: Trace) -> Finding:
        calls = trace.one(evidence.LayerCalls)
        times = 2 if trace.run.training.gradient_checkpointing else 1
        wanted = calls.layers * calls.micro_batches * times
        detail = f"{calls.calls} layer forwards in a step of {calls.micro_batches} micro-batches, {calls.layers} layers"
        if (chunk := trace.run.training.loss_chunk_tokens) is not None:
            # a chunk has one position more per row than it scores, and at least one position
            at_once = max(chunk, trace.run.training.micro_batch_size) + trace.run.training.micro_batch_size
            if calls.head_tokens > at_once:
                detail += f"; logits of {calls.head_tokens} tokens at a time, at most {at_once} configured"
                if calls.calls == wanted:
                    return self.at_most(calls.head_tokens, at_once, detail)
        if trace.holds(Premise.ONE_CALL_PER_BATCH):
            return self.found(calls.calls == wanted, detail, measured=calls.calls, limit=wanted, compared=wanted)
        detail += f", {calls.recomputed} of them within the backward pass"
        once, forwards = wanted // times, calls.calls - calls.recomputed
        limit = once if times > 1 else 0
        if forwards < once:
            return self.found(False, detail, measured=forwards, limit=once)
        as_configured = calls.recomputed >= limit if limit else not calls.recomputed
        return self.found(as_configured, detail, measured=calls.recomputed, limit=limit, compared=wanted)


class MatmulPrecision(Check):
    """Matrix products in fp32 have fp32's full precision on this device."""

    needs = frozenset({Premise.CAUSAL_LM, Premise.ARCHITECTURE_KNOWN})
    meaning = "TF32 is on, or the device computes wrongly."
    remedy = "Call torch.set_float32_matmul_precision('highest'), and unset NVIDIA_TF32_OVERRIDE. Else test the GPU."

    max_error: float = 1e-5
    """Relative error against float64: 2e-7 in fp32, about 5e-4 in TF32."""

    def judge(self, trace: Trace) -> Finding:
        error = trace.one(evidence.ForwardPaths).matmul_error
        return self.at_most(error, self.max_error, "relative error of a 256 x 256 product in fp32 against float64")
