"""Model folders that need torch to be built, in a child process: `in_child` is the parent, the rest is the child."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tunecheck.core.errors import WeightsUnavailable
from tunecheck.core.helper import HelperFailed, ask
from tunecheck.core.paths import shipped_folder

BUILD_SECONDS = 3600.0
"""Timeout: LLaMA-7B with random weights takes minutes, SmolLM2 from GGUF about 20 s."""
SPECIAL = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
PAIR_VOCABULARY = 259 + 768
"""Tokens of the tokenizer for random weights whose vocabulary has room for it: bytes, three special ones and merges.
With 768 merges the shipped rows have at most 117 tokens, and the seven facts fill 8 blocks of 32."""


def in_child(model: str, request: dict[str, Any]) -> None:
    """Carry out the request in a child. Raises WeightsUnavailable with its error."""
    work, offline = "tunecheck.assets.build:built", {"HF_HUB_OFFLINE": "1"}
    try:
        answer = ask(work, request, about="the build", timeout_seconds=BUILD_SECONDS, environment=offline)
    except HelperFailed as error:
        answer = {"error": str(error)}
    if "error" in answer:
        raise WeightsUnavailable(
            f"{model}: the weights could not be built ({request['task']}): {answer['error']}. "
            "What to do: `tunecheck doctor` shows the libraries, the memory and the disk that it needs."
        )


# The child.


def built(request: dict[str, Any]) -> dict[str, Any]:
    """Build the folder and return {}, or its error."""
    try:
        TASKS[request.pop("task")](**request)
    except Exception as error:  # any error of the libraries becomes a message for the parent
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}
    return {}


def convert_gguf(*, file: str, out: str) -> None:
    """Convert the GGUF file to bf16 safetensors in the folder `out`, with config and tokenizer."""
    import gguf
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # two pure functions: transformers 5.23 parses the file three times and builds a table for every module
    for name in ("GGUFReader", "get_tensor_name_map"):
        setattr(gguf, name, functools.cache(getattr(gguf, name)))
    source = {"pretrained_model_name_or_path": str(Path(file).parent), "gguf_file": Path(file).name}
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(**source, local_files_only=True)

    # The loaded object counts as quantised and refuses to be saved; a new one of its class does not.
    if hasattr(config := loaded.config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        fresh = type(loaded)(config)
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in loaded.state_dict().items()}
    fresh.load_state_dict(weights, strict=True, assign=True)
    fresh.tie_weights()
    fresh.config.dtype = torch.bfloat16
    fresh.generation_config = loaded.generation_config
    fresh.save_pretrained(out)
    tokenizer.save_pretrained(out)


def draw_random(*, architecture: dict[str, Any], seed: int, out: str) -> None:
    """Save a model of this architecture with random weights in the folder `out`, with a tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    make = byte_tokenizer if architecture["vocab_size"] < PAIR_VOCABULARY else pair_tokenizer
    tokenizer = make(architecture["max_position_embeddings"])
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    torch.manual_seed(seed)
    auto: Any = AutoModelForCausalLM
    auto.from_config(AutoConfig.for_model(**architecture, **ends), dtype=torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)


def byte_tokenizer(model_max_length: int) -> Any:
    """Return a tokenizer with one token per byte, then <pad>, <s>, </s>; it adds none of these by itself."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *SPECIAL.values()]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return _of_transformers(tokenizer, model_max_length)


def pair_tokenizer(model_max_length: int) -> Any:
    """Return a byte-level BPE tokenizer of the shipped rows: with a token a byte they would not fit into max_length."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=PAIR_VOCABULARY,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    files = sorted((shipped_folder() / "configs" / "data").glob("*/*.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    tokenizer.train_from_iterator([text for row in rows for text in row.values() if isinstance(text, str)], trainer)
    return _of_transformers(tokenizer, model_max_length)


def _of_transformers(tokenizer: Any, model_max_length: int) -> Any:
    from tokenizers import decoders
    from transformers import PreTrainedTokenizerFast

    tokenizer.decoder = decoders.ByteLevel()
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=tokenizer, model_max_length=model_max_length, **SPECIAL)


TASKS: dict[str, Callable[..., None]] = {"gguf": convert_gguf, "random": draw_random}
