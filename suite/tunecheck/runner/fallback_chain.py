"""The steps a run takes, in fresh processes, when GPU memory runs out: they add up; a CPU trains it as configured."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

from tunecheck.config.schema import Run
from tunecheck.core.evidence import AttemptPurpose, AttemptStart, MemoryVariant
from tunecheck.core.snapshot import changed

Changes = dict[str, Any]
"""Settings of the run by their dotted path."""
VARIANTS: dict[MemoryVariant, dict[str, Any]] = {
    MemoryVariant.AS_CONFIGURED: {},
    MemoryVariant.CHECKPOINTING: {"training.gradient_checkpointing": True},
    MemoryVariant.NO_CHECKPOINTING: {"training.gradient_checkpointing": False},
    MemoryVariant.FOUR_ROWS: {"training.micro_batch_size": 4},
    MemoryVariant.LORA: {"strategy": "lora", "quantization": None},
    MemoryVariant.FULL: {"strategy": "full", "quantization": None, "lora": None},
}
"""Name to the settings in which it differs from the run as configured, a QLoRA run of micro_batch_size 1."""


def variant(run: Run, changes: Mapping[str, Any]) -> Run:
    """The run with these settings; the rules between keys are not looked at again."""
    varied = Run.model_validate(changed(run.model_dump(), changes))
    varied._places.update(run._places)
    return varied


def rescaled(run: Run, processes: int) -> dict[str, Any]:
    """Return the settings with which so many processes train the same rows in every step."""
    engine = run.parallel.engine if run.parallel else "ddp"
    parallel = {"engine": engine, "processes": processes} if processes > 1 else None
    steps = run.micro_batches_per_step // processes
    return {"parallel": parallel, "training.gradient_accumulation_steps": steps}


class FallbackStep(NamedTuple):
    """One way to train with less of the GPU's memory."""

    device: str
    """Where the training's arithmetic is done: cuda or cpu."""
    changes: Callable[[Run], Changes]
    """What it changes in this run; nothing where the run has it already."""
    obstacle: Callable[[Run], str] = lambda run: ""
    """Why this run cannot take it, in a sentence; empty when it can."""


def _lean(run: Run) -> Changes:
    """Return bf16 where the card has it, checkpointing, a loss in chunks, one row a forward pass and more of them."""
    training = run.training
    wanted: Changes = {"training.gradient_checkpointing": True}
    if training.loss_chunk_tokens is None:
        wanted["training.loss_chunk_tokens"] = 32
    if training.precision == "fp32":
        wanted["training.precision"] = "auto"
    if run.lora is not None and run.lora.adapter_dtype == "fp32":
        wanted["lora.adapter_dtype"] = "mixed"
    if training.micro_batch_size > 1 and run.data.canary is None:  # a canary takes a place of every micro-batch
        rows = training.micro_batch_size * training.gradient_accumulation_steps
        wanted |= {"training.micro_batch_size": 1, "training.gradient_accumulation_steps": rows}
    return wanted


def _cannot_offload(run: Run) -> str:
    if run.trainer != "native":
        return "transformers' Trainer does not offload"
    if run.trains_base and run.training.precision == "fp16":
        return "fp16's gradient scaler cannot follow gradients to the CPU"
    return ""


FALLBACK_CHAIN: dict[str, FallbackStep] = {
    # about a third more time: every layer is computed twice
    "lean": FallbackStep(
        "cuda", _lean, lambda run: "" if run.trainer == "native" else "transformers' Trainer cannot chunk the loss"
    ),
    # parameters, gradients and optimizer by FSDP2, or with adapters what the backward pass needs: takes host memory for
    # what it moves, and NCCL for parameters
    "offload": FallbackStep(
        "cuda", lambda run: {"training.offload": "parameters" if run.trains_base else "activations"}, _cannot_offload
    ),
    # trains on the CPU; evaluations and texts need a GPU that holds weights and logits, but no gradients
    "evaluate_on_gpu": FallbackStep(
        "cpu",
        lambda run: {"evaluation.device": "cuda"},
        lambda run: "4-bit weights are packed for one device" if run.quantization is not None else "",
    ),
    # as configured; needs host memory, and patience
    "cpu": FallbackStep("cpu", lambda run: {}),
}


def tries(run: Run, device: str) -> Iterator[AttemptStart]:
    """Yield every attempt that the run may make, as configured first, each with the steps skipped before it."""
    plain = AttemptStart(purpose=AttemptPurpose.TRAIN, device=device)
    yield plain
    if device == "cpu":
        return
    so_far: Changes = {}
    skipped: list[str] = []
    for name in run.fallback:
        step = FALLBACK_CHAIN[name]
        before = so_far if step.device == "cuda" else {}
        held = variant(run, before)
        wanted = {path: value for path, value in step.changes(held).items() if value != attrgetter(path)(held)}
        if not (reason := step.obstacle(held)) and not wanted and step.device == "cuda":
            reason = "it changes nothing"
        if reason:
            skipped.append(f"{name}: {reason}")
            continue
        changes = {**before, **wanted}
        so_far = changes if step.device == "cuda" else so_far
        yield replace(plain, device=step.device, fallback_step=name, changes=changes, skipped_steps=tuple(skipped))
        skipped = []


def every_fallback_step(run: Run, device: str, *, gpu_only: bool = False) -> Iterator[AttemptStart]:
    """Yield the run as configured and each fallback step that trains there, whether or not the run names it."""
    with_cpu = device == "cuda" and not gpu_only
    names = [name for name, step in FALLBACK_CHAIN.items() if step.device == "cuda" or with_cpu]
    for trial in tries(run.model_copy(update={"fallback": names}), "cuda"):
        yield replace(trial, device=device if trial.device == "cuda" else "cpu")
