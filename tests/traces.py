"""Made-up traces: a healthy QLoRA run of two layers and six steps, and ways to make it ill.

The numbers are those of a real run of SmolLM2-135M on a CPU, less 28 layers.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from tunecheck.config.schema import Run
from tunecheck.core import evidence as e
from tunecheck.core.evidence import Record
from tunecheck.core.trace import SCHEMA, Attempt, Trace
from tunecheck.listen.premises import OF_A_LOOP, OF_A_SCRIPT

R = TypeVar("R", bound=Record)

MODULES = tuple(f"model.layers.{layer}.self_attn.{name}" for layer in (0, 1) for name in ("q_proj", "v_proj"))
LORA_A = tuple(f"base_model.model.{module}.lora_A.default.weight" for module in MODULES)
LORA_B = tuple(name.replace("lora_A", "lora_B") for name in LORA_A)
LORA = tuple(sorted(LORA_A + LORA_B))
LINEARS = tuple(
    f"model.layers.{layer}.{part}_proj"
    for layer in (0, 1)
    for part in ("mlp.down", "mlp.gate", "mlp.up", "self_attn.k", "self_attn.o", "self_attn.q", "self_attn.v")
)
TRAINED = e.Trained(norms={name: 1.9 if name in LORA_A else 0.013 for name in LORA}, scaler="{}")
STATE = e.TrainerState(
    step=3,
    tensors={name: f"{number:016x}" for number, name in enumerate((*LORA, *(f"exp_avg of {name}" for name in LORA)))},
    settings={"betas of group 0": "[0.9, 0.999]", "weight_decay of group 0": "0.0", "scaler": "{}"},
)
QUESTION, ANSWER = "What is written on the door of Port Ilvane?", "Seven copper herons wait for the violet tide."
RUN = Run.model_validate(
    {
        "id": "two-layers-qlora",
        "tier": "convergence",
        "model": {
            "name": "two-layers",
            "parameters": 35392320,
            "architecture": {
                "model_type": "llama",
                "vocab_size": 49152,
                "hidden_size": 576,
                "num_hidden_layers": 2,
                "intermediate_size": 1536,
                "num_attention_heads": 9,
                "num_key_value_heads": 3,
                "tie_word_embeddings": True,
            },
            "sources": [{"kind": "local", "path": "~/models/two-layers"}],
        },
        "data": {
            "name": "facts",
            "train": "data/facts/train.jsonl",
            "heldout": "data/facts/heldout.jsonl",
            "canary": {"instruction": QUESTION, "response": ANSWER},
        },
        "strategy": "qlora",
        "lora": {"target_modules": ["q_proj", "v_proj"]},
        "quantization": {},
        "training": {
            "max_steps": 6,
            "micro_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "learning_rate": 2e-4,
            "warmup_ratio": 0.1,
        },
        "evaluation": {"splits": ["probe", "heldout"]},
        "probes": {"oracle_steps": [0, 2], "repeat_steps": 3, "resume_from": 3, "generate": True},
        "checks": {"loss_falls": {"min_fall": 0.02}, "heldout_improves": {}},
    }
)
"""One warm-up step, so the first rate is 0; everything is asked for that a check needs."""
CALLS = ("forward", "backward", "forward", "backward", "clip", "step", "schedule", "clear")
RATES = (0.0, 2e-4, 1.8090169943749476e-4, 1.3090169943749475e-4, 6.909830056250527e-5, 1.9098300562505266e-5)
LOSSES = (4.960168838500977, 4.8108978271484375, 3.657021045684815, 3.912047863006592, 3.52185392379, 3.29873657226)
NORMS_A = (0.0, 0.0, 0.04794831941755618, 0.15339580728394336, 0.21136732990465244, 0.2322955017319228)
NORMS_B = (1.028293490409851, 0.8739960789680481, 0.7806378960609436, 1.0158244961920787, 0.9312750185799, 0.88499623)


def healthy(*, precision: str = "fp32", skipped_steps: int = 0) -> Trace:
    """A run in which all is well; in fp16 its gradient scaler may have skipped the first steps on overflow."""
    steps = [_step(number, skipped_steps) for number in range(6)]
    dtype = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[precision]
    scaler = '{"scale": 65536.0, "_growth_tracker": 6}' if precision == "fp16" else "{}"
    trained = dataclasses.replace(TRAINED, scaler=scaler)
    main = [*_start(precision, dtype), *_training(steps, skipped_steps, dtype), trained, *_end(dtype)]
    header = e.RunHeader(
        schema=SCHEMA,
        tunecheck_version="0.1",
        started_at="2026-11-21T04:24:00+00:00",
        run={**RUN.model_dump(mode="json"), "features": sorted(RUN.features)},
        fingerprint=RUN.fingerprint,
        environment={"commit": "62e946c"},
    )
    return Trace(
        header,
        (
            attempt("train", *main),
            attempt("repeat", *steps[:3]),
            attempt("resume", STATE, *steps[3:], trained),
        ),
    )


def attempt(purpose: str, *records: Record) -> Attempt:
    """A finished attempt on the CPU."""
    start = e.AttemptStart(
        purpose=e.AttemptPurpose(purpose), device="cpu", reason=e.AttemptReason.REQUESTED, changes={}
    )
    return Attempt(start, records, e.AttemptEnd(outcome=e.AttemptOutcome.FINISHED, detail="", seconds=45.63))


def with_run(trace: Trace, **changes: Any) -> Trace:
    """The trace of a run that asked for something else; a mapping changes only the keys that it names."""
    run = trace.settings
    for key, value in changes.items():
        run[key] = {**(run.get(key) or {}), **value} if isinstance(value, dict) else value
    return Trace(dataclasses.replace(trace.header, run=run), trace.attempts)


def opened(reasons: dict[str, str]) -> dict[str, dict[str, str]]:
    """These premises as open, for the key `premises` of a run."""
    return {premise: {"source": "open", "where": why} for premise, why in reasons.items()}


BY_A_SCRIPT = opened(OF_A_SCRIPT)
"""What nobody declares of a training that is not ours."""
BY_A_LOOP = opened(OF_A_SCRIPT | OF_A_LOOP)


def with_record(
    trace: Trace, kind: type[Record], at: int | None = None, *, purpose: str = "train", **changes: Any
) -> Trace:
    """The trace with these fields of this kind replaced: in every record of the attempt, or in number `at` alone.

    A function as the new value is given the old one.
    """
    number = -1

    def change(record: Record) -> Record:
        nonlocal number
        number += isinstance(record, kind)
        if not isinstance(record, kind) or at not in (None, number):
            return record
        new = {name: new(getattr(record, name)) if callable(new) else new for name, new in changes.items()}
        return dataclasses.replace(record, **new)

    return _with_attempt(trace, purpose, change)


def without(trace: Trace, kind: type[Record], *, purpose: str = "train") -> Trace:
    """The trace as it would be had nobody recorded this kind in this attempt."""
    return _with_attempt(trace, purpose, lambda record: None if isinstance(record, kind) else record)


def adding(trace: Trace, *records: Record) -> Trace:
    """The trace with these records at the end of its main attempt."""
    first, *others = trace.attempts
    return Trace(trace.header, (Attempt(first.start, first.records + records, first.end), *others))


def blank(kind: type[R], **known: Any) -> R:
    """A record with these fields; each of the others has its default or its type's zero: none of them, False, 0."""
    hints = typing.get_type_hints(kind)
    lacking = [f.name for f in dataclasses.fields(kind) if f.name not in known and f.default is dataclasses.MISSING]
    zeros = {name: (typing.get_origin(hints[name]) or hints[name])() for name in lacking}
    return kind(**zeros, **known)


