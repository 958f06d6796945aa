"""The frameworks that are tried under `tunecheck watch`: what each needs installed, and its trainings."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.releases.pairs import DATASETS_4, DATASETS_5, DATASETS_NEED, HTTPX, STACKS

Commands = dict[str, tuple[str, ...]]
"""Variant of a training to its command, with {python}, {bin}, {trainings}, {out}, {model}, {tiny}, {folder} in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """An environment, and the trainings that are tried in it."""

    name: str
    packages: tuple[str, ...]
    """Installed without dependencies above this environment's own libraries; empty for these as they are."""
    trainings: Commands
    bug: str = ""
    """A bug that these releases have: its issue, or where it lies."""
    named_by: tuple[str, ...] = ()
    """Checks that rightly fail by it, in some of the trainings."""
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
SERVERS = "starlette", "sse-starlette", "fastapi", "uvicorn", "annotated-doc"
PLOTS = "matplotlib", "contourpy", "cycler", "kiwisolver", "pillow", "pyparsing", "fonttools"
STACK_4_57 = *STACKS["4.57"], "peft==0.18.1", "trl==0.24.0", "accelerate==1.11.0"
LLAMA_FACTORY_NEEDS = (
    *("llamafactory==0.9.5", "datasets==4.0.0", *DATASETS_4[1:]),
    *("fire", "termcolor", "omegaconf", "antlr4-python3-runtime==4.9.3", "einops", "tyro<0.9.0", "docstring-parser"),
    *("shtab", "eval-type-backport", "sentencepiece", "tiktoken", "protobuf", "av<=16.0.0", "hf-transfer"),
    *("modelscope", "scipy", *SERVERS, *PLOTS, "torchdata==0.11.0", "torchaudio==2.11.0"),
)
MS_SWIFT_NEEDS = (
    *("ms-swift==4.6.0", *DATASETS_4, *SERVERS, *PLOTS, *HTTPX),
    *("addict", "attrdict", "binpacking", "cpm-kernels", "dacite", "einops", "importlib-metadata", "zipp"),
    *("json-repair", "modelscope", "modelscope-hub", "nltk", "joblib", "openai", "jiter", "distro", "oss2", "crcmod"),
    *("pycryptodome", "aliyun-python-sdk-kms", "aliyun-python-sdk-core", "jmespath", "cryptography", "cffi"),
    *("pycparser", "rouge", "scipy", "sentencepiece", "simplejson", "tensorboard", "tensorboard-data-server"),
    *(
        "absl-py",
        "grpcio",
        "markdown",
        "protobuf",
        "werkzeug",
        "tiktoken",
        "transformers-stream-generator",
        "zstandard",
    ),
)
UNSLOTH_NEEDS = (
    *("unsloth==2026.10.9", "unsloth_zoo==2026.10.9", "datasets==4.8.0", "dill==0.4.0"),
    *("multiprocess==0.70.18", *(name for name in DATASETS_4[1:] if not name.startswith(("dill", "multiprocess")))),
    *("tyro", "docstring-parser", "shtab", "typeguard", "sentencepiece", "protobuf", "hf-transfer", "einops", "pillow"),
    *("msgspec", "cut_cross_entropy", "json5", "nest-asyncio", "structlog", "wheel", *HTTPX),
    "typing_extensions==4.15.0",
)
AXOLOTL_NEEDS = (
    *("transformers==5.16.1", "peft==0.20.0", "tokenizers==0.23.1", "huggingface_hub==1.17.0", "accelerate==1.13.0"),
    *("trl==1.9.0", "datasets==4.8.4", *DATASETS_4[1:], *HTTPX, "addict", "fire", "termcolor", "colorama"),
    *("python-dotenv==1.0.1", "schedulefree==1.4.1", "einops", "scipy", "art", "numba", "llvmlite", "posthog==6.7.11"),
    *("axolotl-contribs-lgpl==0.0.7", "axolotl-contribs-mit==0.0.6", "backoff", "distro", "typer==0.25.1"),
    *("sentencepiece", "pydantic==2.12.5", "pydantic-core==2.41.5", "typing_extensions==4.15.0", "pillow", "fastcore"),
    *("triton", "evaluate", "wandb", "platformdirs", "protobuf", "opentelemetry-api", "opentelemetry-sdk"),
    *("opentelemetry-semantic-conventions", "kernels"),
)
LLAMA_FACTORY_TRAIN: Commands = {
    "`llamafactory-cli train`, SmolLM2, lora": ("{bin}/llamafactory-cli", "train", "{folder}/llamafactory.yaml")
}
OF_A_GPU = "torchaudio/lib/_torchaudio.abi3.so", "torchaudio/lib/libtorchaudio.abi3.so"
SWIFT_SFT = (
    *("{bin}/swift", "sft", "--model", "{tiny}", "--model_type", "llama", "--template", "chatml", "--use_cpu", "true"),
    *("--dataset", "{folder}/conversations/train.jsonl", "--tuner_type", "lora", "--lora_rank", "8"),
    *("--target_modules", "q_proj", "v_proj", "--torch_dtype", "float32", "--output_dir", "{out}", "--max_steps", "6"),
    *("--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2", "--learning_rate", "1e-4"),
    *("--logging_steps", "1", "--report_to", "none", "--gradient_checkpointing", "false", "--max_length", "256"),
    *("--split_dataset_ratio", "0"),
)
UNSLOTH_SFT: Commands = {
    "SFTTrainer, lora": ("{python}", "{trainings}/unsloth_sft.py", "--model", "{tiny}", "--out", "{out}")
}
FIRST_TOKEN_COUNTED = "huggingface/transformers#46204"
"""Of transformers before 5.11, where a row is supervised from its first token."""

