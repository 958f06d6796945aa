"""Every check passes on a healthy trace, fails on the traces of real bugs, and leaves unjudged what it cannot know."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from metered import METERED
from traces import (
    ANSWER,
    CALLS,
    LINEARS,
    LORA,
    LORA_A,
    LORA_B,
    MODULES,
    RUN,
    adding,
    healthy,
    with_record,
    with_run,
    without,
)

import tunecheck.checks
from tunecheck.checks import CHECKS, asked_of
from tunecheck.core import evidence as e
from tunecheck.core.check import NOTHING_TRAINABLE, Check, NumericCheck, said_once, some, worst_of
from tunecheck.core.evidence import Record
from tunecheck.core.finding import Status
from tunecheck.core.trace import Attempt, Trace

Change = Callable[[Trace], Trace]
HEALTHY = healthy()
ASKED = {name: check for name, check in asked_of(RUN.features, RUN.checks).items() if name not in METERED}
"""The checks that a short run on a CPU is judged by, the opt-in ones with the limits of the made-up run; the others are
in test_checks_metered.py."""
FALLBACK = ("fallback_in_order", "fallback_starts_fresh", "card_returns_to_baseline", "fallback_equals_reference")
"""Checks of a run with several attempts to train: they are in test_fallback.py."""
APART = ("dropout_varies", "gradient_matches_loss", "recomputation_equals", "weights_in_use")
"""Checks of what the made-up run does not do: each has a test of its own below."""
WATCHED_FEATURES = {"user_code", "unknown_rows", "evaluates", "expectations", "resume_declared", "pairs"}
WATCHED = [name for name, check in CHECKS.items() if check.features() & WATCHED_FEATURES]
"""Checks of a training that is not ours: they are in test_checks_watched.py."""
ACROSS = [name for name, check in CHECKS.items() if check.across_ranks]
"""Checks that compare several processes: they are in test_checks_parallel.py."""
NAMES = [name for name in CHECKS if name not in {*METERED, *FALLBACK, *APART, *WATCHED, *ACROSS}]
NUMERIC = {name: check for name, check in ASKED.items() if isinstance(check, NumericCheck)}
NAN = math.nan


def having(kind: type[Record], at: int | None = None, **changes: Any) -> Change:
    """`with_record`, waiting for its trace."""
    return functools.partial(with_record, kind=kind, at=at, **changes)


def asking(**changes: Any) -> Change:
    """`with_run`, waiting for its trace."""
    return functools.partial(with_run, **changes)


def both(*changes: Change) -> Change:
    """One change after the other."""
    return lambda trace: functools.reduce(lambda changed, change: change(changed), changes, trace)


def idle(*steps: int) -> Change:
    """Rates of 0 in these steps."""
    return both(*(having(e.Step, step, without_rate=True) for step in steps))


def times(factor: float) -> Callable[[float], float]:
    """For a value that comes out this many times too large."""
    return lambda value: value * factor


def gradient_norms(lora_a: float, lora_b: float) -> dict[str, Any]:
    """Gradients of these norms, none missing."""
    return {"norms": {"lora_A": lora_a, "lora_B": lora_b}, "zero": ()}


def in_bf16(value: float) -> float:
    """The number cut to the 8 binary digits of bf16."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(int(mantissa * 2**8), exponent - 8)


def with_further(trace: Trace, purpose: str, record: Record) -> Trace:
    """The trace with this record in the attempt of this purpose too."""
    attempts = (
        Attempt(a.start, (*a.records, record) if a.start.purpose == purpose else a.records, a.end)
        for a in trace.attempts
    )
    return Trace(trace.header, tuple(attempts))


REPEATED = ("canary", "train:3", "canary", "train:4")


def with_rows(trace: Trace, numbers: list[int]) -> Trace:
    """The trace of a run that was given these rows, two a window beside the canary, as prescribed."""
    for step in range(6):
        first, second = numbers[2 * step : 2 * step + 2]
        rows = ("canary", f"train:{first}", "canary", f"train:{second}")
        trace = with_record(trace, e.Window, step, rows=rows, expected_rows=rows)
    return trace


