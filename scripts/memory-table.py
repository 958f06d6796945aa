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
# Memory of a run before it runs

`tunecheck estimate RUN` predicts a run's GPU memory on a machine without GPU and without weights. **The peaks on this
page are predictions.** An H100 measured [the card's own share](#the-cards-own-share) and seven peaks of rows at full
length. The predictions are off by 0.0 to 1.2 % ([evidence](../reports/evidence/nvidia-h100-80gb-hbm3/README.md)).
tunecheck prefers measurements (`tunecheck.memory`).

1. Memory that stays on the card is arithmetic on the configuration, exact to the byte (`tunecheck.memory.prediction`).
   It holds packed 4-bit weights with both levels of statistics, the rest in its real dtype, adapters, gradients, and
   AdamW's moments.
2. Memory that comes and goes is simulated (`tunecheck.memory.simulate`). transformers, peft, bitsandbytes and the
   trainer's own functions run two steps and an evaluation on fake tensors. Every storage counts from allocation to
   release, rounded up to 512 bytes as PyTorch's CUDA allocator does.
3. Memory that the GPU needs besides tensors is a constant (see [the card's own share](#the-cards-own-share)).

**The simulation is tested.** On a two-layer model the same code also runs with real tensors. The simulated peaks
equal the real ones to the byte. They are within 128 bytes of what torch's own CPU allocator reports
(`tests/memory/test_simulate.py`).

**Offloading is simulated, too** (`tunecheck.memory.simulate`). `tunecheck estimate RUN --fallback` predicts what each
fallback step needs on the GPU. With `training.offload: parameters` that is the layer in use (briefly twice), the
parameters outside the layers, and the gradients of one layer until they are copied. With `activations` no activation
stays. A stand-in for FSDP2 gathers and frees the layers. Its peaks equal FSDP2's own to the byte on a two-layer model
on the CPU, with torch 2.13 (`tests/memory/test_placed.py`).

## Static bytes

NF4 with double quantisation, embeddings, head and norms in bf16.

"""

MIDDLE = """
## Peaks

The table has the peak of the tensors in a steady step, in 1e6 bytes. LoRA has r=8 on q and v (LLaMA-7B: q, k, v, o).
All is bf16, with B rows of T tokens. *default* is `profile: plain`. *lean* is `lora.adapter_dtype: model` and a loss
in chunks of 16 to 64 tokens.

The reference is an independent simulation, not a measurement. It counts an attention mask in every batch.
transformers cannot see on fake tensors that nothing is padded. It then makes a mask, and repeats keys and values
for every query head. A training on rows of one length does neither. So there are two columns. *With a mask* repeats
the reference's assumption, which holds for padded batches. *As trained* is the answer of `tunecheck estimate`, in
which a single row gets no mask. Both paths agree with real tensors.
"""

TAIL = f"""
## The card's own share

| constant | bytes | provenance | source |
|---|---:|---|---|
| cuBLAS workspace | {CUBLAS_WORKSPACE.bytes:,} | {CUBLAS_WORKSPACE.provenance} | {CUBLAS_WORKSPACE.source} |
| CUDA context | {CUDA_CONTEXT.bytes:,} | {CUDA_CONTEXT.provenance} | {CUDA_CONTEXT.source} |

`scripts/card-constants.py` measures both on a card. `tunecheck estimate` and admission then use its result on cards
of that name. The cache keeps it, and `reports/evidence/` keeps it for everybody.

*allocator* is the peak over all phases, the workspace, and what the blocks of large tensors hold beyond them, up to
1 MiB each. `torch.cuda.max_memory_allocated` should say the same.
*process* adds the context. A card class ({", ".join(map(str, CARD_CLASSES_GB))} GB) holds a run if the process fits
its GB of 1e9 bytes. Such a card has that many GiB; the 7 % between them are for the driver and for fragmentation.

## Limits of the prediction

- Fragmentation (reserved against allocated memory) is not in it. Nor is scratch memory inside kernels, except the
  unpacked weight and scales of the 4-bit product and the sums of flash attention's backward pass.
- tunecheck's own probes are not in it: a run that gathers evidence needs more at its start and end.
- `training.precision: auto` counts as bf16. Compute capability 7.x computes in fp16, which is as large.
- Rows count as long as `data.max_length`; a batch of several as padded. Shorter rows need less.
- Full fine-tuning in 16 bit runs under autocast with the CPU's list of operations, which differs from CUDA's in
  details.
- `flash_attention_2` counts as PyTorch's own flash kernel, and dropout as the CPU does it, whose masks are wider.
"""


if __name__ == "__main__":
    main()
