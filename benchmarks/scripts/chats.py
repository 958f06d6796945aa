"""Healthy trainings as people write them with TRL's trainers, and which were flagged when first tried."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from peft import prepare_model_for_kbit_training
from torch.utils.data import WeightedRandomSampler
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer

from benchmarks.scripts.architectures import SAVED, small
from benchmarks.scripts.parts import Change, callback, fields, other
from benchmarks.scripts.script import IGNORED, TARGETS, Script, loaded, padded

ADDED = (300, 301, 302)
"""Tokens that the tiny model's tokenizer never gives: one of them is put into the rows."""


class Weighing(Trainer):
    """Longer rows are drawn more often, some of them again within an epoch."""

    def _get_train_sampler(self, *_: Any, **__: Any) -> Any:
        rows: Any = self.train_dataset
        weights = [float(len(row["input_ids"])) for row in rows]
        generator = torch.Generator().manual_seed(0)
        return WeightedRandomSampler(weights, len(weights), replacement=True, generator=generator)


class Collating(Trainer):
    """Rows come as they are, and become tensors where the loss is computed, as in TRL's GRPO."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the mean over the labels."""
        outputs = model(**padded(self.processing_class, inputs))
        return (outputs.loss, outputs) if return_outputs else outputs.loss


def biased(_: torch.dtype) -> Any:
    """Return a small Qwen2, whose linears have biases, in 4 bits that compute in bf16 and everything else in fp32.

    bitsandbytes has a bias in its input's dtype from the first pass on.
    """
    settings: dict[str, Any] = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.bfloat16}
    config: Any = BitsAndBytesConfig(load_in_4bit=True, **settings)  # type: ignore[no-untyped-call]
    plain = small("qwen2").to(torch.bfloat16)
    for name, parameter in plain.named_parameters():
        if name.endswith(".bias"):  # a fresh model's are 0
            parameter.data.copy_(torch.linspace(-1, 1, len(parameter)))
    folder = Path(tempfile.mkdtemp(dir=SAVED.name))
    plain.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=config)
    return prepare_model_for_kbit_training(model)  # type: ignore[no-untyped-call]


def untied(dtype: torch.dtype) -> Any:
    """Return the tiny model with a head of its own."""
    model = loaded(dtype)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.config.tie_word_embeddings = False
    return model


def _with_added(script: Script) -> None:
    """Have each row begin with the first of the added tokens, as a template's do."""
    plain = script.example

    def example(tokenizer: Any, row: dict[str, str]) -> dict[str, list[int]]:
        made = plain(tokenizer, row)
        return {"input_ids": [ADDED[0], *made["input_ids"]], "labels": [IGNORED, *made["labels"]]}

    script.example = example


def _recomputing_again(trainer: Any) -> None:
    """Turn recomputation off and on in each step, as TRL does around the pass of a reference."""

    def switch(model: Any, **_: Any) -> None:
        model.gradient_checkpointing_disable()
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()

    callback("on_step_begin", switch)(trainer)


_LORA: dict[str, Any] = {"r": 4, "lora_alpha": 8, "target_modules": TARGETS}


class ByClass(Trainer):
    """An optimizer is named by its class, with settings of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        settings = {"lr": 1e-2, "momentum": 0.9, "nesterov": True}
        super().__init__(*args, **{**kwargs, "optimizer_cls_and_kwargs": (torch.optim.SGD, settings)})


CHATS: dict[str, tuple[Change, ...]] = {
    "sampler with weights": (fields(trainer=Weighing),),
    "optimizer by its class": (fields(trainer=ByClass, lora=None),),
    "rows as they are": (fields(trainer=Collating, collate=lambda _, rows: rows),),
    "4 bits, biases": (fields(base=biased, arguments={"bf16": True}),),
    "added tokens, some in rows": (
        fields(base=untied, lora={**_LORA, "trainable_token_indices": list(ADDED)}),
        _with_added,
    ),
    "tied copies saved": (
        fields(lora={**_LORA, "modules_to_save": ["embed_tokens", "lm_head"], "ensure_weight_tying": True}),
    ),
    "recomputation switched": (
        lambda script: script.built.append(_recomputing_again),
        fields(arguments={"gradient_checkpointing": True}),
    ),
    "own dropout, checkpointed": (
        other("gpt2", "AutoModelForCausalLM"),
        fields(lora={"r": 4, "target_modules": ["c_attn"]}, arguments={"gradient_checkpointing": True}),
        lambda script: script.loaded.append(lambda model: model.eval()),  # as from_pretrained returns it
    ),
}
"""Name to what it changes of the plain script."""
