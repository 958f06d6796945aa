"""Predictions as tables for the terminal, and the settings of a run, one of which changed would save memory."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from tunecheck.checks.memory import VramCeiling
from tunecheck.config.schema import Run
from tunecheck.core.text import human_bytes
from tunecheck.memory import MeasuredPeak
from tunecheck.memory.prediction import Prediction
from tunecheck.report.layout import PlainTable

KINDS = ("quantised_weights", "other_weights", "adapters", "gradients", "optimizer", "gathered", "activations")

NUMBERS = slice(1, None)
_TO_QLORA = ("strategy=qlora", "quantization={}")


def changes_of(run: Run) -> dict[tuple[str, ...], bool]:
    """Return every change that saves memory in some run, in the words for --set, and whether it can in this one."""
    training, smallest_batch = run.training, 1 if run.data.canary is None else 2
    native = run.trainer == "native"  # transformers' has no chunked loss and no offloading
    offloads = native and training.offload == "none"
    return {
        ("profile=lean",): native and run.profile != "lean",
        ("training.gradient_checkpointing=true",): not training.gradient_checkpointing,
        ("training.loss_chunk_tokens=128",): native and training.loss_chunk_tokens is None,
        (f"training.micro_batch_size={smallest_batch}",): training.micro_batch_size > smallest_batch,
        ("lora.adapter_dtype=mixed",): run.lora is not None and run.lora.adapter_dtype == "fp32",
        _TO_QLORA: run.strategy == "lora",
        (*_TO_QLORA, "lora={target_modules: [q_proj, v_proj]}"): run.trains_base,
        ("training.offload=activations",): offloads and not run.trains_base,
        ("training.offload=parameters",): offloads and run.trains_base and training.precision != "fp16",
        ("quantization.double_quant=true",): run.quantization is not None and not run.quantization.double_quant,
    }


def print_measured(prediction: Prediction, peaks: Sequence[MeasuredPeak], console: Console) -> None:
    """Print a line for each GPU on which this run was measured; a measurement overrules the prediction."""
    for peak in peaks:
        off = prediction.allocator_bytes / peak.allocator_bytes - 1
        told = f"{prediction.run}: measured {peak.measured_at} on {peak.card}: {human_bytes(peak.allocator_bytes)}"
        console.print(Text(f"{told} of tensors; the prediction is {off:+.1%} off"))


def print_prediction(prediction: Prediction, console: Console) -> None:
    """Print one run: bytes by kind and by phase, the GPU's own share, and the GPUs that hold it."""
    console.print(Text(f"{prediction.run}, {prediction.precision}: predicted {prediction.predicted_at}, not measured"))
    console.print()
    static, simulation = prediction.static, prediction.simulation
    table = PlainTable("kind", "exact bytes", f"at the peak ({simulation.peak_operation})", right=NUMBERS, gap=2)
    for kind in (kind for kind in KINDS if kind != "gathered" or static.on_host):
        words = {"activations": "activations and loss", "gathered": "layers in use"}.get(kind, kind.replace("_", " "))
        exact = f"{getattr(static, kind):,}" if hasattr(static, kind) else ""
        table.add_row(words, exact, human_bytes(simulation.at_peak.get(kind, 0)))
    console.print(table)
    console.print()
    table = PlainTable("phase", "peak of the tensors", right=NUMBERS, gap=2)
    for phase, size in prediction.phases.items():
        table.add_row(phase, human_bytes(size))
    table.add_row("with the cuBLAS workspace and whole blocks", human_bytes(prediction.allocator_bytes))
    table.add_row("with the CUDA context", human_bytes(prediction.process_bytes))
    console.print(table)
    console.print()
    console.print(Text(fit_words(prediction)))
    if on_host := static.on_host:
        console.print(Text(f"in the host's memory: {human_bytes(on_host)} of weights, gradients and optimizer"))
    share = prediction.share
    for name, constant in (("cuBLAS workspace", share.cublas_workspace), ("CUDA context", share.cuda_context)):
        console.print(Text(f"{name}: {human_bytes(constant.bytes)}, {constant.provenance}: {constant.source}", "dim"))


def print_asked(run: Run, console: Console) -> None:
    """Print what the run itself asks for and allows, which is no prediction."""
    parts = [f"is admitted to GPUs with {human_bytes(run.vram)}"] if run.vram else []
    if isinstance(ceiling := run.resolved_checks().get("vram_ceiling"), VramCeiling):
        parts.append(f"fails where its tensors take more than {ceiling.ceiling_mib:,} MiB (vram_ceiling)")
    if parts:
        console.print(Text(f"The run itself {' and '.join(parts)}: its own limits, not what it is predicted to need."))
    if run.gpus > 1:
        each = f"The run takes {run.gpus} GPUs, of which each is predicted to hold what one process alone would"
        console.print(Text(f"{each}: what fsdp saves, and NCCL's buffers, are not in it."))


def print_savings(
    before: Prediction, after: Mapping[str, Prediction], ruled_out: Sequence[str], console: Console
) -> None:
    """Print what each changed setting saves of the allocator's peak; where none does, what was tried."""
    table = PlainTable("with --set", "allocator", "saves", right=NUMBERS, gap=2)
    for setting, prediction in sorted(after.items(), key=lambda item: item[1].allocator_bytes):
        taken, saved = prediction.allocator_bytes, before.allocator_bytes - prediction.allocator_bytes
        table.add_row(Text(setting), human_bytes(taken), human_bytes(saved) if saved > 0 else "nothing")
    console.print()
    if after:
        console.print(table)
    if any(prediction.allocator_bytes < before.allocator_bytes for prediction in after.values()):
        return
    told = f"None of the {len(after)} settings tried saves memory." if after else "No setting is left to try."
    console.print(Text(f"{told} Not tried, because the run has them or they do not apply: {', '.join(ruled_out)}."))


def print_each(kind: str, predictions: Mapping[str, Prediction], console: Console) -> None:
    """Print what each run takes, a run at each fallback step, or its variants, and the smallest GPU that holds it."""
    table = PlainTable(kind, "weights", "allocator", "process", "GPU", right=NUMBERS, whole=int(kind == "run"), gap=2)
    for name, prediction in predictions.items():
        numbers = (prediction.static.weights, prediction.allocator_bytes, prediction.process_bytes)
        smallest = next((f"{size} GB" for size, fits in prediction.fits.items() if fits), "none")
        table.add_row(Text(name), *map(human_bytes, numbers), smallest)
    console.print(table)


def fit_words(prediction: Prediction) -> str:
    """Return which GPU sizes hold the run: "fits GPUs of 6 GB and more"."""
    least = next((size for size, fits in prediction.fits.items() if fits), None)
    words = f"no GPU up to {max(prediction.fits)} GB" if least is None else f"GPUs of {least} GB and more"
    return f"{human_bytes(prediction.process_bytes)} in all: fits {words}"
