"""Predictions beside reference numbers: scripts/memory-table.py > docs/memory.md. No GPU, no weights; 5 minutes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tunecheck.config import find_run, load_run
from tunecheck.memory.constants import CARD_CLASSES_GB, CUBLAS_WORKSPACE, CUDA_CONTEXT
from tunecheck.memory.prediction import static_bytes

RUN = "quick/smollm2-135m-qlora"
QV, QKVO = "[q_proj, v_proj]", "[q_proj, k_proj, v_proj, o_proj]"

STATIC = {
    "smollm2-135m": 111_690_000,
    "qwen2-0.5b": 457_190_000,
    "tinyllama-1.1b": 762_310_000,
    "llama-7b": 3_865_840_000,
}
"""Model to the reference bytes of its weights in NF4 with double quantisation, the rest in bf16."""

PEAKS = {
    "SmolLM2-135M B1 T128": ("smollm2-135m", QV, 1, 128, 32, (283, 211, 139)),
    "SmolLM2-135M B1 T512": ("smollm2-135m", QV, 1, 512, 32, (791, 453, 154)),
    "Qwen2-0.5B B4 T32": ("qwen2-0.5b", QV, 4, 32, 16, (854, 630, 496)),
    "Qwen2-0.5B B4 T512": ("qwen2-0.5b", QV, 4, 512, 64, (6746, 2809, 709)),
    "TinyLlama-1.1B B1 T512": ("tinyllama-1.1b", QV, 1, 512, 64, (1921, 1607, 880)),
    "LLaMA-7B B1 T512 qkvo": ("llama-7b", QKVO, 1, 512, 64, (7415, 6324, 4222)),
}
"""Configuration to model, targets, rows, tokens, tokens a chunk of the loss, and the reference peaks in 1e6 bytes."""

SETTINGS = ("default", "lean", "lean+checkpointing")
"""What the reference peaks are of, in their order."""


@dataclass(frozen=True, slots=True)
class Row:
    """One configuration's peaks in bytes."""

    name: str
    setting: str
    reference_mb: int
    masked: int
    """Simulated as the reference was: with an attention mask."""
    trained: int
    """As the trainer runs it: a single row gets no mask."""


def main() -> None:
    """Simulate all and print the document."""
    print(document([row for name in PEAKS for row in simulated(name)]))


def simulated(name: str) -> list[Row]:
    """The three settings of one configuration."""
    from tunecheck.memory.simulate import simulate

    model, targets, batch, tokens, chunk, references = PEAKS[name]
    common = [
        f"model={model}",
        f"lora.target_modules={targets}",
        f"training.micro_batch_size={batch}",
        f"data.max_length={tokens}",
        "training.gradient_accumulation_steps=1",
    ]
    lean = ["lora.adapter_dtype=model", f"training.loss_chunk_tokens={chunk}"]
    variants = ([], lean, [*lean, "training.gradient_checkpointing=true"])
    rows = []
    for setting, changes, reference in zip(SETTINGS, variants, references, strict=True):
        print(f"{name}, {setting}", file=sys.stderr)
        settings = [*common, *changes]
        masked = simulate(load_run(find_run(RUN), [*settings, "data.pad_to_sequence_len=true"])).steady_bytes
        trained = masked if batch > 1 else simulate(load_run(find_run(RUN), settings)).steady_bytes
        rows.append(Row(name, setting, reference, masked, trained))
    return rows


def document(rows: Sequence[Row]) -> str:
    """The whole of docs/memory.md."""
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "peft", "bitsandbytes"))
    return HEAD + "\n".join(
        [
            "| model | weights, bytes | reference (rounded to 10 kB) | error |",
            "|---|---:|---:|---:|",
            *(static_line(model) for model in STATIC),
            MIDDLE,
            f"Simulated with {libraries}.",
            "",
            "| configuration | setting | reference, MB | with a mask, MB | error | as trained, MB | error |",
            "|---|---|---:|---:|---:|---:|---:|",
            *(peak_line(row) for row in rows),
            "",
            f"Largest error with a mask: {largest(rows)}.",
            TAIL.rstrip(),
        ]
    )


def static_line(model: str) -> str:
    """A model's row of the first table."""
    reference = STATIC[model]
    weights = static_bytes(load_run(find_run(RUN), [f"model={model}"])).weights
    return f"| {model} | {weights:,} | {reference:,} | {round(weights, -4) - reference} |"


def peak_line(row: Row) -> str:
    """A configuration's row of the second table."""
    cells = [f"{size / 1e6:.1f} | {error(size, row.reference_mb):+.1f} %" for size in (row.masked, row.trained)]
    return f"| {row.name} | {row.setting} | {row.reference_mb} | {' | '.join(cells)} |"


def error(size: int, reference_mb: int) -> float:
    """Per cent by which the prediction, as it is printed, is above the reference."""
    return 100 * (round(size / 1e6, 1) / reference_mb - 1)