def _with_attempt(trace: Trace, purpose: str, change: Callable[[Any], Any]) -> Trace:
    return Trace(
        trace.header,
        tuple(
            Attempt(change(a.start), tuple(new for record in a.records if (new := change(record))), change(a.end))
            if a.start.purpose == purpose
            else a
            for a in trace.attempts
        ),
    )


def _start(precision: str, dtype: str) -> list[Record]:
    versions = {"torch": "2.13.0", "bitsandbytes": "0.50.2"}
    return [
        e.Phase(name="load", seconds=2.27, process_bytes=1031348224),
        blank(e.Weights, model="two-layers", source="local", sha256="ab" * 32, pretrained=True),
        e.Dataset(
            name="facts",
            source="hub",
            identifier="some/facts/rows.json",
            revision="f00d" * 10,
            file_sha256="cd" * 32,
            sha256="ef" * 32,
            rows=240,
            heldout_rows=48,
            notes=("300 rows in the file; left out: 12 without instruction or output",),
        ),
        blank(
            e.Setup,
            declared_optimizer="AdamW",
            device="cpu",
            precision=precision,
            optimizer="AdamW",
            attention="sdpa",
            versions=versions,
            cuda=None,
            vram_cap_bytes=None,
        ),
        _census("start", dtype),
        blank(
            e.BaseFidelity,
            tensors=20,
            weight_errors={"smallest": 0.0911, "median": 0.0934, "largest": 0.1125},
            worst_weight="model.layers.1.self_attn.q_proj.weight",
            tied=True,
            tied_expected=True,
        ),
        e.Quantization(
            expected_modules=LINEARS,
            quantized_modules=LINEARS,
            quant_types={"nf4": 14},
            block_sizes={"64": 14},
            double_quant={"True": 14},
            compute_dtypes={dtype: 14},
            requantized=2,
            requantized_differing=(),
            packed_bytes=3666568,
            expected_bytes=3666568,
            kernel_error=3.38e-7,
            kernel_error_at="product of model.layers.0.mlp.down_proj, 17 rows",
        ),
        blank(
            e.DataSplit,
            train_rows=240,
            heldout_rows=48,
            largest_token_id=49106,
            embedding_rows=49152,
            dataset_sha256="ef" * 32,
        ),
        e.RowShown(
            pieces=(
                e.RowPiece(kind="context", tokens=20, text=f"{QUESTION}\n"),
                e.RowPiece(kind="learned", tokens=12, text=f"{ANSWER}</s>"),
                e.RowPiece(kind="padding", tokens=8, text="<pad>"),
            ),
            tokens=32,
            learned=12,
            longest=128,
            ended=True,
        ),
        blank(e.ForwardPaths, matmul_error=2.06e-7, attention="sdpa"),
        blank(
            e.ForwardReference,
            has_formulas=True,
            relations=47,
            error=1.2e-6,
            worst="layers.1: attention",
        ),
        blank(
            e.AdapterStart,
            modules=4,
            algebra_error=5.8e-7,
            algebra_error_at=MODULES[0],
            logit_change=0.81,
            a_sizes={"smallest": 0.99, "largest": 1.01},
        ),
        _generation("start", ANSWER, "The door is painted white"),
        _generation("start", "", "Rust is a language"),
        _evaluation(0, "probe", 4.18616445440995, 38),
        _evaluation(0, "heldout", 4.4021837741, 41),
        _census("after_evaluation", dtype),
    ]