FAULTS: dict[str, dict[tuple[str, str], Change]] = {
    "device_as_configured": {
        ("silently on the CPU", "configured cuda, ran on cpu"): asking(device="cuda"),
        ("fallback without a try", "configured cuda, ran on cpu"): asking(device="cuda", fallback=["cpu"]),
        ("on the GPU unasked", "configured cpu, ran on cuda:0"): both(
            asking(device="cpu", fallback=["cpu"]),
            having(e.AttemptStart, device="cuda:0"),
            having(e.Census, devices={"cuda:0": 30}),
        ),
        ("the head left behind", "'meta': 1"): having(e.Census, devices={"cpu": 29, "meta": 1}),
        ("optimizer state elsewhere at the end", "'cuda:0': 16"): having(
            e.Census, 2, devices={"cpu": 14, "cuda:0": 16}
        ),
    },
    "dtypes_as_configured": {
        ("dtype ignored", "frozen tensors in {'bfloat16': 6}"): having(e.Census, frozen_dtypes={"bfloat16": 6}),
        ("upcast for k-bit training", "frozen tensors in {'float32': 6}"): both(
            having(e.Setup, precision="bf16"), having(e.Census, frozen_dtypes={"float32": 6, "uint8": 14})
        ),
        ("compute dtype not passed", "4-bit linears compute in {'bfloat16': 14}"): having(
            e.Quantization, compute_dtypes={"bfloat16": 14}
        ),
        ("quantised unasked", "frozen tensors in {'uint8': 14}"): asking(quantization=None),
        ("adapter dtype ignored", "trained tensors in {'float32': 8}, not bfloat16"): both(
            having(e.Setup, precision="bf16"), asking(lora={"adapter_dtype": "model"})
        ),
        ("activations promoted", "hidden states in float32, not bfloat16"): both(
            having(e.Setup, precision="bf16"),
            having(e.Census, frozen_dtypes={"bfloat16": 6, "uint8": 14}),
            having(e.Quantization, compute_dtypes={"bfloat16": 14}),
            having(e.LayerCalls, hidden_dtypes=("bfloat16", "float32")),
        ),
        ("autocast lost", "products in float32, not bfloat16"): both(
            asking(lora=None, quantization=None),
            having(e.Setup, precision="bf16"),
            having(e.Census, frozen_dtypes={"float32": 6}),
        ),
        ("adapters never called", "adapters multiply in nothing, not float32"): having(e.LayerCalls, adapter_dtypes=()),
        ("autocast on adapters", "adapters multiply in bfloat16, not float32"): having(
            e.LayerCalls, adapter_dtypes=("bfloat16",)
        ),
        ("fp16 without a scaler", "the loss is not scaled"): both(
            having(e.Setup, precision="fp16"),
            having(e.Census, frozen_dtypes={"float16": 6, "uint8": 14}),
            having(e.Quantization, compute_dtypes={"float16": 14}),
            having(e.LayerCalls, hidden_dtypes=("float16",), product_dtypes=("float16",)),
        ),
        ("adapters in 16 bit", "trained tensors in {'bfloat16': 8}"): having(
            e.Census, trainable_dtypes={"bfloat16": 8}
        ),
    },
    "attention_as_configured": {
        ("eager took over", "the layers call eager"): having(e.ForwardPaths, attention="eager"),
        ("eager all the same", "ran eager"): having(e.LayerCalls, attention_kernels=("eager",)),
        ("no attention", "no kernel"): having(e.LayerCalls, attention_kernels=()),
        ("a cache in training", "4 forwards of its layers filled"): having(e.LayerCalls, cached_calls=4),
        ("flash not installed", "call sdpa"): asking(training={"attention": "flash_attention_2"}),
    },
    "checkpointing_as_configured": {
        ("silently off", "4 layer forwards"): asking(training={"gradient_checkpointing": True}),
        ("silently on", "8 layer forwards"): having(e.LayerCalls, calls=8),
        ("a loss in one piece", "logits of 128 tokens at a time, at most 34 configured"): asking(
            training={"loss_chunk_tokens": 32}
        ),
    },
    "trainable_set": {
        ("one layer missed", "4 of 8 not trainable: base_model.model.model.layers.1: self_attn"): having(
            e.Census, trainable=LORA[:4]
        ),
        ("adapted twice", "get_peft_model received a model with adapters"): having(
            e.Census, trainable=tuple(f"base_model.model.{name}" for name in LORA)
        ),
        ("A frozen in a script", "declare it with --expect 'frozen=lora_A'"): both(
            asking(premises={"trained_set_declared": {"source": "declared", "where": "LoraConfig"}}),
            having(e.Census, trainable=LORA_B),
        ),
        ("loaded frozen", "8 of 8 not trainable"): having(e.Census, trainable=()),
        ("unfrozen by an evaluation", "end: 1 trainable, but not declared: model.norm.weight"): having(
            e.Census, 2, trainable=(*LORA, "model.norm.weight")
        ),
        ("nothing expected", "0 of"): having(e.Census, expected_trainable=(), trainable=(), trainable_parameters=0),
    },
    "parameters_counted": {
        ("tensors taken for parameters", "8 trained, which is the number of tensors, 30,720 by"): having(
            e.Census, trainable_parameters=8
        ),
        ("half the rank in one layer", "end: 26,880 trained, 30,720 by arithmetic"): having(
            e.Census, 2, trainable_parameters=26_880
        ),
        ("head untied", "63,734,592 in all, 35,423,040 by arithmetic"): having(e.Census, total_parameters=63_734_592),
    },
    "optimizer_coverage": {
        ("built before wrapping", "4 tensors in the optimizer do not belong to the model"): having(
            e.Census, optimized=(*LORA[:4], *"????")
        ),
        ("empty", f"8 trainable tensors are not in the optimizer: {LORA[0]}"): having(e.Census, optimized=()),
        ("AMSGrad", "start: switched on, but not configured: amsgrad"): having(
            e.Census, 0, optimizer_switches={"amsgrad": 8}
        ),
        ("half without decay", f"configured for all but norms and biases, but differs in {LORA[0]}"): both(
            asking(training={"weight_decay": 0.1, "weight_decay_on": "all_but_norms_and_biases"}),
            having(e.Census, trainable=(*LORA, "norm.weight"), optimized=(*LORA, "norm.weight")),
            having(e.Census, weight_decays={"0.1": 8, "0.0": 1}, undecayed=(LORA[0], "norm.weight")),
        ),
        ("frozen tensor in it", "frozen tensors are in the optimizer: head"): having(
            e.Census, optimized=(*LORA, "head")
        ),
        ("one held twice", f"held more than once: {LORA[0]}"): having(e.Census, optimized=(*LORA, LORA[0])),
        ("decay of AdamW's default", "weight decay 0.01, configured 0.0"): having(e.Census, weight_decays={"0.01": 8}),
        ("another epsilon", "betas and epsilon 0.9 0.999 1e-06, configured 0.9 0.999 1e-08"): having(
            e.Census, adam_settings={"0.9 0.999 1e-06": 8}
        ),
        ("gradient descent", "the optimizer is SGD, configured AdamW"): both(
            having(e.Setup, optimizer="SGD"), having(e.Census, adam_settings={"none": 8})
        ),
        ("no Adam by any name", "betas and epsilon none"): having(e.Census, adam_settings={"none": 8}),
        ("not the declared one", "the optimizer is AdamW, configured Lion"): having(e.Setup, declared_optimizer="Lion"),
        ("decay doubled", "weight decay 0.2, configured 0.0"): having(e.Census, weight_decays={"0": 4, "0.2": 4}),
    },
    "quantization_as_configured": {
        ("bypassed", f"14 of 14 linears are not 4-bit: {LINEARS[0]}"): having(
            e.Quantization, quantized_modules=(), quant_types={}, block_sizes={}, packed_bytes=0, expected_bytes=0
        ),
        ("statistics in bf16", f"again gives other bytes: {LINEARS[3]}"): having(
            e.Quantization, requantized_differing=(LINEARS[3],)
        ),
        ("nothing compared", "none could be compared"): having(e.Quantization, requantized=0),
        ("a plain product of unpacked weights", f"kept for the backward pass: {LINEARS[1]}"): having(
            e.Quantization, unpacked_kept=(LINEARS[1],)
        ),
        ("a layer left out", f"7 of 14 linears are not 4-bit: {LINEARS[7]}"): having(
            e.Quantization, quantized_modules=LINEARS[:7]
        ),
        ("head quantised", "but not configured: lm_head"): having(
            e.Quantization, quantized_modules=(*LINEARS, "lm_head")
        ),
        ("library's default type", "type {'fp4': 14}, configured nf4"): having(e.Quantization, quant_types={"fp4": 14}),
        ("block size ignored", "block size {'128': 14}"): having(e.Quantization, block_sizes={"128": 14}),
        ("no double quantisation", "double quantisation"): having(e.Quantization, double_quant={"False": 14}),
        ("statistics unpacked", "4,000,000 bytes packed, 3,666,568"): having(e.Quantization, packed_bytes=4_000_000),
    },
    "base_matches_file": {
        ("initialised after loading", "1 of 20 tensors differ from the file: norm"): having(
            e.BaseFidelity, differing=("norm",)
        ),
        ("rotary buffer of noise", "inv_freq"): having(e.BaseFidelity, buffers_differing=("rotary_emb.inv_freq",)),
        ("whole model cast", "inv_freq"): having(
            e.BaseFidelity, buffers_differing=("rotary_emb.inv_freq",), buffers_cast=True
        ),
        ("head untied", "the head is not tied"): having(e.BaseFidelity, tied=False),
        ("blocks shifted", "q_proj.weight differs from the file by 0.220"): having(
            e.BaseFidelity, weight_errors={"smallest": 0.09, "median": 0.21, "largest": 0.22}
        ),
        ("packed unasked", "differs from the file by 0.220"): both(
            asking(quantization=None), having(e.BaseFidelity, weight_errors={"largest": 0.22})
        ),
        ("another type than nf4", "differs from the file by 0.150"): having(
            e.BaseFidelity, weight_errors={"largest": 0.15}
        ),
    },
    "kernel_agrees": {
        ("wrong for this shape", "down_proj, 17 rows"): having(e.Quantization, kernel_error=0.22),
        ("16-bit arithmetic in fp32", "down_proj, 17 rows"): having(e.Quantization, kernel_error=4e-3),
    },
    "matmul_precision": {("TF32 is on", "float64"): having(e.ForwardPaths, matmul_error=5e-4)},
    "forward_deterministic": {
        ("noise in the norm", "two forward passes over the same rows"): having(e.ForwardPaths, repeat_difference=1e-3),
        ("noise in early steps", "step 2: a second forward pass of its first micro-batch"): having(
            e.OwnLoss, 2, model_repeats=False
        ),
    },
    "forward_matches_architecture": {
        ("positions all zero", "layers.0: attention, off by 0.31"): having(
            e.ForwardReference, error=0.31, worst="layers.0: attention"
        ),
        ("a layer left out", "layers.1.input_layernorm was not called"): having(
            e.ForwardReference, error=math.inf, worst="layers.1.input_layernorm was not called"
        ),
        (
            "norms in bf16",
            "the gain of norm off by 0.32 units of the last place: the norm is not computed in fp32",
        ): both(having(e.Setup, precision="bf16"), having(e.ForwardReference, gain_error=2.5e-3, gain_error_at="norm")),
        ("a linear too large", "the product of layers.0.mlp.up_proj, its gradient, by 0.02 of its weight's"): having(
            e.ForwardReference, product_gain_error=0.02, product_gain_error_at="layers.0.mlp.up_proj, its gradient,"
        ),
        ("a product of nothing", "the product of layers.0.mlp.up_proj by nan"): having(
            e.ForwardReference, product_gain_error=NAN, product_gain_error_at="layers.0.mlp.up_proj"
        ),
        ("a gain of nothing", "off by nan"): both(
            having(e.Setup, precision="fp16"), having(e.ForwardReference, gain_error=NAN, gain_error_at="norm")
        ),
        ("a mask that is ignored", "4 rows of a training step by 0.4"): having(e.LayerCalls, attention_error=0.4),
        ("an attention of NaN", "of a training step by nan"): having(e.LayerCalls, attention_error=math.nan),
    },
    "rows_isolated": {
        ("not causal", "a later token changes"): having(e.ForwardPaths, future_token_difference=0.31),
        ("padding attended to", "padding changes"): having(e.ForwardPaths, padding_difference=0.04),
        ("packed rows read each other", "another row changes"): having(e.ForwardPaths, other_row_difference=0.2),
    },
    "first_loss_below_uniform": {
        ("weights never loaded", "10.826 nats"): having(e.Evaluation, 0, loss=10.826),
        ("labels not shifted", "13.300 nats"): having(e.Evaluation, 0, loss=13.3),
    },
    "adapters_start_neutral": {("random B", "from its base"): having(e.AdapterStart, start_difference=0.3)},
    "adapters_start_random": {
        ("a hundred times too large", "100 times its expected size"): having(
            e.AdapterStart, a_sizes={"smallest": 99.0, "largest": 100.0}
        ),
        ("A is zero", "A is 0 to 0 times"): having(e.AdapterStart, a_sizes={"smallest": 0.0, "largest": 0.0}),
        ("never seeded", "seeded with 67280421310721, configured 0"): having(e.AdapterStart, seed=67280421310721),
        ("the seed set again", "1 A equal to another A: "): having(e.AdapterStart, a_repeated=LORA_A[1:2]),
        ("half of A drawn twice", "1 A of less than full rank: "): having(e.AdapterStart, a_dependent=LORA_A[1:2]),
    },
    "adapter_algebra": {
        ("alpha, not alpha/r", "layers.0.self_attn.q_proj is off by 7"): having(e.AdapterStart, algebra_error=7.0),
        ("not applied", "the logits do not change"): having(e.AdapterStart, logit_change=0.0),
        ("v_proj of a layer missed", "3 adapted linears found, 4 expected"): having(e.AdapterStart, modules=3),
    },
    "heldout_is_disjoint": {
        ("evaluated on training rows", "1 held-out rows are in training: Who"): having(e.DataSplit, shared=("Who?",)),
        ("tokens added, embedding not resized", "token id 49152 is beyond"): having(
            e.DataSplit, largest_token_id=49152
        ),
        ("splits exchanged in evaluation", "rows of another split, or other labels: heldout row 0"): having(
            e.DataSplit, misplaced=("heldout row 0",)
        ),
    },
    "tokens_match_template": {
        ("double BOS", "step 2: the start token is doubled (train:3)"): having(
            e.Window, 2, problems={"the start token is doubled": "train:3"}
        ),
        ("end token masked as padding", "step 0: the end token is not supervised"): having(
            e.Window, problems={"the end token is not supervised": "canary"}
        ),
        ("tokens replaced by a hook", "step 2: the model reads tokens that no batch holds: 'Who Who'"): lambda trace: (
            adding(trace, e.TokensReplaced(step=2, read="Who Who"))
        ),
    },
    "supervised_tokens": {
        ("padding supervised", "step 0: 141, expected 92"): having(e.Window, supervised_tokens=141),
        ("mask of zeros", "step 0: 0, expected 92"): having(e.Window, supervised_tokens=0),
        ("nothing to learn", "0 supervised"): both(
            having(e.Window, supervised_tokens=0, expected_supervised_tokens=0), having(e.Step, supervised_tokens=0)
        ),
        ("the first labels", "with each row's first label"): having(e.Step, 3, supervised_tokens=99),
        ("trainer counts padding", "step 3: 95, the trainer counts 180"): having(e.Step, 3, supervised_tokens=180),
        ("first tokens", "the trainer counts 99, with each row's first label"): having(e.Step, 3, supervised_tokens=99),
        ("padding is throughput", "step 3: 180 tokens without padding, the trainer counts 256"): having(
            e.Step, 3, tokens=256
        ),
    },
    "batches_differ": {
        ("iterator made in the loop", "12 micro-batches, 10 of them repeated"): having(e.Window, digests=("aa", "bb")),
        ("seed reset by an evaluation", "2 of them repeated"): having(
            e.Window, 4, digests=HEALTHY.all(e.Window)[0].digests
        ),
        ("twice in an epoch", "2 of them repeated"): both(
            having(e.DataSplit, train_rows=6), having(e.Window, 2, digests=HEALTHY.all(e.Window)[0].digests)
        ),
    },
    "row_order": {
        ("rows replayed", "step 3: rows canary, train:218"): having(e.Window, 3, rows=HEALTHY.all(e.Window)[0].rows),
        ("foreign rows", "step 0: rows ?, ?"): having(e.Window, rows=("?",) * 4),
        ("a row twice in an epoch", "epoch 0: 10 rows come more than once"): having(
            e.Window, rows=REPEATED, expected_rows=REPEATED
        ),
        ("every epoch in one order", "two epochs have the same order"): both(
            having(e.DataSplit, train_rows=6), lambda trace: with_rows(trace, [*range(6), *range(6)])
        ),
        ("another file", "the files read have the digest 0ddba11, those of the trace efefefefefef"): having(
            e.DataSplit, dataset_sha256="0ddba11"
        ),
        ("last micro-batch dropped", "step 5: rows canary, train:208, prescribed"): having(
            e.Window, 5, rows=lambda rows: rows[:2]
        ),
    },
    "gradients_cleared": {
        ("never cleared", f"5 more: it began with gradients of 8 tensors: {LORA[0]}"): having(
            e.Gradients, left_over=lambda _: LORA
        ),
        ("not cleared after one step", f"step 3: it began with gradients of 1 tensors: {LORA_B[0]}"): having(
            e.Gradients, 3, left_over=LORA_B[:1]
        ),
    },
    "calls_in_order": {
        ("a callback steps the optimizer again", "the optimizer steps twice with the same gradients"): having(
            e.CallOrder, 3, calls=(*CALLS[:6], "step", *CALLS[6:])
        ),
        (
            "clipped after the step",
            "clipping changes gradients after the optimizer step (in 6 of 6 steps); step 0: ",
        ): having(e.CallOrder, calls=(*CALLS[:4], "step", "clip", "schedule", "clear")),
        ("cleared before the step", "gradients are cleared before an optimizer uses them"): having(
            e.CallOrder, calls=(*CALLS[:4], "clip", "clear", "idle step", "schedule")
        ),
        ("cleared between micro-batches", "cleared before an optimizer uses them (in 6 of 6 steps)"): having(
            e.CallOrder, calls=(*CALLS[:2], "clear", *CALLS[2:])
        ),
        (
            "never cleared",
            "the optimizer uses gradients again, together with those of a later backward pass (in 5 of 6 steps)",
        ): having(e.CallOrder, calls=CALLS[:-1]),
        ("another's never cleared", "another optimizer uses gradients again, together with those of a later"): having(
            e.CallOrder, calls=(*CALLS, "used step of another optimizer")
        ),
        ("stepped at each micro-batch", "steps before the last backward pass of its window"): having(
            e.CallOrder, calls=("forward", "backward", "step", "clear", "forward", "backward", "step", "clear")
        ),
        ("clipped while scaled", "clipped before unscaling"): having(
            e.CallOrder, calls=("forward", "scale", "backward", "clip", "unscale", "step", "clear")
        ),
        ("the scaler left out", "the optimizer steps with scaled gradients"): having(
            e.CallOrder, calls=("forward", "scale", "backward", "step", "clear")
        ),
        ("the schedule first", "the schedule is stepped before the optimizer"): having(
            e.CallOrder, calls=("forward", "backward", "clip", "schedule", "step", "clear")
        ),
        ("the schedule twice", "the schedule is stepped twice"): having(
            e.CallOrder, calls=(*CALLS[:7], "schedule", "clear")
        ),
    },
    "state_in_training": {
        ("eval mode left by an evaluation", "wrong in 1 of 6 steps, first in step 3: the model in eval mode"): having(
            e.TrainingState, 3, modules_in_eval=("the model",)
        ),
        ("adapters off", f"{MODULES[3]} with adapters disabled"): having(e.TrainingState, adapters_disabled=MODULES),
        ("autocast left on", "first in step 4: autocast is on"): having(
            e.TrainingState, 4, settings=("autocast is on",)
        ),
        ("eval mode after a resume", "after the resume, first in step 3: the model in eval mode"): lambda trace: (
            with_further(trace, "resume", e.TrainingState(step=3, forwards=2, modules_in_eval=("the model",)))
        ),
        ("another adapter", "with a different active adapter"): having(
            e.TrainingState, 2, adapters_inactive=MODULES[:1]
        ),
        ("merged", "first in step 5: " + f"{MODULES[1]} with a merged adapter"): having(
            e.TrainingState, 5, adapters_merged=MODULES[1:2]
        ),
        ("frozen again", f"{LORA[0]} not requiring a gradient"): having(e.TrainingState, 4, frozen=LORA[:1]),
        ("base unfrozen", "head requiring a gradient"): having(e.TrainingState, 4, unfrozen=("head",)),
        ("a step unseen", "no forward pass was recorded in steps 2"): having(e.TrainingState, 2, forwards=0),
    },
    "loss_oracle": {
        ("means averaged", "step 0: reported 5.208177"): having(e.Step, loss=times(1.05)),
        ("a loss of nothing", "oracle 0.000000"): having(e.Oracle, loss=0.0),
        ("labels shifted twice", "step 2: reported 9.200000"): having(e.Step, 2, loss=9.2),
        ("divided by the accumulation", "oracle 4.960169"): having(e.Step, loss=times(0.5)),
        ("computed in bf16", "in float64 from the same logits 4.965130"): having(e.OwnLoss, loss=times(1.001)),
        ("reported a step late", "step 4: reported 3.521854, in float64 from the same logits 3.912048"): having(
            e.OwnLoss, 4, loss=3.912048
        ),
        ("reported in bf16", "none of 6 reported losses has more than 8 binary digits"): both(
            having(e.Step, loss=in_bf16), having(e.Oracle, loss=in_bf16), having(e.OwnLoss, loss=in_bf16)
        ),
        ("tokens exchanged on their way", "tokens of another step: step 3: 2"): having(
            e.OwnLoss, 3, loss=None, foreign_rows=2
        ),
    },
    "accumulation_oracle": {
        ("means averaged", "step 0 (2 x 2 rows): error 0.15"): having(e.Oracle, gradient_error=0.15),
        ("gradients not cleared", "step 2 (2 x 2 rows): error 1.3"): having(e.Oracle, 1, gradient_error=1.3),
        ("one tensor cut off", f"worst tensor {LORA_B[2]} 1 at step 2"): having(e.Oracle, 1, worst_gradient_error=1.0),
        ("a z-loss in the gradient", "gradient by the logits 0.0006 at step 4"): having(
            e.OwnLoss, 4, gradient_error=6e-4
        ),
    },
    "weight_gradients": {
        ("halved in every fourth step", f"{LORA_B[2].removesuffix('.weight')} in step 2, off by 0.5 (float32)"): having(
            e.WeightGradient, 2, error=0.5
        ),
        ("summed in bf16", "off by 0.0023"): having(e.WeightGradient, error=2.3e-3),
        ("a tied embedding that learns as a head alone", "off by inf"): having(e.WeightGradient, 4, error=math.inf),
        ("compressed under autocast", "off by 0.03 (bfloat16, float32)"): having(
            e.WeightGradient, 5, error=0.03, dtypes=("bfloat16", "float32")
        ),
    },
    "lora_gradient_schedule": {
        ("reentrant checkpointing", f"5 more: no gradient for 3 lora_B: {LORA_B[0]}"): having(
            e.Gradients, zero=LORA_A + LORA_B[:3]
        ),
        ("inference kernel after an evaluation", "step 4: no gradient for 4 lora_A after B moved"): having(
            e.Gradients, 4, zero=LORA_A + LORA_B
        ),
        ("a magnitude is cut off", "step 2: no gradient for 1 magnitudes: q.lora_magnitude_vector.w"): having(
            e.Gradients, 2, zero=("q.lora_magnitude_vector.w",)
        ),
        ("B not zero at the start", "step 0: lora_A has a gradient though B is zero"): having(
            e.Gradients, 0, **gradient_norms(0.1, 1.0)
        ),
        ("base unfrozen", "step 5: gradients on frozen tensors: norm"): having(
            e.Gradients, 5, frozen_with_gradient=("norm",)
        ),
    },
    "gradient_norm_reported": {
        ("after clipping", "step 0: reported 0.5, the gradients have 1.02829"): having(e.Step, gradient_norm=0.5),
        ("before unscaling", "reported 62584"): having(e.Step, gradient_norm=times(65536)),
        ("norm of nothing", "the gradients have 0"): having(e.Gradients, 3, norms={}),
    },
    "learning_rate_trace": {
        ("a unit mistaken", "step 1: rate 2e-13, the schedule gives 0.0002"): having(e.Step, learning_rate=times(1e-9)),
        ("stepped once a micro-batch", "step 2: rate 0.0001309"): having(e.Step, 2, learning_rate=1.309e-4),
        ("never stepped", "step 0: rate 0.0002, the schedule gives 0"): having(e.Step, learning_rate=2e-4),
        ("stepped although skipped", "step 4: rate 6.91e-05, the schedule gives 0.0001309"): having(
            e.Step, 3, applied=False
        ),
    },
    "steps_applied": {
        ("optimizer does nothing", "steps [1, 2, 3, 4, 5] count as applied, but changed no weight"): having(
            e.Update, moved=False
        ),
        ("rate unknown and nothing moved", "steps [0"): having(e.Update, moved=False, expected_learning_rate=NAN),
        ("scaler skips on", "6 of 6 steps, 6 skipped"): having(e.Step, applied=False),
        ("ended early", "6 of 12 steps"): asking(training={"max_steps": 12}),
        ("a step counted twice", "6 of 6 steps"): having(e.Step, 3, step=2),
        ("the schedule has ended", "0 in steps [3, 4, 5], which change nothing"): idle(3, 4, 5),
    },
    "updates_match_adamw": {
        ("step swallowed", f"step 2: {LORA_B[3]} off by 1 "): having(e.Update, 2, update_error=1.0),
        ("clipped before unscaling", "moments off by 0.9 at step 3"): having(e.Update, 3, moment_error=0.9),
        ("moments in bf16", "moments off by 0.0011 at step 4"): having(e.Update, 4, moment_error=1.1e-3),
        ("a rate in bf16", "all updates together off by 0.0019 of their length in step 4"): having(
            e.Update, 4, length_error=1.9e-3
        ),
        ("16-bit weights", "off by 0.3 of its update"): having(e.Update, update_error=0.3),
    },
    "finite": {
        ("loss", "step 2: loss nan"): having(e.Step, 2, loss=NAN),
        ("overflow", "gradient norm inf"): having(e.Step, 1, gradient_norm=math.inf),
        ("one gradient", f"step 4: gradients of {LORA[0]}"): having(e.Gradients, 4, nonfinite=LORA[:1]),
        ("a weight", f"weights after training: {LORA[1]}"): having(e.Movement, nonfinite=LORA[1:2]),
        ("no label left in a row", "evaluation before step 6: nan"): having(e.Evaluation, 2, loss=NAN),
    },
    "trainable_moved": {
        ("outside the forward pass", f"1 of 8 did not move: {LORA_B[1]}"): having(e.Movement, unmoved=LORA_B[1:2]),
        ("updates below half a ulp", f"only 30.0% of {LORA_A[0]}"): having(e.Movement, smallest_moved_share=0.3),
        ("rate always 0", "no step was applied"): having(e.Step, learning_rate=0.0),
    },
    "base_untouched": {
        ("repacked by an evaluation", f"14 of 76 frozen tensors changed: {LINEARS[0]}"): having(
            e.Movement, frozen_changed=LINEARS
        ),
        ("a bit flipped", "1 of 76 frozen tensors changed: head"): having(e.Movement, frozen_changed=("head",)),
        ("off in the middle", "restored at the end: norm before step 3"): having(
            e.Continuity, frozen_changed={"norm": 3}
        ),
    },
    "weights_change_only_in_steps": {
        ("rounded by a save", f"1 of 8 trained tensors changed outside of a step: {LORA_A[0]} before step 3"): having(
            e.Continuity, trained_changed={LORA_A[0]: 3}
        ),
        ("averages stay", f"{LORA[0]} before step 6"): having(e.Continuity, trained_changed=dict.fromkeys(LORA, 6)),
    },
    "evaluation_oracle": {
        ("mean of batch means", "heldout: reported 4.310000"): having(
            e.EvaluationAudit, 1, reported_loss=4.31, oracle_loss=4.5
        ),
        ("padding counted", "probe: reported 3.612028 over 60 tokens"): having(
            e.EvaluationAudit, 0, reported_tokens=60
        ),
        ("no likelihood", "oracle 0.000000"): having(e.EvaluationAudit, oracle_loss=0.0),
        ("dropout active", "reported 3.900000"): having(e.EvaluationAudit, reported_loss=3.9),
        ("one evaluation left out", "never evaluated: heldout before step 3, probe before step 3"): asking(
            evaluation={"at": [3]}
        ),
        ("evaluated at another step too", "evaluated, but not configured: probe before step 3"): lambda trace: adding(
            trace, e.Evaluation(step=3, split="probe", loss=4.0, tokens=38, logits_loss=4.0)
        ),
        ("mean of perplexities", "probe before step 6: reported 3.612028, 3.619253 in float64"): having(
            e.Evaluation, 2, logits_loss=times(1.002)
        ),
        ("wrong before training alone", "heldout before step 0: reported 4.402184, 4.100000 in float64"): having(
            e.Evaluation, 1, logits_loss=4.1
        ),
        ("logits rounded to bf16", "from logits of 8 binary digits"): having(e.EvaluationAudit, 1, logit_digits=8),
    },
    "evaluation_mode": {
        ("eval() does nothing", "probe: 9 modules were in train mode"): having(
            e.EvaluationAudit, training_modules_during=9
        ),
        ("dropout is functional", "probe: a second evaluation of its first batch gives other logits"): having(
            e.EvaluationAudit, 0, repeats=False
        ),
        ("logits kept with their graph", "heldout: gradients were enabled"): having(
            e.EvaluationAudit, 1, built_graph=True
        ),
        ("every batch's logits kept", "heldout: 6 tensors of an evaluation are alive after its end"): having(
            e.EvaluationAudit, 1, kept_tensors=6
        ),
        ("averages swapped in and not out", "probe: it changed the trained weights"): having(
            e.EvaluationAudit, 0, weights_changed=True
        ),
        ("left in eval mode", "modes were not restored"): having(e.EvaluationAudit, mode_restored=False),
        ("older weights evaluated", "heldout before step 6: the current model computes other logits"): having(
            e.Evaluation, 3, model_repeats=False
        ),
    },
    "perplexity_below_vocabulary": {
        ("labels shifted twice", "heldout before step 6, perplexity 254,801.06, 49,152 tokens"): having(
            e.Evaluation, 3, loss=12.4482383628
        ),
        ("weights never loaded", "before step 0, perplexity 387,788.94"): having(e.Evaluation, 0, loss=12.8682165015),
        ("diverged", "perplexity e^inf"): having(e.Evaluation, 2, loss=math.inf),
    },
    "adapters_applied": {("adapter disabled", "adapters on and off"): having(e.AdapterEffect, difference=0.0)},
    "adapter_round_trip": {
        ("empty file", f"8 tensors missing from the file: {LORA[0]}"): having(e.RoundTrip, tensors=0, missing=LORA),
        ("renamed keys", "in the file but not in the model: x"): having(
            e.RoundTrip, unexpected=("x",), missing=LORA[:1]
        ),
        ("fresh adapter saved", f"4 tensors of B are zero: {LORA_B[0]}"): having(e.RoundTrip, zero_b=LORA_B),
        ("an older state saved", "8 tensors with other bytes"): having(e.RoundTrip, differing=LORA),
        ("another dropout", "its configuration has lora_dropout 0.0, configured 0.1"): having(
            e.RoundTrip, settings_differing=("lora_dropout 0.0, configured 0.1",)
        ),
        ("loader ignores it", "gives other logits"): having(e.RoundTrip, logit_difference=0.0144),
        ("loader rounds it", "8 tensors differ when loaded"): having(e.RoundTrip, reread_differing=LORA),
        ("a resumed run saves the checkpoint's", "after the resume: 8 tensors with other bytes"): lambda trace: (
            with_further(trace, "resume", replace(trace.one(e.RoundTrip), differing=LORA))
        ),
    },
    "live_tensors_flat": {
        ("losses collected", "244 after step 5"): having(e.LiveTensors, 2, tensors=244),
        ("losses added up", "the graphs of 5 earlier steps"): having(e.LiveTensors, 2, graphs=5),
        ("logits of all evaluations kept", "300 after step 5"): having(e.LiveTensors, 2, tensors=300),
        ("weights kept in each step", "258 after step 5"): having(e.LiveTensors, 2, tensors=258, copies=2, copied=16),
        ("losses kept beside the best weights", "8 of them in 1 full copies"): having(
            e.LiveTensors, 2, tensors=252, copies=1, copied=8
        ),
    },
    "seconds_reported": {
        ("that of a micro-batch", "reported as 0.50 times its duration"): having(e.Step, seconds=1.67 / 2),
        ("probes and all", "reported as 3.59 times"): having(e.Step, seconds=6.0),
        ("a clock that stood still", "nan"): having(e.StepTimes, seconds=(0.0,) * 6),
    },
    "memory_returned": {
        ("a global list holds the model", "18,313,302 of 18,313,302 bytes"): having(e.Released, bytes=18313302),
        ("an exception holds a batch", "400,000 of"): having(e.Released, bytes=400_000),
    },
    "loss_falls": {
        ("nothing learned", "4.1862 -> 4.1862"): having(e.Evaluation, 2, loss=4.18616445440995),
        ("no label left", "0.0000 -> 0.0000"): having(e.Evaluation, loss=0.0),
        ("infinite at the start", "inf -> 3.6120"): having(e.Evaluation, 0, loss=math.inf),
        ("rate too high", "4.1862 -> 6.0000"): having(e.Evaluation, 2, loss=6.0),
    },
    "heldout_improves": {
        ("only memorised", "81.63 -> 148.41"): having(e.Evaluation, 3, loss=5.0),
        ("blown up", "800.0000 nats"): having(e.Evaluation, 3, loss=800.0),
        ("infinite at the start", "(inf -> 4.3115 nats)"): having(e.Evaluation, 1, loss=math.inf),
    },
    "generation_is_greedy": {
        ("padded on the right", "40% of the tokens of 'Seven"): having(e.Generation, 2, greedy_agreement=0.4),
        ("a penalty too small to change a token", "3 tokens are chosen by scores that are not"): having(
            e.Generation, 3, scores_changed=3
        ),
        ("positions drift", "logits off by 0.2 of the largest"): having(e.Generation, 3, logit_difference=0.2),
        ("wrong positions in the cache", "(start)"): having(e.Generation, 0, greedy_agreement=0.0),
        ("not the largest", "1 tokens do not have the largest score"): having(e.Generation, 1, not_largest=1),
        ("an end that is passed over", "goes on after the end token"): having(e.Generation, 2, stops=False),
        ("a served prompt without its last line", "differ from those of its training row"): having(
            e.Generation, 1, prompt_as_trained=False
        ),
    },
    "text_is_language": {
        ("noise", "10.90 nats per generated token (start: "): having(e.Generation, 0, mean_logprob=-10.9),
        ("the same token again and again", "93% of the tokens are the same token (end: "): having(
            e.Generation, 2, most_frequent_share=0.93
        ),
        ("broken characters", "only 70% of the characters are readable"): having(e.Generation, 3, readable_share=0.7),
    },
    "canary_learned": {
        ("adapters not served", "after 'Seven copper doors'"): having(e.Generation, 2, text="Seven copper doors"),
        ("never stops", "without an end token"): having(e.Generation, 2, ended=False),
        ("known before", "choose another canary"): having(e.Generation, 0, text=ANSWER),
    },
    "repeat_equals": {
        ("not seeded", "3 of 3 steps differ, first step 0"): having(e.Step, purpose="repeat", loss=times(1.01)),
        ("atomics in a kernel", "1 of 3 steps differ, first step 2"): having(
            e.Step, 2, purpose="repeat", loss=times(1 + 2e-16)
        ),
        ("A not seeded, its losses alike", "3 of 3 steps differ, first step 0: norm of the gradient "): having(
            e.Step, purpose="repeat", gradient_norm=times(1 + 2e-16)
        ),
    },
    "resume_equals": {
        ("fresh adapter", "step 3: loss 4.9"): having(e.Step, 0, purpose="resume", loss=4.9),
        ("schedule starts over", "step 3: loss 3.912048 and rate 0,"): having(
            e.Step, 0, purpose="resume", learning_rate=0.0
        ),
        ("a rate a little off, whatever the precision", "step 3: loss 3.912048 and rate 0.000131,"): both(
            having(e.Setup, precision="bf16"), having(e.Step, 0, purpose="resume", learning_rate=times(1 + 1e-3))
        ),
        ("a loss from nothing", "uninterrupted 0.000000"): having(e.Step, loss=0.0),
        ("moments lost", "step 5: loss 3.4"): having(e.Step, 2, purpose="resume", loss=3.4),
        ("moments rounded in the checkpoint", "differs by 0.0031 after the last one"): having(
            e.Trained, purpose="resume", norms=lambda norms: {**norms, LORA_B[0]: norms[LORA_B[0]] * 1.0031}
        ),
        ("a tensor lost", "differs by nan"): having(
            e.Trained, purpose="resume", norms=lambda norms: {n: norm for n, norm in norms.items() if n != LORA_B[0]}
        ),
        ("the scaler starts over", "the gradient scaler's state differs"): both(
            having(e.Trained, scaler='{"_growth_tracker": 6, "scale": 65536.0}'),
            having(e.Trained, purpose="resume", scaler='{"_growth_tracker": 3, "scale": 65536.0}'),
        ),
        ("starts from the beginning", "took steps [0, 1, 2]"): having(
            e.Step, purpose="resume", step=lambda step: step - 3
        ),
        ("weights rounded in the checkpoint", f"starts with values that differ from the saved ones: {LORA[0]}"): having(
            e.TrainerState, purpose="resume", tensors=lambda tensors: tensors | {LORA[0]: "other"}
        ),
        ("decay lost", "values that differ from the saved ones: weight_decay of group 0"): having(
            e.TrainerState, purpose="resume", settings=lambda held: held | {"weight_decay of group 0": "0.1"}
        ),
        ("a last bit where repeating gives the same bits", "step 5: loss 3.298737"): having(
            e.Step, 2, purpose="resume", loss=times(1 + 1e-15)
        ),
    },
}
"""Check to bugs, each with what its finding must name, and how it shows in the trace."""

