"""A random model of two layers, a tokenizer of whole words, and rows of unequal length."""

from __future__ import annotations

import random
from typing import Any

import torch
import transformers

WORDS = 60
"""Plain words; the four special tokens come before them."""


def tokenizer() -> Any:
    """Return a tokenizer of whole words, whose first tokens are <unk>, <s>, </s> and <pad>."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    names = [*special.values(), *(f"w{number}" for number in range(WORDS))]
    made = Tokenizer(models.WordLevel({name: at for at, name in enumerate(names)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **special)


def model(family: str = "Llama", **changes: Any) -> Any:
    """Return a random model with the shapes of this family in small."""
    torch.manual_seed(0)
    shapes = {
        "vocab_size": WORDS + 4,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 3,
        "tie_word_embeddings": False,
        "initializer_range": 0.1,
    }
    config = getattr(transformers, f"{family}Config")(**{**shapes, **changes})
    return getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(config)


def texts(rows: int = 64, longest: int = 24) -> list[tuple[str, str]]:
    """Return prompts and answers, no two alike."""
    draw = random.Random(0)
    return [
        tuple(" ".join(f"w{draw.randrange(WORDS)}" for _ in range(draw.randint(3, longest))) for _ in range(2))  # type: ignore[misc]
        for _ in range(rows)
    ]


def token_rows(rows: int = 64, *, prompts_masked: bool = True) -> list[dict[str, list[int]]]:
    """Return the texts as tokens with labels: the answers' and the end's, or all."""
    words = tokenizer()
    made = []
    for prompt, answer in texts(rows):
        first, last = words(prompt)["input_ids"], [*words(answer)["input_ids"], words.eos_token_id]
        labels = [-100] * len(first) if prompts_masked else first
        made.append({"input_ids": first + last, "labels": labels + last})
    return made


def collate(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Pad to the longest row."""
    longest = max(len(row["input_ids"]) for row in rows)

    def padded(key: str, value: int) -> torch.Tensor:
        return torch.tensor([row[key] + [value] * (longest - len(row[key])) for row in rows])

    return {
        "input_ids": padded("input_ids", 3),
        "labels": padded("labels", -100),
        "attention_mask": torch.tensor([[int(at < len(row["input_ids"])) for at in range(longest)] for row in rows]),
    }


def arguments(folder: str, **changes: Any) -> Any:
    """Return the TrainingArguments of a short training on the CPU."""
    usual = {
        "output_dir": folder,
        "max_steps": 8,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
    }
    return transformers.TrainingArguments(**{**usual, **changes})


def train(model: Any, rows: list[dict[str, list[int]]], folder: str, **changes: Any) -> Any:
    """Train the model with transformers' Trainer and return that."""
    given = {name: changes.pop(name) for name in ("optimizers", "data_collator") if name in changes}
    trainer = transformers.Trainer(
        model=model, args=arguments(folder, **changes), train_dataset=rows, **{"data_collator": collate, **given}
    )
    trainer.train()
    return trainer