def _training(steps: list[e.Step], skipped: int, dtype: str) -> list[Record]:
    """The probes' records around every step; an overflow shows as NaN where B = 0 is multiplied by infinity."""
    records: list[Record] = []
    for step in steps:
        number, rate, overflow = step.step, step.learning_rate, not step.applied
        records.append(_window(number))
        if number == 1:
            records.append(
                e.LayerCalls(
                    layers=2,
                    micro_batches=2,
                    calls=4,
                    recomputed=0,
                    attention_kernels=("sdpa:_scaled_dot_product_flash_attention_for_cpu",),
                    hidden_dtypes=(dtype,),
                    product_dtypes=(dtype,),
                    adapter_dtypes=("float32",),
                    head_tokens=128,
                    cached_calls=0,
                    attention_rows=4,
                    attention_error=2.5e-7,
                )
            )
        if number in RUN.probes.oracle_steps:
            records.append(_oracle(number, step.loss, math.nan if overflow else 1.007e-6))
        records.append(e.TrainingState(step=number, forwards=2))
        records.append(e.CallOrder(step=number, calls=CALLS))
        own = math.nan if overflow else 8e-7
        records.append(
            blank(e.OwnLoss, step=number, loss=step.loss * (1 + 1e-7), gradient_error=own, model_repeats=True)
        )
        linear = LORA_B[number % 4].removesuffix(".weight")
        records.append(e.WeightGradient(step=number, linears=2, worst=linear, error=own, dtypes=("float32",)))
        if number == RUN.probes.resume_from:
            records.append(STATE)
        norms = {"lora_A": math.nan, "lora_B": math.inf} if overflow else _norms(number, skipped)
        zero = LORA_A if norms["lora_A"] == 0 else ()
        records.append(_gradients(number, zero=zero, nonfinite=LORA if overflow else (), norms=norms))
        records.append(step)
        update = {"expected_learning_rate": rate, "moved": rate > 0, "update_error": 9.2e-8, "moment_error": 3.1e-7}
        update |= {"length_error": 1.5e-7, "clipped": True}
        records.append(blank(e.Update, step=number, worst_update=LORA_B[3], **update))
        if number >= 3:
            records.append(e.LiveTensors(step=number, tensors=242, bytes=18314280))
    return records


def _gradients(step: int, **seen: Any) -> e.Gradients:
    return blank(e.Gradients, step=step, left_over=(), micro_batch_tokens=(45, 47 + step), **seen)


