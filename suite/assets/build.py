"""Child process that builds model folders: `python -m suite.assets.build`, request as JSON on stdin. Imports torch.

On failure the last line on stdout is {"error", "disk_full"}.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> int:
    """Build the folder and return 0, or print the reason on stdout and return 1."""
    request = json.load(sys.stdin)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            TASKS[request.pop("task")](**request)
    except Exception as error:  # any error of the libraries becomes a message for the parent
        text = " ".join(str(error).split())[:500]
        print(json.dumps({"error": f"{type(error).__name__}: {text}", "disk_full": _is_disk_full(error)}))
        return 1
    return 0


def convert_gguf(*, file: str, out: str) -> None:
    """Convert the GGUF file to bf16 safetensors in the folder `out`, with config and tokenizer."""
    _read_gguf_once()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(Path(file).parent), "gguf_file": Path(file).name}
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(**source, local_files_only=True)

    # The loaded object counts as quantised and refuses to be saved; a new one of its class does not.
    config = loaded.config
    if hasattr(config, "quantization_config"):
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
    """Save a model of this architecture with random weights in the folder `out`, with a byte tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = byte_tokenizer(architecture["max_position_embeddings"])
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = AutoConfig.for_model(**architecture, **ends)
    torch.manual_seed(seed)
    auto: Any = AutoModelForCausalLM
    auto.from_config(config, dtype=torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)


def byte_tokenizer(model_max_length: int) -> Any:
    """Return a tokenizer with one token per byte, then <pad>, <s>, </s>; it adds none of these by itself."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<pad>", "<s>", "</s>"]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=tokenizer, model_max_length=model_max_length, **special)


def _read_gguf_once() -> None:
    """Cache GGUF parsing: transformers 5.23 parses the file three times and builds the name table for every module.

    This takes 20 s instead of 36. Both functions are pure, so caching their results changes nothing else.
    """
    import gguf

    for name in ("GGUFReader", "get_tensor_name_map"):
        setattr(gguf, name, functools.cache(getattr(gguf, name)))


def _is_disk_full(error: Exception) -> bool:
    """Return whether the disk was full; safetensors wraps the system's error, so that only its text shows it."""
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "os error 28" in str(error)


TASKS: dict[str, Callable[..., None]] = {"gguf": convert_gguf, "random": draw_random}

if __name__ == "__main__":
    sys.exit(main())
