"""Healthy trainings as well-known public recipes have them, and which were flagged when first tried."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from peft import AdaLoraConfig, get_peft_model
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim.swa_utils import AveragedModel
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.scripts.parts import Change, callback, fields, masked_tokens, one_micro_batch, other
from benchmarks.scripts.script import IGNORED, Script, loaded, padded, plain_loop, tokens

Batches = list[dict[str, torch.Tensor]]
WINDOW = 2
"""Micro-batches a step."""


def _windows(script: Script, batches: Batches) -> list[Batches]:
    return [batches[WINDOW * step : WINDOW * (step + 1)] for step in range(script.steps)]


def _optimizer(model: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)


def means_averaged(script: Script, model: Any, batches: Batches) -> None:
    """Each micro-batch's mean over their number, as accelerate's examples and Lightning have it."""
    held = _optimizer(model)
    model.train()
    for window in _windows(script, batches):
        for batch in window:
            (model(**batch).loss / WINDOW).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        held.step()
        held.zero_grad()


def sums_divided_later(script: Script, model: Any, batches: Batches) -> None:
    """The loss is a sum, and the gradients are divided by the window's tokens, as torchtune and fairseq have it."""
    held = _optimizer(model)
    model.train()
    for window in _windows(script, batches):
        tokens = [int((batch["labels"][:, 1:] != IGNORED).sum()) for batch in window]
        for batch, own in zip(window, tokens, strict=True):
            (model(**batch).loss * own).backward()
        for p in model.parameters():
            if p.grad is not None:
                p.grad *= 1 / sum(tokens)
        held.step()
        held.zero_grad()


def cast_within(model: Any) -> None:
    """The forward enters autocast by itself, as accelerate's mixed precision has it."""
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)