EVIDENCE = {
    "device_as_configured": ("Census", ""),
    "dtypes_as_configured": ("Census LayerCalls Quantization Setup", ""),
    "attention_as_configured": ("ForwardPaths ForwardReference LayerCalls", ""),
    "checkpointing_as_configured": ("LayerCalls", ""),
    "trainable_set": ("Census", ""),
    "parameters_counted": ("Census", ""),
    "optimizer_coverage": ("Census Setup", ""),
    "quantization_as_configured": ("Quantization", ""),
    "base_matches_file": ("BaseFidelity", "BaseFidelity.weight_errors"),
    "kernel_agrees": ("Quantization Setup", "Quantization.kernel_error"),
    "matmul_precision": ("ForwardPaths", "ForwardPaths.matmul_error"),
    "forward_deterministic": ("ForwardPaths", "ForwardPaths.repeat_difference"),
    "forward_matches_architecture": (
        "ForwardReference LayerCalls Setup",
        "ForwardReference.error LayerCalls.attention_error",
    ),
    "rows_isolated": (
        "ForwardPaths Setup",
        "ForwardPaths.future_token_difference ForwardPaths.padding_difference ForwardPaths.other_row_difference",
    ),
    "first_loss_below_uniform": ("Evaluation", "Evaluation.loss@0"),
    "adapters_start_neutral": ("AdapterStart Setup", "AdapterStart.start_difference AdapterStart.base_difference"),
    "adapters_start_random": ("AdapterStart", "AdapterStart.a_sizes"),
    "adapter_algebra": ("AdapterStart Census Setup", "AdapterStart.algebra_error AdapterStart.logit_change"),
    "heldout_is_disjoint": ("DataSplit", ""),
    "tokens_match_template": ("Window", ""),
    "supervised_tokens": ("Step Window", ""),
    "batches_differ": ("DataSplit Window", ""),
    "row_order": ("DataSplit Dataset Window", ""),
    "gradients_cleared": ("Gradients", ""),
    "calls_in_order": ("CallOrder", ""),
    "state_in_training": ("Step TrainingState", ""),
    "loss_oracle": ("Oracle Setup Step", "Oracle.loss Step.loss"),
    "accumulation_oracle": ("Oracle Setup Step", "Oracle.gradient_error Oracle.worst_gradient_error"),
    "weight_gradients": ("Setup Step WeightGradient", "WeightGradient.error"),
    "lora_gradient_schedule": ("Gradients Step", "Gradients.norms@0,1 Step.learning_rate@1"),
    "gradient_norm_reported": ("Gradients Setup Step", "Gradients.norms Step.gradient_norm"),
    "learning_rate_trace": ("Step", "Step.learning_rate"),
    "steps_applied": ("Step Update", "Update.expected_learning_rate@0"),
    "updates_match_adamw": ("Setup Update", "Update.update_error Update.moment_error"),
    "finite": ("Evaluation Gradients Movement Step", "Evaluation.loss Step.loss Step.gradient_norm"),
    "trainable_moved": ("Census Movement Step", "Movement.smallest_moved_share Step.learning_rate@together"),
    "base_untouched": ("Movement", ""),
    "weights_change_only_in_steps": ("Continuity", ""),
    "evaluation_oracle": (
        "Evaluation EvaluationAudit Setup",
        "Evaluation.loss EvaluationAudit.reported_loss EvaluationAudit.oracle_loss",
    ),
    "evaluation_mode": ("Evaluation EvaluationAudit", ""),
    "perplexity_below_vocabulary": ("Evaluation Weights", "Evaluation.loss"),
    "adapters_applied": ("AdapterEffect Step", "AdapterEffect.difference"),
    "adapter_round_trip": ("RoundTrip Setup Step", "RoundTrip.logit_difference"),
    "live_tensors_flat": ("LiveTensors", ""),
    "seconds_reported": ("Setup Step StepTimes", "Step.seconds"),
    "memory_returned": ("Released", ""),
    "loss_falls": ("Evaluation", "Evaluation.loss@0,2"),
    "heldout_improves": ("Evaluation", "Evaluation.loss@1,3"),
    "generation_is_greedy": ("Generation Setup", "Generation.greedy_agreement Generation.logit_difference"),
    "text_is_language": (
        "Generation",
        "Generation.mean_logprob Generation.most_frequent_share Generation.readable_share",
    ),
    "canary_learned": ("Generation", ""),
    "repeat_equals": ("Step", "Step.loss@0,1,2 Step.gradient_norm@0,1,2"),
    "resume_equals": ("Setup Step Trained", "Step.loss@3,4,5 Step.learning_rate@3,4,5 Trained.norms"),
}
"""Check to the kinds of record that it cannot do without, and to the floats that it judges.

Without an @ each record of the kind is judged, with numbers after it only those (in the healthy run nothing moves in
step 0, and B first moves in step 1); `together`: one good value among them is enough.
"""
NOBODY_JUDGES = {"Oracle.norm", "Phase.seconds", "ProbeTimes.seconds", "AdapterStart.least_algebra_error"}
"""Floats that are recorded for the reader alone, or that only tell a suspicion from a failure."""
KINDS = sorted({type(record) for record in HEALTHY.main.records}, key=lambda kind: kind.__name__)

