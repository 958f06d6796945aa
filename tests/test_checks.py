"""Every check passes on a healthy trace, fails on the traces of real bugs, and leaves unjudged what it cannot know."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from traces import LINEARS, LORA, LORA_A, LORA_B, RUN, adding, healthy, with_record, with_run, without

import suite.checks
from suite import evidence as e
from suite.check import Check, NumericCheck, some
from suite.checks import CHECKS, asked_of
from suite.evidence import RECORDS, Record
from suite.finding import Status
from suite.trace import Attempt, Trace

Change = Callable[[Trace], Trace]
HEALTHY = healthy()
ASKED = asked_of(RUN.features, RUN.checks)
"""All checks, the opt-in ones with the limits of the made-up run."""
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


def times(factor: float) -> Callable[[float], float]:
    """For a value that comes out this many times too large."""
    return lambda value: value * factor


def gradient_norms(lora_a: float, lora_b: float) -> dict[str, Any]:
    """Gradients of these norms, none missing."""
    return {"norms": {"lora_A": lora_a, "lora_B": lora_b}, "zero": ()}


FAULTS: dict[str, dict[tuple[str, str], Change]] = {
    "device_as_asked": {
        ("silently on the CPU", "asked for cuda, ran on cpu"): asking(device="cuda"),
        ("the head left behind", "'meta': 1"): having(e.Census, devices={"cpu": 29, "meta": 1}),
        ("optimizer state elsewhere at the end", "'cuda:0': 16"): having(
            e.Census, 2, devices={"cpu": 14, "cuda:0": 16}
        ),
    },
    "dtypes_as_asked": {
        ("dtype ignored", "start: frozen tensors in {'bfloat16': 6}"): having(e.Census, frozen_dtypes={"bfloat16": 6}),
        ("upcast for k-bit training", "frozen tensors in {'float32': 6}"): both(
            having(e.Setup, precision="bf16"), having(e.Census, frozen_dtypes={"float32": 6, "uint8": 14})
        ),
        ("compute dtype not passed", "4-bit linears compute in {'bfloat16': 14}"): having(
            e.Quantization, compute_dtypes={"bfloat16": 14}
        ),
        ("adapters in 16 bit", "trained tensors in {'bfloat16': 8}"): having(
            e.Census, trainable_dtypes={"bfloat16": 8}
        ),
    },
    "attention_as_asked": {
        ("eager took over", "the layers call eager"): having(e.ForwardPaths, attention="eager"),
        ("flash not installed", "call sdpa"): asking(training={"attention": "flash_attention_2"}),
    },
    "checkpointing_as_asked": {
        ("silently off", "4 layer forwards"): asking(training={"gradient_checkpointing": True}),
        ("silently on", "8 layer forwards"): having(e.LayerCalls, calls=8),
        ("no layer found", "0 layers"): having(e.LayerCalls, layers=0, calls=0),
    },
    "trainable_set": {
        ("one layer missed", f"start: 4 of 8 not trainable: {LORA[4]}"): having(e.Census, trainable=LORA[:4]),
        ("loaded frozen", "8 of 8 not trainable"): having(e.Census, trainable=()),
        ("unfrozen by an evaluation", "end: 1 trainable that should not be: model.norm.weight"): having(
            e.Census, 2, trainable=(*LORA, "model.norm.weight")
        ),
        ("nothing expected", "0 of"): having(e.Census, expected_trainable=(), trainable=(), trainable_parameters=0),
    },
    "optimizer_coverage": {
        ("built before wrapping", "4 tensors in the optimizer are not the model's"): having(
            e.Census, optimized=(*LORA[:4], *"????")
        ),
        ("empty", f"8 trainable tensors are not in the optimizer: {LORA[0]}"): having(e.Census, optimized=()),
        ("frozen tensor in it", "frozen tensors are in the optimizer: head"): having(
            e.Census, optimized=(*LORA, "head")
        ),
        ("one held twice", f"held more than once: {LORA[0]}"): having(e.Census, optimized=(*LORA, LORA[0])),
        ("decay of AdamW's default", "weight decay 0.01, configured 0.0"): having(e.Census, weight_decays={"0.01": 8}),
    },
    "quantization_as_asked": {
        ("bypassed", f"14 of 14 linears are not 4-bit: {LINEARS[0]}"): having(
            e.Quantization, quantized_modules=(), quant_types={}, block_sizes={}, packed_bytes=0, expected_bytes=0
        ),
        ("a layer left out", f"7 of 14 linears are not 4-bit: {LINEARS[7]}"): having(
            e.Quantization, quantized_modules=LINEARS[:7]
        ),
        ("head quantised", "should not be: lm_head"): having(e.Quantization, quantized_modules=(*LINEARS, "lm_head")),
        ("library's default type", "type {'fp4': 14}, configured nf4"): having(e.Quantization, quant_types={"fp4": 14}),
        ("block size ignored", "block size {'128': 14}"): having(e.Quantization, block_sizes={"128": 14}),
        ("no double quantisation", "double quantisation"): having(e.Quantization, double_quant={"False": 14}),
        ("statistics unpacked", "4,000,000 bytes packed, 3,666,568"): having(e.Quantization, packed_bytes=4_000_000),
    },
    "base_matches_file": {
        ("initialised after loading", "1 of 20 tensors are not the file's: norm"): having(
            e.BaseFidelity, differing=("norm",)
        ),
        ("rotary buffer of noise", "inv_freq"): having(e.BaseFidelity, buffers_differing=("rotary_emb.inv_freq",)),
        ("head untied", "the head is not tied"): having(e.BaseFidelity, tied=False),
        ("blocks shifted", "q_proj.weight differs from the file by 0.220"): having(
            e.BaseFidelity, weight_errors={"smallest": 0.09, "median": 0.21, "largest": 0.22}
        ),
        ("nothing compared", "0 tensors"): having(e.BaseFidelity, tensors=0),
    },
    "kernel_agrees": {
        ("wrong for this shape", "down_proj, 17 rows"): having(e.Quantization, kernel_error=0.22),
        ("16-bit arithmetic in fp32", "down_proj, 17 rows"): having(e.Quantization, kernel_error=4e-3),
    },
    "matmul_precision": {("TF32 is on", "float64"): having(e.ForwardPaths, matmul_error=5e-4)},
    "forward_deterministic": {
        ("noise in the norm", "two equal forwards"): having(e.ForwardPaths, repeat_difference=1e-3)
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
    "adapters_start_neutral": {("random B", "adapters on and off"): having(e.AdapterStart, start_difference=0.3)},
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
        ("nothing held out", "0 held out"): having(e.DataSplit, heldout_rows=0),
    },
    "tokens_match_template": {
        ("double BOS", "step 2: the start token is doubled (train:3)"): having(
            e.Window, 2, problems={"the start token is doubled": "train:3"}
        ),
        ("end token masked as padding", "step 0: the end token is not supervised"): having(
            e.Window, problems={"the end token is not supervised": "canary"}
        ),
        ("no rows", "0 rows audited"): having(e.Window, rows=()),
    },
    "supervised_tokens": {
        ("padding supervised", "step 0: 141, expected 92"): having(e.Window, supervised_tokens=141),
        ("mask of zeros", "step 0: 0, expected 92"): having(e.Window, supervised_tokens=0),
        ("nothing to learn", "0 supervised"): both(
            having(e.Window, supervised_tokens=0, expected_supervised_tokens=0), having(e.Step, supervised_tokens=0)
        ),
        ("trainer counts padding", "step 3: 95, the trainer counts 180"): having(e.Step, 3, supervised_tokens=180),
    },
    "batches_differ": {
        ("iterator made in the loop", "12 micro-batches, 10 of them repeated"): having(e.Window, digests=("aa", "bb")),
        ("seed reset by an evaluation", "2 of them repeated"): having(
            e.Window, 4, digests=HEALTHY.all(e.Window)[0].digests
        ),
        ("no batches", "0 micro-batches"): having(e.Window, digests=()),
    },
    "row_order": {
        ("rows replayed", "step 3: rows canary, train:218"): having(e.Window, 3, rows=HEALTHY.all(e.Window)[0].rows),
        ("foreign rows", "step 0: rows ?, ?"): having(e.Window, rows=("?",) * 4),
        ("last micro-batch dropped", "step 5: rows canary, train:208, prescribed"): having(
            e.Window, 5, rows=lambda rows: rows[:2]
        ),
    },
    "loss_oracle": {
        ("means averaged", "step 0: reported 5.208177"): having(e.Step, loss=times(1.05)),
        ("labels shifted twice", "step 2: reported 9.200000"): having(e.Step, 2, loss=9.2),
        ("divided by the accumulation", "oracle 4.960169"): having(e.Step, loss=times(0.5)),
    },
    "accumulation_oracle": {
        ("means averaged", "step 0 (2 x 2 rows): error 0.15"): having(e.Oracle, gradient_error=0.15),
        ("gradients not cleared", "step 2 (2 x 2 rows): error 1.3"): having(e.Oracle, 1, gradient_error=1.3),
        ("one tensor cut off", f"worst tensor {LORA_B[2]} 1 at step 2"): having(e.Oracle, 1, worst_gradient_error=1.0),
    },
    "lora_gradient_schedule": {
        ("reentrant checkpointing", f"step 0: no gradient for 3 lora_B: {LORA_B[0]}"): having(
            e.Gradients, zero=LORA_A + LORA_B[:3]
        ),
        ("inference kernel after an evaluation", "step 4: no gradient for 4 lora_A after B moved"): having(
            e.Gradients, 4, zero=LORA_A + LORA_B
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
        ("before unscaling", "reported 67390"): having(e.Step, gradient_norm=times(65536)),
        ("norm of nothing", "the gradients have 0"): having(e.Gradients, 3, norms={}),
    },
    "learning_rate_trace": {
        ("a unit mistaken", "step 1: rate 2e-13, the schedule says 0.0002"): having(e.Step, learning_rate=times(1e-9)),
        ("stepped once a micro-batch", "step 2: rate 0.0001309"): having(e.Step, 2, learning_rate=1.309e-4),
        ("never stepped", "step 5: rate 0.0002"): having(e.Step, learning_rate=2e-4),
        ("stepped although skipped", "step 4: rate 6.91e-05, the schedule says 0.0001309"): having(
            e.Step, 3, applied=False
        ),
    },
    "steps_applied": {
        ("optimizer does nothing", "nothing moved in steps [1, 2, 3, 4, 5]"): having(e.Update, moved=False),
        ("rate unknown and nothing moved", "nothing moved in steps [0"): having(
            e.Update, moved=False, expected_learning_rate=NAN
        ),
        ("scaler skips on", "6 of 6 steps, 6 skipped"): having(e.Step, applied=False),
        ("ended early", "6 of 12 steps"): asking(training={"max_steps": 12}),
        ("a step counted twice", "6 of 6 steps"): having(e.Step, 3, step=2),
    },
    "updates_match_adamw": {
        ("step swallowed", f"step 2: {LORA_B[3]} off by 1 "): having(e.Update, 2, update_error=1.0),
        ("clipped before unscaling", "moments off by 0.9 at step 3"): having(e.Update, 3, moment_error=0.9),
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
        ("updates below half a ulp", f"only 2.0% of {LORA_A[0]}"): having(e.Movement, smallest_moved_share=0.02),
        ("rate always 0", "no step was applied"): having(e.Step, learning_rate=0.0),
    },
    "base_untouched": {
        ("repacked by an evaluation", f"14 of 76 frozen tensors changed: {LINEARS[0]}"): having(
            e.Movement, frozen_changed=LINEARS
        ),
        ("a bit flipped", "1 of 76 frozen tensors changed: head"): having(e.Movement, frozen_changed=("head",)),
        ("nothing compared", "0 of 0"): having(e.Movement, frozen_tensors=0),
    },
    "evaluation_oracle": {
        ("mean of batch means", "heldout: reported 4.310000"): having(
            e.EvaluationAudit, 1, reported_loss=4.31, oracle_loss=4.5
        ),
        ("padding counted", "probe: reported 3.612028 over 60 tokens"): having(
            e.EvaluationAudit, 0, reported_tokens=60
        ),
        ("dropout active", "reported 3.900000"): having(e.EvaluationAudit, reported_loss=3.9),
    },
    "evaluation_mode": {
        ("eval() does nothing", "probe: 9 modules were in train mode"): having(
            e.EvaluationAudit, training_modules_during=9
        ),
        ("dropout is functional", "3.61202847, then 3.7"): having(e.EvaluationAudit, 0, repeated_loss=3.7),
        ("logits kept with their graph", "heldout: gradients were enabled"): having(
            e.EvaluationAudit, 1, built_graph=True
        ),
        ("left in eval mode", "modes were not put back"): having(e.EvaluationAudit, mode_restored=False),
    },
    "adapters_applied": {("adapter disabled", "adapters on and off"): having(e.AdapterEffect, difference=0.0)},
    "adapter_round_trip": {
        ("empty file", f"8 tensors missing in the file: {LORA[0]}"): having(e.RoundTrip, tensors=0, missing=LORA),
        ("nothing trained, nothing saved", "0 tensors"): having(e.RoundTrip, tensors=0),
        ("renamed keys", "in the file but not in the model: x"): having(
            e.RoundTrip, unexpected=("x",), missing=LORA[:1]
        ),
        ("fresh adapter saved", f"4 tensors of B are zero: {LORA_B[0]}"): having(e.RoundTrip, zero_b=LORA_B),
        ("an older state saved", "8 tensors with other bytes"): having(e.RoundTrip, differing=LORA),
        ("loader ignores it", "gives other logits"): having(e.RoundTrip, logit_difference=0.0144),
    },
    "live_tensors_flat": {
        ("losses collected", "244 after step 5"): having(e.LiveTensors, 2, tensors=244),
        ("logits of all evaluations kept", "300 after step 5"): having(e.LiveTensors, 2, tensors=300),
    },
    "memory_returned": {
        ("a global list holds the model", "18,313,302 of 18,313,302 bytes"): having(e.Released, bytes=18313302),
        ("an exception holds a batch", "400,000 of"): having(e.Released, bytes=400_000),
    },
    "loss_falls": {
        ("nothing learned", "4.1862 -> 4.1862"): having(e.Evaluation, 2, loss=4.18616445440995),
        ("rate too high", "4.1862 -> 6.0000"): having(e.Evaluation, 2, loss=6.0),
    },
    "heldout_improves": {("only memorised", "81.63 -> 148.41"): having(e.Evaluation, 3, loss=5.0)},
    "generation_is_greedy": {
        ("padded on the right", "40% of the tokens of 'Seven"): having(e.Generation, 2, greedy_agreement=0.4),
        ("wrong positions in the cache", "(start)"): having(e.Generation, 0, greedy_agreement=0.0),
    },
    "canary_learned": {
        ("adapters not served", "after 'Seven copper doors'"): having(e.Generation, 2, text="Seven copper doors"),
        ("never stops", "without an end token"): having(e.Generation, 2, ended=False),
        ("known before", "choose another canary"): having(e.Generation, 0, text=RUN.data.canary.response),
    },
    "repeat_equals": {
        ("not seeded", "3 of 3 steps differ, first step 0"): having(e.Step, purpose="repeat", loss=times(1.01)),
        ("atomics in a kernel", "1 of 3 steps differ, first step 2"): having(
            e.Step, 2, purpose="repeat", loss=times(1 + 2e-16)
        ),
    },
    "resume_equals": {
        ("fresh adapter", "step 3: loss 4.9"): having(e.Step, 0, purpose="resume", loss=4.9),
        ("schedule starts over", "step 3: loss 3.912048 and rate 0,"): having(
            e.Step, 0, purpose="resume", learning_rate=0.0
        ),
        ("moments lost", "step 5: loss 3.4"): having(e.Step, 2, purpose="resume", loss=3.4),
        ("starts from the beginning", "took steps [0, 1, 2]"): having(
            e.Step, purpose="resume", step=lambda step: step - 3
        ),
    },
}
"""Check to bugs, each with what its finding must name, and how it shows in the trace."""
