"""Table of trainers: where each is implemented, which optimizer it uses, what it refuses. No torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from operator import attrgetter
from typing import TYPE_CHECKING

from tunecheck.core.frozen import Frozen

if TYPE_CHECKING:  # the schema loads checks of other packages, which may import the trainers
    from tunecheck.config.schema import Run

Broken = Iterator[tuple[str, str]]
"""The key to change, and the rule that it breaks."""


class TrainerInfo(Frozen):
    """Facts about a trainer that are needed before a run begins."""

    module: str
    """Module with the functions of `tunecheck.training.Trainer`; imported in the training process alone."""
    optimizer: str = "AdamW"
    """Class of the optimizer that it builds from the section `training`."""
    refuses: Callable[[Run], Broken] = lambda run: iter(())
    """Function that yields the keys of a run that this trainer cannot carry out as configured."""
    package: str = ""
    """What it needs besides the extra `train`: an importable package, and an extra of the same name."""

    @property
    def lacks(self) -> str:
        """What is not installed here that it needs, and how to install it; empty where nothing is missing."""
        if not self.package or find_spec(self.package):
            return ""
        return f"needs the package {self.package}, which is not installed: pip install 'tunecheck[{self.package}]'"


def unlike(run: Run, told: str, wanted: Mapping[str, tuple[object, str]]) -> Broken:
    """Yield each key with another value than the wanted one, and why it should have that; `fallback` may name cpu."""
    for key, (value, why) in wanted.items():
        given, shown = attrgetter(key)(run), _yaml(value)
        if key == "fallback":
            given, value, shown = ", ".join(step for step in given if step != "cpu"), "", "cpu or none"
        if given != value:
            rule = ": ".join(filter(None, (f"should be {shown} {told}", why)))
            yield key, f"{rule} (got {_yaml(given)})"


def _yaml(value: object) -> str:
    return json.dumps(value, default=str).strip('"')


def _transformers_refuses(run: Run) -> Broken:
    """Yield the keys that transformers' Trainer, and what derives from it, ignores or implements differently."""
    training, told = run.training, f"with trainer {run.trainer}"
    wanted: dict[str, tuple[object, str]] = {
        "training.loss_chunk_tokens": (None, "it has no loss in chunks"),
        "training.offload": ("none", ""),
        "evaluation.device": ("training", ""),
        "fallback": ((), ""),
        "probes.rungs": (False, "it has one fallback step only"),
    }
    yield from unlike(run, told, wanted)
    if training.precision == "fp16":
        rule = f"should be bf16 or fp32 {told}: its fp16 puts the adapters under autocast too"
        yield "training.precision", f"{rule} (got fp16)"
    if training.weight_decay and run.trains_base and training.weight_decay_on == "all":
        rule = f"should be all_but_norms_and_biases {told} where base weights are trained and decay: it leaves them out"
        yield "training.weight_decay_on", f"{rule} (got all)"
    processes, evaluation = run.processes, run.evaluation
    if evaluation.batch_size < (share := evaluation.rows // processes):
        named = "evaluation.rows" if processes == 1 else "evaluation.rows by the processes"
        rule = f"should be at least {named}, {share}, {told}: it averages over batches, not tokens"
        yield "evaluation.batch_size", f"{rule} (got {evaluation.batch_size})"
    if evaluation.rows % processes:
        rule = f"should be a multiple of {processes}, the processes, {told}: it fills up by evaluating rows twice"
        yield "evaluation.rows", f"{rule} (got {evaluation.rows})"
    if run.shards_parameters and run.parallel is not None:
        rule = f"should be ddp {told}: accelerate takes no FSDP plugin on CPUs, and wraps in DDP instead"
        yield "parallel.engine", f"{rule} (got fsdp)"


def _trl_refuses(run: Run) -> Broken:
    """Yield those of transformers' Trainer, and what SFTTrainer does to the adapters of a quantised base."""
    yield from _transformers_refuses(run)
    if run.parallel is not None or run.probes.rescale_to:
        yield "trainer", "should be native or transformers in several processes (got trl)"
    if run.quantization is None or run.lora is None:
        return
    told = "with trainer trl on a quantised base, whose adapters it makes bf16"
    if run.lora.use_dora:
        yield "lora.use_dora", f"should be false {told} but for their magnitudes (got true)"
    elif run.lora.adapter_dtype != "model":
        yield "lora.adapter_dtype", f"should be model {told} (got {run.lora.adapter_dtype})"
    if run.training.precision == "fp32":
        yield "training.precision", f"should be bf16 or auto {told} (got fp32)"


def plain_loop_refuses(run: Run) -> Broken:
    """Yield what a loop without autocast, gradient scaler and ranks would ignore, such as docs/skeleton_trainer.py."""
    precision, told = run.training.precision, f"with trainer {run.trainer}, which is a plain loop"
    wanted: dict[str, tuple[object, str]] = {
        "training.loss_chunk_tokens": (None, ""),
        "training.gradient_checkpointing": (False, ""),
        "training.offload": ("none", ""),
        "training.weight_decay_on": ("all", ""),
        "parallel": (None, ""),
        "fallback": ((), ""),
        "probes.rungs": (False, ""),
    }
    yield from unlike(run, told, wanted)
    if precision == "fp16" or (precision != "fp32" and run.trains_base):
        computes = "fp32" if run.trains_base else "bf16 or fp32"
        yield "training.precision", f"should be {computes} {told} (got {precision})"


TRAINERS: dict[str, TrainerInfo] = {
    "native": TrainerInfo(module="tunecheck.training.native"),
    "transformers": TrainerInfo(module="tunecheck.training.transformers_trainer", refuses=_transformers_refuses),
    "trl": TrainerInfo(module="tunecheck.training.trl_trainer", refuses=_trl_refuses, package="trl"),
}