def largest(rows: Sequence[Row]) -> str:
    """The error that is furthest from zero, with its configuration."""
    row = max(rows, key=lambda row: abs(error(row.masked, row.reference_mb)))
    return f"{error(row.masked, row.reference_mb):+.1f} % ({row.name}, {row.setting})"


HEAD = """\
<!-- Written by scripts/memory-table.py; do not edit by hand. -->
# Predicted GPU memory

`tunecheck estimate RUN` predicts a run's GPU memory. It needs neither a GPU nor weights. **The peaks on this page are
predictions.** On an H100 we measured [the memory besides tensors](#memory-besides-tensors) and seven peaks with rows at
full length. The predicted peaks were off by 0.0 to 1.2 %
([evidence](../reports/evidence/nvidia-h100-80gb-hbm3/README.md)).
Where tunecheck has a measurement, it uses that (`tunecheck.memory`).

1. **Static memory** is computed from the configuration, exact to the byte (`tunecheck.memory.prediction`): packed 4-bit
   weights with both levels of quantization statistics, other weights in their dtype, adapters, gradients, AdamW's
   moments.
2. **Temporary memory** is simulated (`tunecheck.memory.simulate`). transformers, peft, bitsandbytes and the trainer's
   own functions run two steps and an evaluation on fake tensors. Each storage counts from allocation to release, in
   blocks of 512 bytes as in PyTorch's CUDA allocator.
3. **Memory besides tensors** is [a constant](#memory-besides-tensors).

A test runs the same code with real tensors on a two-layer model. The simulated peaks equal the real ones to the byte,
and torch's own CPU allocator reports the same within 128 bytes (`tests/memory/test_simulate.py`).

`tunecheck estimate RUN --fallback` also simulates offloading:

- `training.offload: parameters` keeps on the GPU the layer in use (briefly twice), the parameters outside the layers,
  and one layer's gradients until they are copied. A replacement for FSDP2 gathers and frees the layers. Its peaks equal
  FSDP2's to the byte, on a two-layer model on the CPU with torch 2.13 (`tests/memory/test_placed.py`).
- `training.offload: activations` keeps no activation on the GPU.

## Static bytes

NF4 with double quantization; embeddings, head and norms in bf16.

"""

MIDDLE = """
## Peaks

Peak of the tensors in a steady step, in 1e6 bytes: bf16, B rows of T tokens, LoRA with r=8 on q and v (LLaMA-7B: q, k,
v, o). *default* is `profile: plain`. *lean* is `lora.adapter_dtype: model` with a loss in chunks of 16 to 64 tokens.

The reference is another simulation, not a measurement. It assumes an attention mask in every batch, as padded batches
have one. transformers then also repeats keys and values for every query head. Rows of one length need neither. So the
table has two predictions:

- *with a mask* makes the reference's assumption.
- *as trained* is what `tunecheck estimate` prints. There a single row gets no mask.

Both agree with real tensors.
"""

TAIL = f"""
## Memory besides tensors

| constant | bytes | provenance | source |
|---|---:|---|---|
| cuBLAS workspace | {CUBLAS_WORKSPACE.bytes:,} | {CUBLAS_WORKSPACE.provenance} | {CUBLAS_WORKSPACE.source} |
| CUDA context | {CUDA_CONTEXT.bytes:,} | {CUDA_CONTEXT.provenance} | {CUDA_CONTEXT.source} |

`scripts/card-constants.py` measures both on your GPU and stores them in the cache. `tunecheck estimate` and admission
then use them for GPUs of that name. To share them, commit them in `reports/evidence/`.

`tunecheck estimate` prints two sums:

- *allocator*: the peak over all phases, the workspace, and up to 1 MiB that each block of large tensors holds beyond
  them. `torch.cuda.max_memory_allocated` should report the same.
- *process*: the allocator plus the CUDA context. A run fits a card class ({", ".join(map(str, CARD_CLASSES_GB))} GB) if
  the process fits into that many GB of 1e9 bytes. Such a card has as many GiB; the remaining 7 % are for the driver and
  for fragmentation.

## Limits of the prediction

- It leaves out fragmentation (reserved minus allocated memory).
- It leaves out scratch memory inside kernels, except the unpacked weight and scales of the 4-bit product and the sums
  of flash attention's backward pass.
- It leaves out tunecheck's own probes, which need memory at the start and the end of a run.
- It counts `training.precision: auto` as bf16. GPUs of compute capability 7.x use fp16, which takes as much.
- It counts each row as `data.max_length` tokens, and a batch of several rows as padded. Shorter rows need less.
- Full fine-tuning in 16 bit runs under autocast with the CPU's list of operations, which differs slightly from CUDA's.
- `flash_attention_2` counts as PyTorch's own flash kernel. Dropout counts as on the CPU, whose masks are wider.
"""


if __name__ == "__main__":
    main()