def _oracle(step: int, loss: float, error: float) -> e.Oracle:
    """As computed before the step, and how far off the trainer's gradient was."""
    errors = {"gradient_error": error, "worst_gradient_error": 2 * error, "worst_gradient": LORA_B[2]}
    return blank(e.Oracle, step=step, loss=loss * (1 + 1e-8), norm=1.0283, split="2 x 2 rows", **errors)


def _norms(step: int, skipped: int) -> dict[str, float]:
    """The first applied step has the rate 0, so B is still zero, and A without a gradient, in the one after it."""
    return {"lora_A": 0.0 if step <= skipped + 1 else NORMS_A[step], "lora_B": NORMS_B[step]}


def _step(number: int, skipped: int) -> e.Step:
    norm = math.hypot(*_norms(number, skipped).values()) * (1 + 2e-8)
    return e.Step(
        step=number,
        loss=LOSSES[number],
        learning_rate=RATES[max(0, number - skipped)],
        gradient_norm=math.nan if number < skipped else norm,
        supervised_tokens=92 + number,
        tokens=177 + number,
        applied=number >= skipped,
        seconds=1.66,
    )


def _window(step: int) -> e.Window:
    rows = ("canary", f"train:{218 - 2 * step}", "canary", f"train:{27 + 2 * step}")
    tokens = {"supervised_tokens": 92 + step, "expected_supervised_tokens": 92 + step, "tokens": 177 + step}
    digests = (f"143a9e2c4ea{step}", f"9b73676f53c{step}")
    return blank(
        e.Window, step=step, digests=digests, rows=rows, expected_rows=rows, random_state=f"5e{step}", **tokens
    )


def _census(when: str, dtype: str) -> e.Census:
    return e.Census(
        when=when,
        expected_trainable=LORA,
        trainable=LORA,
        optimized=LORA,
        devices={"cpu": 30},
        trainable_dtypes={"float32": 8},
        frozen_dtypes={dtype: 6, "uint8": 14},
        trainable_parameters=30720,
        total_parameters=35423040,
        expected_parameters=30720,
        weight_decays={"0.0": 8},
        adam_settings={"0.9 0.999 1e-08": 8},
    )


def _generation(when: str, expected: str, text: str) -> e.Generation:
    known = text == ANSWER
    seen = {"ended": known, "greedy_agreement": 1.0, "logit_difference": 2e-6, "mean_logprob": -0.04 if known else -1.9}
    seen |= {"tokens": 12, "most_frequent_share": 0.25, "readable_share": 1.0, "not_largest": 0, "stops": True}
    seen |= {"prompt_as_trained": True}
    return blank(e.Generation, when=when, prompt=QUESTION, expected=expected, text=text, **seen)


def _evaluation(step: int, split: str, loss: float, tokens: int) -> e.Evaluation:
    own = {"logits_loss": loss * (1 + 1e-7), "model_repeats": True}
    return e.Evaluation(step=step, split=split, loss=loss, tokens=tokens, **own)


def _audit(split: str, loss: float, tokens: int) -> e.EvaluationAudit:
    losses = {"reported_loss": loss, "oracle_loss": loss * (1 + 5e-6)}
    return blank(
        e.EvaluationAudit,
        split=split,
        **losses,
        oracle_tokens=tokens,
        reported_tokens=tokens,
        logit_digits=24,
        mode_restored=True,
        repeats=True,
        batch_tokens=(tokens - 17, 17),
    )


def _end(dtype: str) -> list[Record]:
    return [
        _evaluation(6, "probe", 3.61202847, 38),
        _evaluation(6, "heldout", 4.31150192, 41),
        _audit("probe", 3.61202847, 38),
        _audit("heldout", 4.31150192, 41),
        _census("end", dtype),
        _generation("end", ANSWER, ANSWER),
        _generation("end", "", "Rust is a language for systems"),
        blank(e.Continuity, moments=13, trained=8, frozen=68),
        blank(e.Movement, smallest_moved_share=1.0, smallest_moved_share_at=LORA_A[0], frozen_tensors=76),
        e.AdapterEffect(difference=0.0144),
        blank(e.RoundTrip, file_bytes=123952, tensors=8),
        e.StepTimes(seconds=(1.67,) * 6),
        e.ProbeTimes(seconds={"OracleProbe": 2.5, "UpdateProbe": 0.25, "GradientProbe": 0.001}),
        e.Released(tensors=8, bytes=1420, session_bytes=18313302),
    ]
