"""The frameworks that are tried under `tunecheck watch`: what each needs installed, and its trainings."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.releases.pairs import DATASETS_NEED, HTTPX, STACKS

Commands = dict[str, tuple[str, ...]]
"""Variant of a training to its command: {python}, {bin}, {trainings}, {out}, {model}, {folder} are filled in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """An environment, and the trainings that are tried in it."""

    name: str
    packages: tuple[str, ...]
    """Installed without dependencies above this environment's own libraries; empty for these as they are."""
    trainings: Commands
    without: tuple[str, ...] = ()
    """Files of packages that are left out: libraries that need a GPU's."""
    variables: dict[str, str] = field(default_factory=dict)
    """Environment variables of its commands."""


def _hf(*kinds: str) -> Commands:
    return {kind: ("{python}", "{trainings}/hf.py", "--kind", kind, "--out", "{out}") for kind in kinds}


def _sft(**variants: str) -> Commands:
    return {
        name.replace("_", ", "): ("{python}", "{trainings}/sft.py", *arguments.split(), "--out", "{out}")
        for name, arguments in variants.items()
    }


SFT = _sft(
    lora="--kind lora",
    lora_dropout="--kind lora --dropout 0.1",
    qlora="--kind qlora",
    full="--kind full",
    lora_packed="--kind lora --packing",
    lora_text="--kind lora --rows text",
    lora_assistant="--kind lora --rows assistant",
)
TRL_SFT = (
    *("{bin}/trl", "sft", "--model_name_or_path", "{model}", "--dataset_name", "{folder}/completions"),
    *("--use_peft", "--lora_r", "8", "--lora_target_modules", "q_proj", "v_proj", "--use_cpu", "--output_dir", "{out}"),
    *("--max_steps", "6", "--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2"),
    *("--learning_rate", "1e-4", "--logging_steps", "1", "--report_to", "none", "--bf16", "False"),
    *("--gradient_checkpointing", "False"),
)
LOOP = "{trainings}/loop.py", "--out", "{out}"
ACCELERATE_LOOP = "{trainings}/accelerate_loop.py", "--out", "{out}"
TORCHRUN = "{python}", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"
DATASETS_4 = ("datasets==4.8.0", *(name for name in DATASETS_NEED if not name.startswith("datasets=")))
SERVERS = "starlette", "sse-starlette", "fastapi", "uvicorn", "annotated-doc"
PLOTS = "matplotlib", "contourpy", "cycler", "kiwisolver", "pillow", "pyparsing", "fonttools"
LLAMA_FACTORY_NEEDS = (
    *(*STACKS["4.57"], "peft==0.18.1", "trl==0.24.0", "accelerate==1.11.0", "datasets==4.0.0", *DATASETS_4[1:]),
    *("fire", "termcolor", "omegaconf", "antlr4-python3-runtime==4.9.3", "einops", "tyro<0.9.0", "docstring-parser"),
    *("shtab", "eval-type-backport", "sentencepiece", "tiktoken", "protobuf", "av<=16.0.0", "hf-transfer"),
    *("modelscope", "scipy", *SERVERS, *PLOTS, "torchdata==0.11.0", "torchaudio"),
)

FRAMEWORKS: dict[str, Framework] = {
    framework.name: framework
    for framework in (
        Framework(
            name="transformers 4.45",
            packages=("transformers==4.45.2", *STACKS["4.45"]),
            trainings=_hf("full", "lora"),
        ),
        Framework(
            name="transformers 4.55",
            packages=("transformers==4.55.4", *STACKS["4.50"], "peft==0.17.1"),
            trainings=_hf("full", "lora", "qlora"),
        ),
        Framework(
            name="transformers 4.56",
            packages=("transformers==4.56.2", *STACKS["4.57"][:2], "accelerate==1.10.1", "peft==0.17.1"),
            trainings=_hf("full", "lora", "qlora"),
        ),
        Framework(
            name="transformers 5.0",
            packages=("transformers==5.0.0", "huggingface-hub==1.3.0", "tokenizers==0.22.2", *HTTPX),
            trainings=_hf("full", "lora", "qlora"),
        ),
        Framework(name="transformers, newest", packages=(), trainings=_hf("full", "lora", "qlora")),
        Framework(
            name="TRL 0.24",
            packages=("trl==0.24.0", *STACKS["4.57"], "accelerate==1.11.0", "peft==0.17.1", *DATASETS_NEED),
            trainings=SFT | {"`trl sft`, SmolLM2, lora": TRL_SFT},
        ),
        Framework(
            name="TRL, newest",
            packages=("trl==1.16.0", *DATASETS_4, *HTTPX),
            trainings=SFT | {"`trl sft`, SmolLM2, lora": TRL_SFT},
        ),
        Framework(
            name="LLaMA-Factory",
            packages=("llamafactory==0.9.5", *LLAMA_FACTORY_NEEDS),
            trainings={
                "`llamafactory-cli train`, SmolLM2, lora": (
                    "{bin}/llamafactory-cli",
                    "train",
                    "{folder}/llamafactory.yaml",
                )
            },
            without=("torchaudio/lib/_torchaudio.abi3.so", "torchaudio/lib/libtorchaudio.abi3.so"),
        ),
        Framework(
            name="accelerate",
            packages=(),
            trainings={
                "loop, lora": ("{python}", *ACCELERATE_LOOP),
                "loop, lora, `accelerate launch`": (
                    *("{python}", "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1"),
                    *ACCELERATE_LOOP,
                ),
            },
        ),
        Framework(
            name="PyTorch",
            packages=(),
            trainings={
                "loop, lora": ("{python}", *LOOP),
                "loop, full": ("{python}", *LOOP, "--kind", "full"),
                "loop, qlora": ("{python}", *LOOP, "--kind", "qlora"),
                "loop, lora, own cross entropy": ("{python}", *LOOP, "--own-loss"),
                "Trainer, lora, `torchrun`": (*TORCHRUN, "1", "{trainings}/hf.py", "--out", "{out}"),
                "Trainer, lora, `torchrun`, two processes": (*TORCHRUN, "2", "{trainings}/hf.py", "--out", "{out}"),
                "loop, lora, `torchrun`, two processes": (*TORCHRUN, "2", *LOOP),
            },
        ),
        Framework(
            name="Lightning",
            packages=("lightning==2.6.6", "pytorch-lightning==2.6.6", "torchmetrics", "lightning-utilities"),
            trainings={
                "lora": ("{python}", "{trainings}/lightning_module.py", "--out", "{out}"),
                "lora, own cross entropy": (
                    *("{python}", "{trainings}/lightning_module.py", "--own-loss", "--out", "{out}"),
                ),
            },
        ),
    )
}