FRAMEWORKS: dict[str, Framework] = {
    framework.name: framework
    for framework in (
        Framework(
            name="transformers 4.45",
            packages=("transformers==4.45.2", *STACKS["4.45"]),
            trainings=_hf("full", "lora"),
            bug="huggingface/transformers#34191",
            named_by=("loss_oracle", "accumulation_oracle"),
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
            bug=FIRST_TOKEN_COUNTED,
            named_by=("supervised_tokens", "loss_oracle", "accumulation_oracle"),
        ),
        Framework(
            name="TRL, newest",
            packages=("trl==1.16.0", *DATASETS_5, *HTTPX),
            trainings=SFT | {"`trl sft`, SmolLM2, lora": TRL_SFT},
        ),
        Framework(
            name="LLaMA-Factory",
            packages=(*STACK_4_57, *LLAMA_FACTORY_NEEDS),
            trainings=LLAMA_FACTORY_TRAIN,
            without=OF_A_GPU,
        ),
        Framework(
            name="LLaMA-Factory, transformers 5",
            packages=(
                *("transformers==5.6.0", *STACKS["5.9"], "peft==0.18.1", "trl==0.24.0", "accelerate==1.11.0"),
                *LLAMA_FACTORY_NEEDS,
            ),
            trainings=LLAMA_FACTORY_TRAIN,
            without=OF_A_GPU,
        ),
        Framework(name="ms-swift", packages=(*STACK_4_57, *MS_SWIFT_NEEDS), trainings={"`swift sft`, lora": SWIFT_SFT}),
        Framework(
            name="ms-swift, transformers 5",
            packages=("transformers==5.19.0", "peft==0.20.0", "trl==0.29.1", *MS_SWIFT_NEEDS),
            trainings={"`swift sft`, lora": SWIFT_SFT},
        ),
        Framework(
            name="unsloth",
            packages=(*STACK_4_57, *UNSLOTH_NEEDS),
            trainings=UNSLOTH_SFT,
            bug=FIRST_TOKEN_COUNTED,
            named_by=("supervised_tokens", "loss_oracle", "accumulation_oracle"),
        ),
        Framework(
            name="unsloth, transformers 5",
            packages=("transformers==5.17.0", "huggingface-hub==1.33.0", "trl==1.15.0", *UNSLOTH_NEEDS),
            trainings=UNSLOTH_SFT,
        ),
        Framework(
            name="axolotl",
            packages=("axolotl==0.19.0", *AXOLOTL_NEEDS),
            trainings={
                "`axolotl train`, lora": (*("{bin}/axolotl", "train", "{folder}/axolotl.yaml", "--launcher", "python"),)
            },
            bug="AxolotlTrainer averages micro-batch means, unless the model's forward takes num_items_in_batch",
            named_by=("loss_oracle", "accumulation_oracle"),
            variables={"AXOLOTL_DO_NOT_TRACK": "1", "DO_NOT_TRACK": "1"},
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