CANNOT_JUDGE: dict[str, tuple[str, Change, str]] = {
    "no evaluation before training": (
        "first_loss_below_uniform",
        having(e.Evaluation, step=6),
        "before the first step",
    ),
    "no oracle step trained": ("loss_oracle", having(e.Oracle, step=99), "no oracle step was trained"),
    "rate always 0": ("lora_gradient_schedule", having(e.Step, learning_rate=0.0), "no step had a learning rate above"),
    "gradients of other steps": (
        "gradient_norm_reported",
        having(e.Gradients, step=lambda step: step + 100),
        "no applied step has both",
    ),
    "main run too short": ("resume_equals", having(e.Step, 5, step=4), "the uninterrupted run has no step 5"),
    "last evaluation lost": ("loss_falls", having(e.Evaluation, 2, step=3), "was not evaluated at start and end"),
    "first evaluation lost": (
        "heldout_improves",
        having(e.Evaluation, 1, step=1),
        "was not evaluated at start and end",
    ),
    "nothing told after a resume": (
        "resume_equals",
        lambda t: without_in(t, "resume", e.Trained),
        "recorded no norms of its tensors",
    ),
    "one sample": (
        "live_tensors_flat",
        lambda t: with_samples(t, 1),
        "fewer than two samples, because the run is too short",
    ),
    "nothing to release": ("memory_returned", having(e.Released, session_bytes=0), "held no memory"),
    "probe rows never evaluated": (
        "loss_falls",
        having(e.Evaluation, split="heldout"),
        "probe split was not evaluated",
    ),
    "held-out rows never evaluated": ("heldout_improves", having(e.Evaluation, split="probe"), "was not evaluated at"),
    "canary once": (
        "canary_learned",
        having(e.Generation, when="end"),
        "not generated before and after training",
    ),
    "canary never": (
        "canary_learned",
        having(e.Generation, expected=""),
        "not generated before and after training",
    ),
    "repeat crashed": (
        "repeat_equals",
        having(e.AttemptEnd, purpose="repeat", outcome="crashed", detail="SIGSEGV"),
        "the repeat attempt did not finish: it crashed: SIGSEGV",
    ),
    "repeat killed": (
        "repeat_equals",
        lambda t: killed(t, "repeat"),
        "the repeat attempt did not finish: it was cut off",
    ),
    "resume killed": (
        "resume_equals",
        lambda t: killed(t, "resume"),
        "the resume attempt did not finish: it was cut off",
    ),
    "repeat too short": ("repeat_equals", asking(probes={"repeat_steps": 4}), "the repeat attempt took 3 steps"),
    "resume crashed": (
        "resume_equals",
        having(e.AttemptEnd, purpose="resume", outcome="hung", detail="not done after 600 s"),
        "the resume attempt did not finish: it hung: not done after 600 s",
    ),
}


def with_samples(trace: Trace, number: int) -> Trace:
    """The trace with only the first counts of live tensors."""
    return adding(without(trace, e.LiveTensors), *trace.all(e.LiveTensors)[:number])


def without_in(trace: Trace, purpose: str, kind: type[Record]) -> Trace:
    """The trace in which the attempt with this purpose has no such record."""
    attempts = (
        Attempt(a.start, tuple(r for r in a.records if a.start.purpose != purpose or not isinstance(r, kind)), a.end)
        for a in trace.attempts
    )
    return Trace(trace.header, tuple(attempts))


def killed(trace: Trace, purpose: str) -> Trace:
    """The trace of a session that died in the attempt with this purpose."""
    attempts = (Attempt(a.start, a.records, None if a.start.purpose == purpose else a.end) for a in trace.attempts)
    return Trace(trace.header, tuple(attempts))