class ByHand(torch.nn.Module):
    """A linear with an adapter of the script's own (lit-llama, torchtune, ReLoRA)."""

    def __init__(self, base: torch.nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base
        self.down = torch.nn.Linear(base.in_features, rank, bias=False)
        self.up = torch.nn.Linear(rank, base.out_features, bias=False)
        torch.nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the linear's result and the adapter's."""
        result: torch.Tensor = self.base(x) + self.up(self.down(x))
        return result

    @torch.no_grad()
    def merge(self) -> None:
        """Add the adapter to the linear, and begin a new one (arXiv 2307.05695)."""
        self.base.weight += self.up.weight @ self.down.weight
        torch.nn.init.normal_(self.down.weight, std=0.02)
        torch.nn.init.zeros_(self.up.weight)


def by_hand(dtype: torch.dtype) -> Any:
    """Return the tiny model with such adapters, which alone learn."""
    model = loaded(dtype)
    model.requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.q_proj = ByHand(layer.self_attn.q_proj)
    return model


def merging(script: Script, model: Any, batches: Batches) -> None:
    """A loop that merges in the middle, and begins new adapters."""
    held = _optimizer(model)
    for step, batch in enumerate(batches[: script.steps]):
        model(**batch).loss.backward()
        held.step()
        held.zero_grad()
        if step == script.steps // 2:
            for layer in model.model.layers:
                layer.self_attn.q_proj.merge()


def allocating(script: Script, model: Any, batches: Batches) -> None:
    """A loop that has AdaLoRA allocate its ranks after each step."""
    held = _optimizer(model)
    for step, batch in enumerate(batches[: script.steps]):
        model(**batch).loss.backward()
        held.step()
        model.base_model.update_and_allocate(step)
        held.zero_grad()


def adaptive(dtype: torch.dtype) -> Any:
    """Return the tiny model with adapters whose ranks are allocated."""
    settings: dict[str, Any] = {"init_r": 4, "target_r": 2, "tinit": 1, "tfinal": 1, "deltaT": 1, "total_step": 6}
    return get_peft_model(loaded(dtype), AdaLoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM", **settings))


def layers_in_turn(script: Script) -> None:
    """A callback has half of the layers learn, and the other half from the fourth step on (LISA, arXiv 2403.17919)."""

    steps = itertools.count()

    def switch(model: Any, **_: Any) -> None:
        later = next(steps) >= 3
        for number, layer in enumerate(model.model.layers):
            layer.requires_grad_(number % 2 == later)

    script.lora = None
    script.built.append(callback("on_step_begin", switch))


def adapters_in_turn(script: Script, model: Any, batches: Batches) -> None:
    """Two adapters of one model learn one after the other, each with an optimizer of its own (peft's set_adapter)."""
    model.add_adapter("second", model.peft_config["default"])
    for name in ("default", "second"):
        model.set_adapter(name)
        plain_loop(replace(script, steps=script.steps // 2), model, batches)


def noisy(model: Any) -> None:
    """Noise is added to the embeddings by a hook (NEFTune, arXiv 2310.05914)."""

    def add_noise(module: torch.nn.Module, _: Any, out: torch.Tensor) -> torch.Tensor:
        return out + torch.empty_like(out).uniform_(-1e-2, 1e-2) if module.training else out

    model.get_input_embeddings().register_forward_hook(add_noise)


def stepping_within_backward(script: Script, model: Any, batches: Batches) -> None:
    """Each tensor has an optimizer, which steps as its gradient is there (LOMO, arXiv 2306.09782)."""
    held = {p: torch.optim.AdamW([p], lr=1e-3) for p in model.parameters() if p.requires_grad}

    def step(parameter: torch.Tensor) -> None:
        held[parameter].step()
        held[parameter].zero_grad()

    for parameter in held:
        parameter.register_post_accumulate_grad_hook(step)
    model.train()
    for batch in batches[: script.steps]:
        model(**batch).loss.backward()


def tokens_added(script: Script) -> None:
    """Tokens are added; embedding and head, parted from each other, are learned beside the adapters."""

    def enlarge(model: Any) -> None:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
        model.resize_token_embeddings(model.config.vocab_size + 64)

    script.loaded.append(enlarge)
    if script.lora is not None:
        script.lora["modules_to_save"] = ["embed_tokens", "lm_head"]


def tokens_learned(script: Script) -> None:
    """Tokens are added, and their rows alone are learned, of an embedding that is the head, too."""
    script.loaded.append(lambda model: model.resize_token_embeddings(576))
    if script.lora is not None:
        script.lora |= {"use_dora": True, "trainable_token_indices": [512, 513]}

    def example(tokenizer: Any, row: dict[str, str]) -> dict[str, list[int]]:
        held = tokens(tokenizer, row)
        return {"input_ids": [512, *held["input_ids"], 513], "labels": [IGNORED, *held["labels"], 513]}

    script.example = example


def pissa(script: Script) -> None:
    """The adapters begin with the base's largest singular values, which are taken out of it (arXiv 2404.02948)."""
    if script.lora is not None:
        script.lora["init_lora_weights"] = "pissa"


def whole_rows_padded_left(script: Script) -> None:
    """Every token has a label, a row's first one too, before which there is padding."""
    script.example = lambda tokenizer, row: {
        name: tokens(tokenizer, row)["input_ids"] for name in ("input_ids", "labels")
    }
    script.collate = lambda tokenizer, rows: padded(tokenizer, rows, left=True)


def pairs_masked(script: Script, model: Any, batches: Batches) -> None:
    """A loop whose mask has a value for each pair of positions, as packed rows have."""
    held = _optimizer(model)
    model.train()
    for batch in batches[: script.steps]:
        real = batch["attention_mask"].bool()
        seen = (real[:, None, :] & torch.ones(real.shape[1], real.shape[1]).tril().bool())[:, None]
        least = torch.finfo(torch.float32).min
        model(**{**batch, "attention_mask": torch.where(seen, 0.0, least)}).loss.backward()
        held.step()
        held.zero_grad()


def sorter(dtype: torch.dtype) -> Any:
    """Return a model with a vocabulary of three and eleven positions (minGPT's demo)."""
    sizes: dict[str, Any] = {"vocab_size": 3, "n_positions": 11, "n_embd": 32, "n_layer": 2, "n_head": 2}
    drops: dict[str, Any] = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model: Any = GPT2LMHeadModel(GPT2Config(**sizes, **drops))
    return model.to(dtype)


def sorting(script: Script, model: Any, batches: Batches) -> None:
    """A loop that learns to sort six of the three numbers."""
    held = _optimizer(model)
    model.train()
    for _ in range(script.steps):
        numbers = torch.randint(3, (8, 6))
        ids = torch.cat([numbers, numbers.sort(dim=1).values[:, :-1]], dim=1)
        labels = torch.cat([torch.full((8, 5), IGNORED), numbers.sort(dim=1).values], dim=1)
        logits = model(input_ids=ids).logits
        loss: Any = cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED)
        loss.backward()
        held.step()
        held.zero_grad()


class Kept(list[dict[str, torch.Tensor]]):
    """Rows as tensors that are made when they are first read, and kept (FastChat)."""

    def __getitem__(self, at: Any) -> Any:
        row = super().__getitem__(at)
        if not isinstance(row["labels"], torch.Tensor):
            self[at] = row = {name: torch.tensor(value) for name, value in row.items()}
        return row


def kept_as_read(script: Script) -> None:
    """The data set keeps what it was asked for."""
    script.built.append(lambda trainer: setattr(trainer, "train_dataset", Kept(trainer.train_dataset)))
    script.collate = lambda tokenizer, rows: padded(
        tokenizer, [{name: value.tolist() for name, value in row.items()} for row in rows]
    )


TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + eos_token + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


def chat(tokenizer: Any, row: dict[str, str], *, prompt: bool = False) -> dict[str, list[int]]:
    """Return a row as a conversation that is learned whole (alignment-handbook), with a prompt for more behind it."""
    tokenizer.chat_template = TEMPLATE
    pairs = ("user", row["instruction"]), ("assistant", row["response"])
    messages = [{"role": role, "content": content} for role, content in pairs]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
    ids = tokenizer(text)["input_ids"]
    return {"input_ids": ids, "labels": list(ids)}


def longer_targets(script: Script) -> None:
    """What a decoder is to write is longer than what its encoder reads, and both are padded to one width."""
    other("bart", "AutoModelForSeq2SeqLM", is_decoder=False, pad_token_id=0, eos_token_id=2)(script)

    def collate(tokenizer: Any, rows: Any) -> dict[str, torch.Tensor]:
        batch = padded(tokenizer, rows)
        read = batch["attention_mask"] * (torch.arange(batch["input_ids"].shape[1]) < 8)
        return {
            "input_ids": batch["input_ids"].masked_fill(read == 0, 0),
            "attention_mask": read,
            "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, IGNORED),
        }

    script.collate = collate


def averaged(script: Script) -> None:
    """A loop that averages its weights, and saves the average alone."""
    averages: list[Any] = []
    script.adapted.append(lambda model: averages.append(AveragedModel(model)))
    script.loop = partial(plain_loop, around=lambda step, model, optimizer: averages[0].update_parameters(model))
    script.after = lambda _, folder: averages[0].module.save_pretrained(folder)


RECIPES: dict[str, tuple[Change, ...]] = {
    "loop, means averaged": (fields(lora=None, loop=means_averaged),),
    "loop, sums divided later": (fields(loop=sums_divided_later),),
    "loop, autocast within": (fields(lora=None, loop=means_averaged), lambda script: script.loaded.append(cast_within)),
    "loop, adapters by hand": (fields(lora=None, base=by_hand, loop=means_averaged),),
    "loop, adapters merged on the way": (fields(lora=None, base=by_hand, loop=merging),),
    "AdaLoRA": (fields(lora=None, base=adaptive, loop=allocating),),
    "BERT, decay": (
        other("bert", "AutoModelForMaskedLM", is_decoder=False),
        masked_tokens,
        lambda script: script.arguments.update(weight_decay=0.1),
    ),
    "rows kept as read": (kept_as_read,),
    "layers in turn": (layers_in_turn,),
    "loop, adapters in turn": (fields(loop=adapters_in_turn),),
    "loop, noise by a hook": (fields(lora=None, loop=plain_loop), lambda script: script.loaded.append(noisy)),
    "loop, steps within the backward pass": (fields(lora=None, loop=stepping_within_backward),),
    "tokens added": (tokens_added,),
    "tokens learned, tied": (tokens_learned,),
    "PiSSA": (pissa,),
    "whole rows, padded on the left": (whole_rows_padded_left,),
    "loop, mask of pairs": (fields(lora=None, loop=pairs_masked),),
    "loop, three tokens": (fields(lora=None, base=sorter, loop=sorting),),
    "loop, average saved": (fields(lora=None), averaged),
    "encoder and decoder, longer targets": (longer_targets, one_micro_batch),
    "chat, learned whole": (fields(example=chat),),
    "saved": (lambda script: setattr(script, "after", lambda model, folder: model.save_pretrained(folder)),),
}
"""Name to what it changes of the plain script."""
