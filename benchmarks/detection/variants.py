"""Healthy variants from a table of axes: each value alone, then random combinations from a fixed seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.detection.bugs.parts import RANDOM_WEIGHTS
from benchmarks.detection.trial import QUICK, TINY
from tunecheck.config import find_run, load_run
from tunecheck.core.errors import ConfigError

Settings = tuple[str, ...]

PLAIN: Settings = ("quantization=null", "lora=null")
ALL_LINEARS = "lora.target_modules=[q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]"
UNTIED: Settings = ("model.architecture.tie_word_embeddings=false", "model.parameters=426624", *RANDOM_WEIGHTS)
QWEN2: Settings = ("model.architecture.model_type=qwen2", "model.parameters=361600", *RANDOM_WEIGHTS)

COMMON: dict[str, dict[str, Settings]] = {
    "seed": {f"seed {seed}": (f"training.seed={seed}",) for seed in range(1, 9)},
    "batch": {f"batch {rows}": (f"training.micro_batch_size={rows}",) for rows in (1, 3, 4)},
    "accumulation": {
        f"accumulation {windows}": (f"training.gradient_accumulation_steps={windows}",) for windows in (1, 3, 5)
    },
    "rows": {
        "six rows": ("data.train_rows=6",),
        "other evaluation": ("evaluation.splits=[probe, heldout]", "evaluation.batch_size=3", "evaluation.rows=5"),
        "evaluation in the middle": ("evaluation.at=[2]",),
    },
    "schedule": {
        "linear": ("training.lr_scheduler=linear", "training.warmup_ratio=0"),
        "constant": ("training.lr_scheduler=constant",),
        "long warm-up": ("training.warmup_ratio=0.5",),
        "high rate": ("training.learning_rate=2e-3",),
        "low rate": ("training.learning_rate=1e-5",),
    },
    "optimizer": {
        "no decay": ("training.weight_decay=0",),
        "much decay": ("training.weight_decay=0.3",),
        "no clipping": ("training.max_grad_norm=null",),
        "hard clipping": ("training.max_grad_norm=0.01",),
        "other betas": ("training.adam_beta1=0.8", "training.adam_beta2=0.95", "training.adam_epsilon=1e-6"),
    },
    "checkpointing": {"checkpointing": ("training.gradient_checkpointing=true",)},
    "loss": {
        "chunked loss": ("training.loss_chunk_tokens=20",),
        "padded to a length": ("data.pad_to_sequence_len=true", "data.max_length=320"),
    },
}
TINY_ONLY: dict[str, dict[str, Settings]] = {
    "precision": {"bf16": ("training.precision=bf16",)},
    "attention": {"eager": ("training.attention=eager",)},
    "shape": {
        "as tinyllama": UNTIED,
        "as llama-7b": (
            UNTIED[0],
            "model.architecture.num_key_value_heads=4",
            "model.parameters=459392",
            *RANDOM_WEIGHTS,
        ),
        "as qwen2": QWEN2,
        "as mistral": ("model.architecture.model_type=mistral", *RANDOM_WEIGHTS),
        "one key head": (
            "model.architecture.num_attention_heads=2",
            "model.architecture.num_key_value_heads=1",
            *RANDOM_WEIGHTS,
        ),
    },
    "oracle": {"oracle at 0 and 3": ("probes.oracle_steps=[0, 3]",), "slope": ("probes.directional_gradient=true",)},
    "again": {
        "resume": ("probes.resume_from=2",),
        "repeat": ("probes.repeat_steps=3",),
        "read back": ("probes.read_back=true",),
        "generate": ("probes.generate=true",),
    },
    "steps": {"ten steps": ("training.max_steps=10",), "fifty steps": ("training.max_steps=50",)},
}
ADAPTERS: dict[str, dict[str, Settings]] = {
    "rank": {f"rank {r}": (f"lora.r={r}", f"lora.alpha={2 * r + 1}") for r in (1, 4, 32)},
    "targets": {
        "all linears": (ALL_LINEARS,),
        "one target": ("lora.target_modules=[o_proj]",),
        "the MLP": ("lora.target_modules=[gate_proj, up_proj, down_proj]",),
    },
    "kind": {"dora": ("lora.use_dora=true",), "rslora": ("lora.use_rslora=true",)},
    "dropout": {"dropout": ("lora.dropout=0.1",)},
    "profile": {"lean": ("profile=lean",)},
    "quantisation": {
        "single quantisation": ("quantization.double_quant=false",),
        "fp4": ("quantization.quant_type=fp4",),
        "plain base": ("strategy=lora", "quantization=null"),
    },
}
STRATEGIES: dict[str, Settings] = {
    name: (*PLAIN, f"strategy={name}")
    for name in ("full", "freeze_lower", "freeze_embeddings", "adapter_layers", "last_layers_and_head")
} | {"bitfit": (*PLAIN, *QWEN2, "strategy=bitfit")}
ADAPTED_SHARE, LARGEST_MIX = 0.75, 5
"""Of the random combinations: those with adapters, and the most axes that one of them changes."""
TINY_RUNS, REAL_RUNS = 240, 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A run without a bug."""

    id: str
    title: str
    settings: Settings


def variants(*, real: bool, overrides: Settings = ()) -> dict[str, Variant]:
    """Return the study's variants by id: of a random model of two layers, or of the quick run's own weights.

    Left out is what the user's overrides do not allow (several processes, say).
    """
    base, count, letter = ((), REAL_RUNS, "R") if real else (TINY, TINY_RUNS, "T")
    chosen: dict[Settings, str] = {}
    for title, settings in _candidates(real=real):
        if settings not in chosen and _fits(base, settings):
            chosen[settings] = title
        if len(chosen) == count:
            break
    return {
        f"{letter}{number:03}": Variant(id=f"{letter}{number:03}", title=title, settings=settings)
        for number, (settings, title) in enumerate(chosen.items(), start=1)
        if not overrides or _fits(base, (*settings, *overrides))
    }


def _candidates(*, real: bool) -> Iterator[tuple[str, Settings]]:
    """Yield the quick run, every value of every axis alone (on the real model the first of each), random mixtures."""
    adapted = {**COMMON, **ADAPTERS} if real else {**COMMON, **TINY_ONLY, **ADAPTERS}
    yield "as it is", ()
    for values in adapted.values():
        yield from list(values.items())[: 1 if real else None]
    if not real:
        yield from STRATEGIES.items()
    generator = random.Random("healthy")
    while True:
        if real or generator.random() < ADAPTED_SHARE:
            yield _mixed(generator, adapted, "", ())
        else:
            strategy = generator.choice(list(STRATEGIES))
            yield _mixed(generator, {**COMMON, **TINY_ONLY}, strategy, STRATEGIES[strategy])


def _mixed(
    generator: random.Random, axes: Mapping[str, Mapping[str, Settings]], title: str, start: Settings
) -> tuple[str, Settings]:
    """Return a combination of some axes, each at one of its values."""
    picked = generator.sample(sorted(axes), generator.randint(2, LARGEST_MIX))
    values = [generator.choice(sorted(axes[axis].items())) for axis in picked]
    titles = ([title] if title else []) + [name for name, _ in values]
    return ", ".join(titles), (*start, *(key for _, settings in values for key in settings))


def _fits(base: Sequence[str], settings: Settings) -> bool:
    """Return whether these settings fit together: no key twice, and a run that validates."""
    keys = [setting.partition("=")[0] for setting in settings]
    if len(keys) != len(set(keys)):
        return False
    try:
        load_run(find_run(QUICK), ["device=cpu", *base, *settings])
    except ConfigError:
        return False
    return True