def nan_in(kind: type[Record], field: str, at: int | None = None) -> Trace:
    """The healthy trace with NaN in this field, in every value where it is a mapping."""
    change: dict[str, Any] = {field: lambda old: dict.fromkeys(old, NAN) if isinstance(old, dict) else NAN}
    return with_record(HEALTHY, kind, at, **change)


def floats(kind: type[Record]) -> list[str]:
    """The fields that hold floats or a mapping to floats."""
    return [field.name for field in dataclasses.fields(kind) if field.type in (float, dict[str, float])]


def judged_floats(check: Check) -> set[str]:
    """The floats whose NaN this check does not pass, spelled as in EVIDENCE."""
    judged = set()
    for kind in KINDS:
        for field in floats(kind):
            if check(nan_in(kind, field)).passed:
                continue
            numbers = range(len(HEALTHY.all(kind)))
            noticed = [number for number in numbers if not check(nan_in(kind, field, number)).passed]
            which = "" if len(noticed) == len(numbers) else "@" + (",".join(map(str, noticed)) or "together")
            judged.add(f"{kind.__name__}.{field}{which}")
    return judged


@pytest.mark.parametrize("name", NAMES)
def test_a_healthy_run_passes(name: str) -> None:
    """Judged, and judged good: an unjudged check would be worth nothing in every other test here."""
    assert ASKED[name](HEALTHY).status is Status.PASSED


@pytest.mark.parametrize(("name", "bug", "culprit"), [(name, *key) for name in FAULTS for key in FAULTS[name]])
def test_a_bug_is_found_and_named(name: str, bug: str, culprit: str) -> None:
    """The finding fails, says what was seen where, and brings meaning and remedy along."""
    check = ASKED[name]
    finding = check(FAULTS[name][bug, culprit](HEALTHY))
    assert finding.status is Status.FAILED
    assert culprit in finding.detail
    assert str(finding).startswith(f"{name} failed:")
    assert finding.meaning
    assert finding.meaning in str(finding)
    assert all(cause in check.meaning for cause in finding.meaning.split(". "))
    assert check.remedy in str(finding)


@pytest.mark.parametrize(
    ("calls", "meaning"),
    [
        (("forward", "backward", "step", "clip", "clear"), "Clipping runs after the step."),
        (
            ("forward", "backward", "step", "clear", "forward", "backward", "step", "clear"),
            "The optimizer steps within an accumulation.",
        ),
    ],
    ids=["clipped late", "stepped early"],
)
def test_a_wrong_order_brings_the_cause_that_it_proves(calls: tuple[str, ...], meaning: str) -> None:
    """And none of the others that the check knows."""
    assert ASKED["calls_in_order"](having(e.CallOrder, calls=calls)(HEALTHY)).meaning == meaning


def test_what_holds_at_several_moments_is_said_once() -> None:
    """Behind the first of them."""
    found = said_once([("start", "one", "why"), ("step 3", "two", ""), ("end", "one", "why"), ("end", "three", "")])
    assert found == {"start and 1 more: one": "why", "step 3: two": "", "end: three": ""}


NOTHING: dict[str, tuple[str, Change]] = {
    "checkpointing_as_configured": ("0 layers", having(e.LayerCalls, layers=0, calls=0)),
    "parameters_counted": (
        "0 of 35,392,320 parameters",
        having(e.Census, expected_parameters=0, trainable_parameters=0, total_parameters=35_392_320),
    ),
    "optimizer_coverage": (
        "no parameter of the model requires a gradient",
        having(e.Census, trainable=(), optimized=(), weight_decays={}, adam_settings={}),
    ),
    "base_matches_file": ("0 tensors", having(e.BaseFidelity, tensors=0)),
    "forward_matches_architecture": ("0 relations", having(e.ForwardReference, relations=0)),
    "heldout_is_disjoint": ("0 held out", having(e.DataSplit, heldout_rows=0)),
    "tokens_match_template": ("0 rows audited", having(e.Window, rows=())),
    "batches_differ": ("0 micro-batches", having(e.Window, digests=())),
    "trainable_moved": ("0 of 0 tensors", having(e.Census, expected_trainable=())),
    "base_untouched": ("0 of 0", having(e.Movement, frozen_tensors=0)),
    "weights_change_only_in_steps": ("0 of 0", having(e.Continuity, trained=0)),
    "adapter_round_trip": ("0 tensors", having(e.RoundTrip, tensors=0)),
    "row_order": ("6 steps with the prescribed rows", both(having(e.Window, rows=(), expected_rows=()))),
    "quantization_as_configured": (
        "0 linears",
        having(e.Quantization, expected_modules=(), quantized_modules=(), packed_bytes=0, expected_bytes=0),
    ),
}
"""Checks that compare a number of things, with words of the reason and a trace that holds none of these."""


@pytest.mark.parametrize("name", NOTHING)
def test_nothing_compared_is_unjudged(name: str) -> None:
    """It is neither good nor bad; what is missing where something should be is a fault of its own."""
    culprit, change = NOTHING[name]
    finding = ASKED[name](change(HEALTHY))
    assert finding.status is Status.UNJUDGED
    assert culprit in finding.detail


def _emptied(trace: Trace, kind: type[Record]) -> Trace:
    """The trace with every collection and every count of this record empty."""
    empty: dict[Any, Any] = {int: 0, int | None: 0, str: ""}
    nothing = {
        field.name: empty.get(field.type, () if str(field.type).startswith("tuple") else {})
        for field in dataclasses.fields(kind)
        if field.type in empty or str(field.type).startswith(("tuple", "dict[str, int]"))
        if field.name not in ("step", "steps", "precision")
    }
    return with_record(trace, kind, **nothing)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_evidence_that_is_empty_is_read(kind: type[Record]) -> None:
    """No check fails by equal numbers, see conftest.py, or comes upon a number that it cannot read."""
    emptied = _emptied(HEALTHY, kind)
    unread = [finding.detail for check in ASKED.values() if "cannot read" in (finding := check(emptied)).detail]
    assert unread == []


def test_where_nothing_is_trainable_one_check_says_so() -> None:
    """The training ends at its first backward pass; that nothing was compared is no fault beside the cause."""
    census = {"trainable": (), "expected_trainable": (), "optimized": (), "trainable_dtypes": {}}
    numbers = {"trainable_parameters": 0, "expected_parameters": 0, "weight_decays": {}, "adam_settings": {}}
    frozen = with_record(HEALTHY, e.Census, **census, **numbers, total_parameters=35_392_320)
    frozen = with_record(frozen, e.Continuity, trained=0, moments=0)
    for kind in (e.Step, e.Update, e.Gradients, e.WeightGradient, e.Oracle, e.OwnLoss, e.Movement):
        frozen = without(frozen, kind)
    findings = {name: check(frozen) for name, check in ASKED.items()}
    failed = [name for name, finding in findings.items() if finding.status is Status.FAILED]
    told = [name for name, finding in findings.items() if finding.detail == NOTHING_TRAINABLE]

    assert "trainable_set" in failed
    assert findings["trainable_set"].detail.startswith(NOTHING_TRAINABLE)
    assert {"optimizer_coverage", "weights_change_only_in_steps", "parameters_counted"} <= set(told)


def test_every_check_is_seen_to_fail() -> None:
    """No check is believed before that, and the tables here list them all."""
    assert list(FAULTS) == list(EVIDENCE) == NAMES == list(ASKED)


@pytest.mark.parametrize("name", NAMES)
def test_nan_never_passes(name: str) -> None:
    """NaN in any float that the check reads, in all records or in one alone, is not passed over."""
    assert judged_floats(ASKED[name]) == set(EVIDENCE[name][1].split())


def test_every_float_is_judged_by_some_check() -> None:
    """Evidence that nobody judges is listed as such."""
    judged = {item.partition("@")[0] for _, items in EVIDENCE.values() for item in items.split()}
    assert {f"{kind.__name__}.{field}" for kind in KINDS for field in floats(kind)} - judged == NOBODY_JUDGES


@pytest.mark.parametrize(
    ("name", "field"), [("repeat_equals", "loss"), ("resume_equals", "loss"), ("resume_equals", "learning_rate")]
)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_nan_in_a_second_attempt_fails(name: str, field: str, at: int) -> None:
    """One bad step among good ones is enough, whichever it is."""
    purpose = name.removesuffix("_equals")
    assert ASKED[name](with_record(HEALTHY, e.Step, at, purpose=purpose, **{field: NAN})).status is Status.FAILED


@pytest.mark.parametrize("name", NAMES)
def test_missing_evidence_is_unjudged(name: str) -> None:
    """What a check needs and does not find leaves it unjudged; no more is needed."""
    findings = {kind.__name__: ASKED[name](without(HEALTHY, kind)) for kind in KINDS}
    needed = EVIDENCE[name][0].split()

    assert {kind for kind, finding in findings.items() if finding.status is not Status.PASSED} == set(needed)
    for kind in needed:
        assert findings[kind].status is Status.UNJUDGED
        assert not findings[kind].expected
        assert findings[kind].detail == f"the trace holds no {kind} record"


@pytest.mark.parametrize("name", NAMES)
def test_evidence_of_a_failed_probe_is_not_relied_on(name: str) -> None:
    """Some of its records may be there and good; the ones that are not might have been bad."""
    kinds = tuple(EVIDENCE[name][0].split())
    failure = e.ProbeFailed(probe="SomeProbe", moment="end", error="ValueError: boom (probe.py:7)", kinds=kinds)
    finding = ASKED[name](adding(HEALTHY, failure))

    assert finding.status is Status.UNJUDGED
    assert not finding.expected
    assert finding.detail == "probe SomeProbe failed at end: ValueError: boom (probe.py:7)"


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_never_began_is_unjudged(name: str) -> None:
    """No attempt, or one that ended before its first record: no exception, and no word of an expected gap."""
    unavailable = Trace(HEALTHY.header, (Attempt(HEALTHY.main.start, (), None),))
    for trace in (Trace(HEALTHY.header, ()), unavailable):
        finding = ASKED[name](trace)
        assert (finding.status, finding.expected) == (Status.UNJUDGED, False)


@pytest.mark.parametrize("purpose", ["repeat", "resume"])
def test_a_second_attempt_that_was_not_made_is_unjudged(purpose: str) -> None:
    """The reason names the purpose."""
    rest = tuple(attempt for attempt in HEALTHY.attempts if attempt.start.purpose != purpose)
    finding = ASKED[f"{purpose}_equals"](Trace(HEALTHY.header, rest))
    assert (finding.status, finding.detail) == (
        Status.UNJUDGED,
        f"no attempt with the purpose {purpose!r} was made",
    )


@pytest.mark.parametrize("case", CANNOT_JUDGE)
def test_evidence_that_does_not_answer_is_unjudged(case: str) -> None:
    """Records are there, but not those that the question is about; the reason says so."""
    name, change, reason = CANNOT_JUDGE[case]
    finding = ASKED[name](change(HEALTHY))
    assert (finding.status, finding.expected) == (Status.UNJUDGED, False)
    assert reason in finding.detail


@pytest.mark.parametrize("name", NAMES)
def test_random_weights_leave_learning_unjudged(name: str) -> None:
    """What depends on learning is expected to be unjudged, all else passes, though the first loss is ln V."""
    uniform = math.log(49152)
    audit = having(e.EvaluationAudit, reported_loss=uniform, oracle_loss=uniform)
    evaluations = having(e.Evaluation, loss=uniform, logits_loss=uniform)
    trace = both(having(e.Weights, pretrained=False), evaluations, audit)(HEALTHY)
    finding = ASKED[name](trace)
    learning = name in (
        "first_loss_below_uniform",
        "loss_falls",
        "heldout_improves",
        "text_is_language",
        "canary_learned",
    )
    assert finding.status is (Status.UNJUDGED if learning else Status.PASSED)
    assert finding.expected is learning
    assert not learning or "the weights are random" in finding.detail


def test_the_healthy_run_starts_with_rate_0_and_no_gradient_in_a() -> None:
    """So no check takes the first step of a warm-up, or lora_A while B is zero, for a bug."""
    first = HEALTHY.all(e.Gradients)[0]
    assert (HEALTHY.steps[0].learning_rate, HEALTHY.all(e.Update)[0].moved) == (0.0, False)
    assert (first.zero, first.norms["lora_A"]) == (LORA_A, 0.0)


@pytest.mark.parametrize("skipped_steps", [1, 2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_steps_skipped_by_the_scaler_raise_no_alarm(name: str, skipped_steps: int) -> None:
    """fp16's loss scale starts high: the first steps overflow, are skipped, and the schedule waits for them."""
    finding = ASKED[name](healthy(precision="fp16", skipped_steps=skipped_steps))
    all_oracles_skipped = name == "accumulation_oracle" and skipped_steps == 3
    assert finding.status is (Status.UNJUDGED if all_oracles_skipped else Status.PASSED)
    assert finding.expected is all_oracles_skipped


@pytest.mark.parametrize(
    ("passed", "reported", "status"),
    [
        (0.0100, 0.0086, Status.PASSED),  # a healthy run on a busy machine
        (0.0200, 0.0151, Status.PASSED),
        (0.0200, 0.0100, Status.FAILED),
        (0.0100, 0.0025, Status.FAILED),
        (0.0080, 0.0079, Status.UNJUDGED),
        (0.0080, 0.0040, Status.UNJUDGED),
        (0.0080, 0.0800, Status.FAILED),
        (0.0080, NAN, Status.FAILED),
        (0.1000, 0.0880, Status.FAILED),
    ],
)
def test_short_steps_are_timed_as_finely_as_the_clocks_resolve(passed: float, reported: float, status: Status) -> None:
    """5 ms lie between the clocks at worst: below that nothing is told from steps that take as little."""
    trace = both(having(e.StepTimes, seconds=(passed,) * 6), having(e.Step, seconds=reported))(HEALTHY)
    finding = ASKED["seconds_reported"](trace)

    assert finding.status is status, finding.detail
    assert finding.expected is (status is Status.UNJUDGED)


def test_a_few_slow_lines_of_the_log_are_no_wrong_clock() -> None:
    """As measured on a 2-core machine under load: three steps of five were preempted between the clocks."""
    seconds = (0.1131, 0.1096, 0.1132, 0.1107, 0.1123)
    trace = having(e.StepTimes, seconds=seconds)(HEALTHY)
    for at, gap in enumerate((0.0328, 0.0059, 0.0352, 0.0073, 0.0245)):
        trace = with_record(trace, e.Step, at, seconds=seconds[at] - gap)

    assert ASKED["seconds_reported"](trace).passed


def test_a_check_that_cannot_see_anything_says_so() -> None:
    """Unjudged as expected, with the reason; what it can see it still judges."""
    alone = with_record(HEALTHY, e.DataSplit, train_rows=1)
    alone = with_record(alone, e.Window, 0, digests=lambda digests: digests[:1], rows=("train:0",))
    finding = ASKED["batches_differ"](alone)
    assert (finding.status, finding.expected) == (Status.UNJUDGED, True)
    assert finding.detail == "only one micro-batch in the first epoch: it has no other to equal"

    single = ASKED["accumulation_oracle"](with_record(HEALTHY, e.Gradients, micro_batch_tokens=(92,)))
    assert single.detail.endswith("one micro-batch in a window: averaging their means is undetectable")

    unclipped = ASKED["updates_match_adamw"](with_record(HEALTHY, e.Update, clipped=False))
    assert unclipped.passed
    assert "clipping is not testable" in unclipped.detail
    assert "clipping" not in ASKED["updates_match_adamw"](HEALTHY).detail

    for tokens in ((38,), (19, 19)):
        batches = ASKED["evaluation_oracle"](with_record(HEALTHY, e.EvaluationAudit, batch_tokens=tokens))
        assert "a mean of batch means is undetectable" in batches.detail
    assert "batch means" not in ASKED["evaluation_oracle"](HEALTHY).detail

    offloaded = ASKED["weights_change_only_in_steps"](with_run(HEALTHY, training={"offload": "parameters"}))
    assert (offloaded.status, offloaded.expected) == (Status.UNJUDGED, True)

    functional = ASKED["weight_gradients"](with_record(HEALTHY, e.WeightGradient, linears=0))
    assert (functional.status, functional.expected) == (Status.UNJUDGED, True)

    alike = ASKED["accumulation_oracle"](with_record(HEALTHY, e.Gradients, micro_batch_tokens=(46, 46)))
    assert alike.passed
    assert alike.detail.endswith("micro-batches of equal token counts: averaging their means is undetectable")
    assert "averaging" not in ASKED["accumulation_oracle"](HEALTHY).detail


def test_rounding_of_a_deep_model_is_no_wrong_gradient() -> None:
    """In 16 bit, errors of layers add up; in fp32 the limit is the same for every depth."""
    check = ASKED["accumulation_oracle"]
    in_bf16 = having(e.Setup, precision="bf16")(HEALTHY)
    off = having(e.Oracle, gradient_error=0.06, worst_gradient_error=0.1)
    for layers, passes in ((0, False), (6, False), (30, True)):
        deep = with_run(off(in_bf16), model={"architecture": {"num_hidden_layers": layers}})
        assert check(deep).passed is passes
        assert not check(with_run(off(HEALTHY), model={"architecture": {"num_hidden_layers": layers}})).passed


@pytest.mark.parametrize(
    "calls",
    [
        ("clear", "forward", "backward", "clip", "step", "schedule"),
        ("forward", "clear", "backward", "step"),
        ("forward", "backward", "step", "clear", "evaluate"),
        ("forward", "scale", "backward", "unscale", "clip", "skip", "clear"),
        ("forward", "backward", "clear", "edit", "step", "clear"),
        ("forward", "backward", "move", "clear", "forward", "backward", "edit", "step", "clear"),
        ("forward in eval mode", "backward", "step", "clear", "step of another optimizer"),
        ("idle step", "schedule", "forward", "backward", "step", "clear"),
        ("forward", "backward", "step of another optimizer", "clear", "forward", "backward", "step"),
    ],
    ids=" ".join,
)
def test_right_orders_of_calls_pass(calls: tuple[str, ...]) -> None:
    """As healthy trainings have them: cleared first or last, by micro-batches, fp16, a gradient of one's own."""
    assert ASKED["calls_in_order"](with_record(HEALTHY, e.CallOrder, calls=calls)).passed


def test_an_exception_in_the_order_of_calls_is_no_habit() -> None:
    """A bad batch is skipped in one step of six; where another pass looks at gradients, nothing is lost."""
    skipped = ("forward", "backward", "clear", "forward", "backward", "step", "clear")
    assert ASKED["calls_in_order"](with_record(HEALTHY, e.CallOrder, 3, calls=skipped)).passed
    alone = with_run(HEALTHY, training={"gradient_accumulation_steps": 1})
    assert ASKED["calls_in_order"](with_record(alone, e.CallOrder, calls=skipped)).passed
    assert not ASKED["calls_in_order"](with_record(HEALTHY, e.CallOrder, calls=skipped)).passed


@pytest.mark.parametrize("check", ["optimizer_coverage", "updates_match_adamw"])
@pytest.mark.parametrize("optimizer", ["AdamW", "AcceleratedAdamW", "AdamW8bit", ""])
def test_an_adamw_of_any_kind_is_not_named_as_another_optimizer(check: str, optimizer: str) -> None:
    """Nor is one without a name."""
    finding = ASKED[check](with_record(HEALTHY, e.Setup, optimizer=optimizer))
    assert finding.passed
    assert "the optimizer is" not in finding.detail


def test_updates_of_another_optimizer_name_it() -> None:
    """Before the numbers, which follow from it."""
    trace = both(having(e.Setup, optimizer="SGD"), having(e.Update, update_error=0.97))(HEALTHY)
    finding = ASKED["updates_match_adamw"](trace)
    assert finding.status is Status.FAILED
    assert finding.detail.startswith("the optimizer is SGD, configured AdamW; step 0: ")


def test_the_worst_is_never_hidden_behind_a_number() -> None:
    """NaN counts as infinity wherever it stands; the first of equals wins."""
    for values in ([NAN, 1.0], [1.0, NAN], [1.0, NAN, 2.0], [-math.inf, NAN]):
        assert math.isnan(worst_of(values, key=float))
    assert worst_of([1.0, 3.0, 2.0], key=float) == 3.0
    assert worst_of([("a", 1.0), ("b", 1.0)], key=lambda pair: pair[1]) == ("a", 1.0)


def test_calls_of_a_gpu_time_nothing() -> None:
    """They return before their work is done, so the trainer's own events are not held against them."""
    finding = ASKED["seconds_reported"](with_record(HEALTHY, e.Setup, device="cuda:0"))
    assert (finding.status, finding.expected) == (Status.UNJUDGED, True)


def test_a_fourth_skipped_step_is_an_alarm() -> None:
    """The grace has an end."""
    finding = ASKED["steps_applied"](healthy(precision="fp16", skipped_steps=4))
    assert (finding.status, finding.measured, finding.limit) == (Status.FAILED, 4, 3)


OWN_LIMITS = (
    "max_error_16bit",
    "max_error_own_logits",
    "max_moment_error_fp32",
    "max_length_error",
    "min_digits",
    "max_gain_ulps",
    "max_product_gain",
    "min_agreement",
)
"""Limits of what a check compares in a 16-bit run, where it has them."""
ROUNDING: dict[str, Change] = {
    "forward_matches_architecture": having(e.ForwardReference, error=4e-3),
    "rows_isolated": having(e.ForwardPaths, padding_difference=4e-3, other_row_difference=2e-3),
    "adapter_algebra": having(e.AdapterStart, algebra_error=4e-3),
    "loss_oracle": having(e.Oracle, loss=times(1 + 2e-3)),
    "accumulation_oracle": having(e.Oracle, gradient_error=1e-2, worst_gradient_error=8e-2),
    "generation_is_greedy": having(e.Generation, logit_difference=5e-3),
    "evaluation_oracle": having(e.EvaluationAudit, oracle_loss=times(1 + 2e-3)),
    "resume_equals": both(
        having(e.Step, purpose="resume", loss=times(1 + 1e-4)),
        lambda trace: with_record(trace, e.Step, 0, purpose="repeat", loss=times(1 + 1e-4)),  # else it must be exact
    ),
}
"""What bf16, with its relative resolution of 2^-8, does to a healthy run."""


@pytest.mark.parametrize(
    ("dora", "difference", "passes"), [(True, 5e-3, True), (True, 0.3, False), (False, 5e-3, False)]
)
def test_a_magnitude_over_its_norm_is_1_rounded(dora: bool, difference: float, passes: bool) -> None:
    """DoRA's adapted linears are off by that in bf16, from their start; others by nothing."""
    trace = with_record(
        healthy(precision="bf16"), e.AdapterStart, start_difference=difference, base_difference=difference
    )
    assert CHECKS["adapters_start_neutral"]()(with_run(trace, lora={"use_dora": dora})).passed is passes


def test_a_kernel_rounds_as_it_is_declared_to_compute() -> None:
    """A script may load its base in fp32 and have it compute in bf16; TRL has the adapters in bf16."""
    rounded = having(e.Quantization, kernel_error=4e-3)(HEALTHY)
    computes_in_16_bit = having(e.Quantization, compute_dtypes={"bfloat16": 14})(rounded)
    multiplies_16_bit = having(e.Setup, precision="bf16")(rounded)

    assert ASKED["kernel_agrees"](rounded).status is Status.FAILED
    assert ASKED["kernel_agrees"](computes_in_16_bit).status is Status.PASSED
    assert ASKED["kernel_agrees"](multiplies_16_bit).status is Status.PASSED


@pytest.mark.parametrize("name", ROUNDING)
def test_rounding_of_bf16_passes_in_bf16_alone(name: str) -> None:
    """The same error is rounding in 16 bit and a bug in fp32."""
    assert ASKED[name](ROUNDING[name](healthy(precision="bf16"))).status is Status.PASSED
    assert ASKED[name](ROUNDING[name](HEALTHY)).status is Status.FAILED


@pytest.mark.parametrize("check", NUMERIC.values(), ids=list(NUMERIC))
def test_a_bug_is_found_in_bf16_too(check: NumericCheck) -> None:
    """The wider limit still tells rounding from a bug."""
    findings = [check(change(healthy(precision="bf16"))) for change in FAULTS[check.key()].values()]
    assert Status.FAILED in {finding.status for finding in findings}
    limits = {getattr(check, name, None) for name in OWN_LIMITS}
    if isinstance(check, CHECKS["accumulation_oracle"]):
        limits.add(check.worst_tensor_factor * check.max_error_16bit)
    assert {finding.limit for finding in findings} <= {*limits, None, 0, "3 to 5"}


def test_rounding_is_tried_on_every_check_that_allows_it() -> None:
    """The others with limits by precision compare bits, what is fp32 in a run of any precision, or what is declared."""
    wider = {name for name, check in NUMERIC.items() if check.max_error_16bit > check.max_error_fp32}
    assert set(ROUNDING) == wider - {"kernel_agrees"}
    alike = {"adapters_start_neutral", "adapter_round_trip", "gradient_norm_reported", "updates_match_adamw"}
    assert set(NUMERIC) - set(ROUNDING) == {*alike, "kernel_agrees"}


FP32_IN_BF16: dict[str, Change] = {
    "loss_oracle": having(e.Step, loss=times(1 + 2e-4)),
    "accumulation_oracle": having(e.OwnLoss, gradient_error=6e-4),
    "gradient_norm_reported": having(e.Step, gradient_norm=times(1 + 2e-4)),
    "updates_match_adamw": having(e.Update, moment_error=1e-3),
    "evaluation_oracle": having(e.Evaluation, loss=times(1 + 2e-4)),
    "forward_matches_architecture": having(e.ForwardReference, fp32_error=2e-4, fp32_error_at="norm"),
}
"""Errors above fp32's rounding of what is fp32 in a bf16 run too."""
WEIGHTS_16BIT = asking(lora={"adapter_dtype": "model"})


@pytest.mark.parametrize("name", FP32_IN_BF16)
def test_what_is_fp32_in_a_bf16_run_has_fp32s_limits(name: str) -> None:
    """So a bug in it is found whatever the model computes in."""
    finding = ASKED[name](FP32_IN_BF16[name](healthy(precision="bf16")))

    assert finding.status is Status.FAILED
    assert finding.measured > finding.limit


@pytest.mark.parametrize(
    ("name", "kind", "field"),
    [
        ("loss_oracle", e.OwnLoss, "loss"),
        ("accumulation_oracle", e.OwnLoss, "gradient_error"),
        ("evaluation_oracle", e.Evaluation, "logits_loss"),
        ("updates_match_adamw", e.Update, "length_error"),
        ("forward_matches_architecture", e.ForwardReference, "fp32_error"),
    ],
)
def test_nan_of_what_a_trace_may_lack_fails(name: str, kind: type, field: str) -> None:
    """None is no evidence, NaN is bad evidence."""
    assert ASKED[name](having(kind, **{field: NAN})(healthy(precision="bf16"))).status is Status.FAILED


@pytest.mark.parametrize("name", ["gradient_norm_reported", "updates_match_adamw"])
def test_weights_in_16_bit_have_wider_limits(name: str) -> None:
    """With adapter_dtype: model gradients, averages and updates are 16 bit themselves."""
    assert ASKED[name](WEIGHTS_16BIT(FP32_IN_BF16[name](healthy(precision="bf16")))).status is Status.PASSED


@pytest.mark.parametrize("name", ["loss_oracle", "accumulation_oracle", "evaluation_oracle"])
def test_traces_without_the_trainers_own_logits_are_judged_by_the_rest(name: str) -> None:
    """The probe did not look, or the logits could not be assigned to the rows."""
    unseen = both(lambda trace: without(trace, e.OwnLoss), having(e.Evaluation, logits_loss=None, model_repeats=None))
    unknown = having(e.OwnLoss, loss=None, gradient_error=None)
    for change in (unseen, both(unknown, having(e.Evaluation, logits_loss=None))):
        assert ASKED[name](change(HEALTHY)).passed
        loss_is_off = both(having(e.Step, loss=times(1 + 2e-4)), having(e.Evaluation, loss=times(1 + 2e-4)))
        assert ASKED[name](loss_is_off(change(healthy(precision="bf16")))).passed


HARMLESS: dict[str, tuple[str, Change]] = {
    "norms in fp32, rounded to bf16": (
        "forward_matches_architecture",
        both(having(e.Setup, precision="bf16"), having(e.ForwardReference, gain_error=4.1e-4, gain_error_at="norm")),
    ),
    "the rounding of a 4-bit product": (
        "forward_matches_architecture",
        having(e.ForwardReference, product_gain_error=6e-4, product_gain_error_at="layers.0.mlp.up_proj"),
    ),
    "a stall between the clocks": ("seconds_reported", having(e.Step, 2, seconds=0.4)),
    "norms and biases without decay, as configured": (
        "optimizer_coverage",
        both(
            asking(training={"weight_decay": 0.1, "weight_decay_on": "all_but_norms_and_biases"}),
            having(e.Census, trainable=(*LORA, "norm.weight"), optimized=(*LORA, "norm.weight")),
            having(e.Census, weight_decays={"0.1": 8, "0.0": 1}, undecayed=("norm.weight",)),
        ),
    ),
    "a rounding of single elements": (
        "updates_match_adamw",
        having(e.Update, update_error=3e-4, length_error=2e-6),
    ),
    "a decay of 0, written as a whole number": ("optimizer_coverage", having(e.Census, weight_decays={"0": 8})),
    "near ties in 16 bit": ("generation_is_greedy", having(e.Generation, greedy_agreement=0.93)),
    "fewer tensors": ("live_tensors_flat", having(e.LiveTensors, 2, tensors=230)),
    "the sum of three losses": ("live_tensors_flat", having(e.LiveTensors, 2, graphs=3)),
    "one tensor in two steps": ("live_tensors_flat", having(e.LiveTensors, 2, tensors=243)),
    "a schedule's last steps at 0": ("steps_applied", idle(4, 5)),
    "a warm-up's first steps at 0": ("steps_applied", idle(0, 1, 2)),
    "two restarts": ("steps_applied", idle(2, 4, 5)),
    "the best weights kept once": ("live_tensors_flat", having(e.LiveTensors, 2, tensors=250, copies=1, copied=8)),
    "more released than taken": ("memory_returned", having(e.Released, bytes=-4096)),
    "CPU asked for": ("device_as_configured", asking(device="cpu")),
    "overflow skipped": (
        "finite",
        both(having(e.Step, 1, applied=False, gradient_norm=math.inf), having(e.Gradients, 1, nonfinite=LORA)),
    ),
    "checkpointing asked for": (
        "checkpointing_as_configured",
        both(asking(training={"gradient_checkpointing": True}), having(e.LayerCalls, calls=8)),
    ),
    "DoRA's norms are fp32": (
        "dtypes_as_configured",
        both(
            having(e.Setup, precision="bf16"),
            having(e.Census, frozen_dtypes={"bfloat16": 6, "uint8": 14}),
            having(e.Quantization, compute_dtypes={"bfloat16": 14}),
            having(e.LayerCalls, hidden_dtypes=("bfloat16",), product_dtypes=("bfloat16",)),
            having(e.LayerCalls, adapter_dtypes=("bfloat16", "float32")),
            asking(lora={"adapter_dtype": "mixed", "use_dora": True}),
        ),
    ),
    "parts of a position more": (
        "checkpointing_as_configured",
        both(asking(training={"loss_chunk_tokens": 32}), having(e.LayerCalls, head_tokens=34)),
    ),
    "fp4 is coarser": (
        "base_matches_file",
        both(asking(quantization={"quant_type": "fp4"}), having(e.BaseFidelity, weight_errors={"largest": 0.15})),
    ),
    "nothing quantised": (
        "base_matches_file",
        both(asking(quantization=None), having(e.BaseFidelity, weight_errors={}, worst_weight="")),
    ),
    "a second epoch": (
        "batches_differ",
        both(having(e.DataSplit, train_rows=6), having(e.Window, 3, digests=HEALTHY.all(e.Window)[0].digests)),
    ),
}
"""What a correct trainer does now and then."""


@pytest.mark.parametrize("case", HARMLESS)
def test_harmless_differences_raise_no_alarm(case: str) -> None:
    """A false alarm costs more trust than a missed bug."""
    name, change = HARMLESS[case]
    assert ASKED[name](change(HEALTHY)).status is Status.PASSED


def test_a_fallback_to_the_cpu_is_no_failure_and_is_told() -> None:
    """Out of memory on the GPU, then trained on the CPU as the run allows."""
    start = e.AttemptStart(purpose="train", device="cuda:0", reason="asked for", changes={})
    gpu = Attempt(start, (), e.AttemptEnd(outcome="out_of_memory", detail="8 GiB", seconds=3.0))
    cpu = having(e.AttemptStart, reason="out of memory on the GPU")(asking(device="cuda", fallback=["cpu"])(HEALTHY))
    finding = ASKED["device_as_configured"](Trace(cpu.header, (gpu, *cpu.attempts)))
    assert finding.status is Status.PASSED
    assert finding.detail == "configured cuda, ran on cpu after: out of memory on the GPU"


def test_every_check_is_in_the_table() -> None:
    """Under its own name: a class that is not there is asked of nobody."""
    declared = {
        value
        for module in pkgutil.iter_modules(tunecheck.checks.__path__, "tunecheck.checks.")
        for value in vars(importlib.import_module(module.name)).values()
        if isinstance(value, type) and issubclass(value, Check) and not inspect.isabstract(value)
        if value.__module__ == module.name
    }
    assert declared == set(CHECKS.values())
    for name, check in CHECKS.items():
        assert check.__name__ == name.title().replace("_", "")
        assert name not in ASKED or ASKED[name].key() == name


def _explained(owner: type) -> set[str]:
    """Return the limits of this class that a docstring or a comment explains."""
    source = inspect.getsource(owner)
    [declared] = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    return {
        field.target.id
        for field, after in zip(declared.body, declared.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(after, ast.Expr) or "#" in source.splitlines()[field.lineno - 1]
    }


@pytest.mark.parametrize("name", CHECKS)
def test_every_check_explains_itself_and_its_limits(name: str) -> None:
    """Question, meaning and remedy, and a word on each limit; those by precision have it in the base."""
    assert (CHECKS[name].__doc__ or "").strip()
    assert len(CHECKS[name].meaning) > 20
    assert len(CHECKS[name].remedy) > 20
    inherited = {field.name for field in dataclasses.fields(NumericCheck)}
    explained = {limit for owner in CHECKS[name].__mro__ if issubclass(owner, Check) for limit in _explained(owner)}
    assert {field.name for field in dataclasses.fields(CHECKS[name])} - inherited <= explained


def test_asked_of_leaves_out_what_does_not_apply() -> None:
    """No adapters, no quantisation, nothing opted in: the rest, in the table's order."""
    asked = asked_of({"unknown_rows"}, {})
    wanted = [name for name, check in CHECKS.items() if check.features() <= {"unknown_rows"}]
    assert list(asked) == wanted
    assert not {"trainable_moved", "finite"} - set(asked)
    assert not {"adapter_algebra", "kernel_agrees", "repeat_equals", "canary_learned", "loss_falls"} & set(asked)


def test_a_rate_of_zero_in_every_step_trains_nothing() -> None:
    """Also where it is the declared one, as of a schedule that has ended."""
    ended = having(e.Step, learning_rate=0.0)(having(e.Update, expected_learning_rate=0.0)(HEALTHY))
    finding = CHECKS["trainable_moved"]()(ended)
    assert finding.status is Status.FAILED
    assert "learning rate above zero" in finding.detail


def test_a_group_without_a_rate_is_named() -> None:
    """What lies in it does not move, in 16-bit weights too, where rounding would explain others."""
    moved = HEALTHY.one(e.Movement)
    names = moved.unmoved or tuple(HEALTHY.one(e.Census).trainable[:1])
    resting = having(e.Movement, unmoved=names, without_rate=names)(HEALTHY)
    assert "whose rate is 0 in every step" in CHECKS["trainable_moved"]()(resting).detail


def test_asked_of_takes_limits_and_off() -> None:
    """A limit replaces the default, off removes the check, a named opt-in check is asked."""
    assert "finite" in asked_of((), {"finite": None})  # a YAML key without a value
    asked = asked_of((), {"matmul_precision": {"max_error": 1e-3}, "finite": "off", "loss_falls": {"min_fall": 0.3}})
    assert asked["matmul_precision"](having(e.ForwardPaths, matmul_error=5e-4)(HEALTHY)).status is Status.PASSED
    assert "finite" not in asked
    assert asked["loss_falls"](HEALTHY).limit == 0.3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("loss_fall", "no check is called 'loss_fall' (did you mean 'loss_falls'?)"),
        ("zzz", "no check is called 'zzz'; `tunecheck explain` lists all"),
        ("kernel_agrees", "check 'kernel_agrees' does not apply to this run: it has no quantized"),
    ],
)
@pytest.mark.parametrize("setting", [{}, "off"], ids=["limits", "off"])
def test_asked_of_refuses_what_cannot_be_asked(name: str, message: str, setting: object) -> None:
    """A wrong name would otherwise be a check that is silently not asked."""
    with pytest.raises(ValueError, match="check") as caught:
        asked_of((), {name: setting})
    assert str(caught.value).startswith(message)


def test_asked_of_names_every_problem() -> None:
    """Not only the first."""
    with pytest.raises(ValueError, match=r"no check is called 'zzz'.*; check 'kernel_agrees' does not apply"):
        asked_of((), {"zzz": {}, "kernel_agrees": {}})


def test_some_names_the_first_and_counts_the_rest() -> None:
    """For a sentence, whatever the number of tensors."""
    assert some(LORA[:2]) == f"{LORA[0]}, {LORA[1]}"
    assert some(["a", "b", "c", "d", "e", "f"]) == "a, b, c, d and 2 more"
    assert some(()) == ""


def test_a_gradient_that_is_not_the_losss_own_is_found() -> None:
    """By the slope of the loss, in fp32 arithmetic in every run, and a run that did not measure it is not passed."""
    check = CHECKS["gradient_matches_loss"]()
    seen = e.LayerGradients(layers=2, error=2e-5, worst=1)
    measured = adding(with_record(HEALTHY, e.Oracle, 1, directional_error=2e-4), seen)

    assert check(measured).passed
    for wrong in (0.4, NAN):
        finding = check(with_record(measured, e.LayerGradients, error=wrong))
        assert finding.status is Status.FAILED
        assert "layer 1 alone differs" in finding.detail
    assert check(without(measured, e.LayerGradients)).status is Status.UNJUDGED
    for wrong in (0.012, NAN):
        finding = check(with_record(measured, e.Oracle, 1, directional_error=wrong))
        assert finding.status is Status.FAILED
        assert "step 2: the slope of the loss differs" in finding.detail
    in_bf16 = with_record(measured, e.Setup, precision="bf16")
    assert check(in_bf16).passed
    assert check(with_record(in_bf16, e.Oracle, 1, directional_error=0.012)).status is Status.FAILED
    dora = with_run(with_record(measured, e.Oracle, 1, directional_error=0.01), lora={"use_dora": True})
    assert check(dora).passed  # its gradient is not the loss's own by definition
    assert check(with_record(dora, e.LayerGradients, error=0.4)).status is Status.FAILED
    assert check(HEALTHY).detail == "the slope of the loss was not measured"
    assert check(without(HEALTHY, e.Oracle)).status is Status.UNJUDGED


def test_a_recomputation_that_computes_something_else_is_found() -> None:
    """In either precision; a run without gradient checkpointing is not asked."""
    check = CHECKS["recomputation_equals"]()
    seen = e.Recomputation(layers=2, gradient_error=0.0, repeat_error=0.0)

    assert check(adding(HEALTHY, seen)).passed
    for precision, wrong in (("fp32", 1e-4), ("bf16", 0.1), ("fp32", NAN)):
        finding = check(adding(healthy(precision=precision), dataclasses.replace(seen, gradient_error=wrong)))
        assert finding.status is Status.FAILED
        assert f"with 2 layers recomputed the gradient is {wrong:.3g} off" in finding.detail
    for repeat, wrong, passed in ((0.0, 1e-4, False), (1e-4, 3e-4, True), (1e-4, 5e-4, False), (NAN, 0.0, False)):
        noisy = dataclasses.replace(seen, gradient_error=wrong, repeat_error=repeat)
        assert check(adding(healthy(precision="bf16"), noisy)).passed is passed
    assert check(HEALTHY).status is Status.UNJUDGED
    assert "recomputation_equals" not in ASKED


def test_a_copy_of_a_weight_that_does_not_follow_is_found() -> None:
    """In either precision; a run whose base is frozen is not asked."""
    check = CHECKS["weights_in_use"]()
    seen = e.CurrentWeights(modules=31, error=4e-7, worst="model.layers.3.mlp.down_proj")

    assert check(adding(HEALTHY, seen)).passed
    for precision, wrong in (("fp32", 1e-3), ("bf16", 1.0), ("fp32", NAN), ("fp32", math.inf)):
        finding = check(adding(healthy(precision=precision), dataclasses.replace(seen, error=wrong)))
        assert finding.status is Status.FAILED
        assert "31 trained modules: model.layers.3.mlp.down_proj" in finding.detail
    for error in (0.0, NAN):
        assert check(adding(HEALTHY, dataclasses.replace(seen, modules=0, error=error))).status is Status.UNJUDGED
    assert check(HEALTHY).status is Status.UNJUDGED
    assert "weights_in_use" not in ASKED


def test_dropout_that_draws_the_same_again_is_found() -> None:
    """The random state differs at every step in a healthy run; a run without dropout is not asked."""
    check = CHECKS["dropout_varies"]()
    together = {"neighbours": (500, 340), "siblings": (480, 320)}
    seen = e.AdapterDropout(pairs=1000, dropped=204, alone=183, odd=0, **together, base_untouched=True)
    dropping = adding(with_run(HEALTHY, lora={"dropout": 0.1}), seen)
    reseeded = with_record(dropping, e.Window, random_state="5eed")

    assert check(dropping).passed
    assert check(reseeded).status is Status.FAILED
    assert "6 steps, 5 of them" in check(reseeded).detail
    assert check(without(dropping, e.Window)).status is Status.UNJUDGED
    assert check(without(dropping, e.AdapterDropout)).status is Status.UNJUDGED
    assert check(with_run(without(dropping, e.AdapterDropout), lora={"use_dora": True})).passed
    assert check(with_record(dropping, e.AdapterDropout, pairs=0)).expected
    for wrong, told in (
        ({"dropped": 400, "alone": 320}, "20.0% of the input dropped, 10% configured"),
        ({"dropped": 200, "alone": 0}, "elements are not dropped independently"),
        ({"odd": 12}, "12 of 1000 pairs do not match kept elements scaled"),
        ({"neighbours": (500, 500)}, "in 100% of the positions two tokens agree, 67% by chance"),
        ({"siblings": (480, 480)}, "in 100% of the positions two adapters agree, 67% by chance"),
        ({"base_untouched": False}, "the base layer does not receive the input"),
    ):
        finding = check(with_record(dropping, e.AdapterDropout, **{"dropped": 204, "alone": 183, **wrong}))
        assert finding.status is Status.FAILED
        assert told in finding.detail
    assert "dropout_varies" not in ASKED


def test_a_trace_that_breaks_off_is_no_failed_training() -> None:
    """Whoever killed the session says nothing about the steps."""
    main = HEALTHY.main
    broken = Trace(HEALTHY.header, (Attempt(main.start, main.records, None), *HEALTHY.attempts[1:]))

    finding = ASKED["steps_applied"](broken)

    assert finding.status is Status.UNJUDGED
    assert "the trace is truncated: 6 of 6 steps" in finding.detail


@pytest.mark.parametrize(("skipped", "status"), [(0, Status.UNJUDGED), (4, Status.FAILED)])
def test_a_crash_in_the_trainer_is_no_failure_of_its_steps(skipped: int, status: Status) -> None:
    """It is an error of its own; what was wrong with the steps before it stays wrong."""
    trace = asking(training={"max_steps": 12})(healthy(precision="fp16", skipped_steps=skipped))
    end = dataclasses.replace(trace.main.end, outcome="failed", detail="RuntimeError: boom (trainer.py:7)")
    crashed = Trace(trace.header, (Attempt(trace.main.start, trace.main.records, end),))

    assert ASKED["steps_applied"](crashed).status is status


def test_shapes_that_are_not_known_leave_the_count_unjudged() -> None:
    """As expected: no arithmetic is there to hold it against."""
    finding = ASKED["parameters_counted"](with_record(HEALTHY, e.Census, expected_parameters=None))
    assert (finding.status, finding.expected) == (Status.UNJUDGED, True)
    assert "the parameter count of this architecture is not known" in finding.detail


def test_random_weights_may_be_a_little_worse_than_a_guess() -> None:
    """By the variance of their logits, and no more."""
    check, random = ASKED["perplexity_below_vocabulary"], with_record(HEALTHY, e.Weights, pretrained=False)
    uniform = math.log(49152)
    assert check(with_record(random, e.Evaluation, loss=1.04 * uniform)).passed
    assert not check(with_record(random, e.Evaluation, loss=1.06 * uniform)).passed
    assert not check(with_record(HEALTHY, e.Evaluation, loss=1.01 * uniform)).passed


@pytest.mark.parametrize(
    ("architecture", "loss", "passes"),
    [
        ({"vocab_size": 32000, "hidden_size": 4096}, 11.155, True),  # measured: LLaMA-7B's width, two layers
        ({"vocab_size": 32000, "hidden_size": 4096}, 11.62, False),
        ({"vocab_size": 32000, "hidden_size": 4096, "initializer_range": 0.01}, 11.155, False),
        ({"vocab_size": 512, "hidden_size": 64}, 1.04 * math.log(512), True),
        ({"vocab_size": 512, "hidden_size": 64}, 1.06 * math.log(512), False),
    ],
)
def test_a_wide_models_random_weights_may_be_worse_by_the_variance_of_their_logits(architecture, loss, passes) -> None:
    """Half of width x initializer_range^2 is expected."""
    check, random = ASKED["perplexity_below_vocabulary"], with_record(HEALTHY, e.Weights, pretrained=False)
    shaped = with_run(random, model={"architecture": {**random.settings["model"]["architecture"], **architecture}})

    assert check(with_record(shaped, e.Evaluation, loss=loss)).passed is passes


FOREIGN = with_record(HEALTHY, e.Evaluation, 0, loss=12.4, logits_loss=12.4, plain_loss=4.1)
"""The first evaluation of rows that no model knows: 12.4 nats, above ln V = 10.8; a plain row is told well."""


@pytest.mark.parametrize("check", ["first_loss_below_uniform", "perplexity_below_vocabulary"])
@pytest.mark.parametrize(
    ("change", "passes"),
    [
        ({}, True),
        ({"plain_loss": 10.9}, False),  # other weights, or another model's tokenizer: English is foreign, too
        ({"plain_loss": None}, False),
        ({"plain_loss": math.nan}, False),
        ({"logits_loss": 4.6}, False),  # the rows are told well: it is the evaluation that is wrong
        ({"logits_loss": None}, False),
        ({"loss": math.inf, "logits_loss": math.inf, "plain_loss": math.inf}, False),
    ],
)
def test_rows_that_no_model_knows_may_begin_above_a_guess(check, change, passes) -> None:
    """Emoji or one-letter codes; what else makes a first loss high also makes that of a plain row high."""
    assert ASKED[check](with_record(FOREIGN, e.Evaluation, 0, **change)).passed is passes


@pytest.mark.parametrize(("loss", "passes"), [(11.9, True), (13.5, True), (13.8, False), (math.inf, False)])
def test_rows_that_no_model_knows_must_not_be_told_worse_and_worse(loss, passes) -> None:
    """From where they began; the other split is held to a guess as ever."""
    check = ASKED["perplexity_below_vocabulary"]
    later = with_record(FOREIGN, e.Evaluation, 2, loss=loss)

    assert FOREIGN.all(e.Evaluation)[0].split == FOREIGN.all(e.Evaluation)[2].split
    assert check(later).passed is passes
    assert not check(with_record(FOREIGN, e.Evaluation, 3, loss=11.9)).passed


@pytest.mark.parametrize(("enlarged", "passes"), [(3e-3, True), (0.0, False), (None, False), (math.nan, False)])
def test_an_adapter_below_the_logits_last_place_is_applied(enlarged, passes) -> None:
    """At a tiny rate in bf16; one that is switched off or was never trained adds nothing however large."""
    tiny = with_record(HEALTHY, e.AdapterEffect, difference=0.0, enlarged_difference=enlarged)
    assert ASKED["adapters_applied"](tiny).passed is passes


@pytest.mark.parametrize(
    ("rates", "unmoved", "status"),
    [
        ((1e-7, 0.0), LORA_A, Status.UNJUDGED),
        ((1e-7, 1e-7), LORA_A, Status.FAILED),
        ((1e-7, 0.0), (*LORA_A, LORA_B[0]), Status.FAILED),
    ],
)
def test_a_stands_still_until_b_has_moved(rates, unmoved, status) -> None:
    """Its gradient is a product with B, which is zero: weight decay alone moves it in the first step."""
    trace = with_record(HEALTHY, e.Step, learning_rate=0.0)
    for at, rate in enumerate(rates):
        trace = with_record(trace, e.Step, at, learning_rate=rate)
    still = with_record(trace, e.Movement, unmoved=unmoved, smallest_moved_share=0.0)
    assert ASKED["trainable_moved"](still).status is status


def test_a_short_answer_may_be_one_token() -> None:
    """Repetition says nothing of it."""
    short = with_record(HEALTHY, e.Generation, tokens=2, most_frequent_share=1.0)
    assert ASKED["text_is_language"](short).passed


@pytest.mark.parametrize(
    ("times", "words"),
    [(2.0, ": 2.00 times, and the step has 2 micro-batches"), (0.5, ": 1/2.00 of it, and the step has 2"), (1.3, "")],
)
def test_a_wrong_loss_that_is_a_multiple_says_of_what(times: float, words: str) -> None:
    """A ratio that is no count of the step's is not named."""
    oracle = HEALTHY.all(e.Oracle)[0]
    records = tuple(
        replace(seen, loss=times * oracle.loss)
        if isinstance(seen, e.Step) and seen.step == oracle.step
        else replace(seen, micro_batch_tokens=(7, 9))
        if isinstance(seen, e.Gradients)
        else seen
        for seen in HEALTHY.main.records
    )
    trace = Trace(HEALTHY.header, (replace(HEALTHY.main, records=records), *HEALTHY.attempts[1:]))
    detail = ASKED["loss_oracle"](trace).detail
    assert words in detail
    assert bool(words) == (" times" in detail or "/2.00" in detail)


def test_updates_of_another_declared_optimizer_are_unjudged_with_the_reason():
    """A trainer with an optimizer of its own is not held to AdamW's formula; a run cannot know better than it."""
    other = with_record(HEALTHY, e.Setup, optimizer="Lion", declared_optimizer="Lion")
    other = with_record(other, e.Census, adam_settings={"none": 8})

    finding = ASKED["updates_match_adamw"](with_run(other, trainer="lion"))

    assert finding.expected
    assert finding.detail == "the trainer declares Lion, whose update rule differs from AdamW"
    assert ASKED["optimizer_coverage"](other).passed
