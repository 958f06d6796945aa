"""Mistakes thought up by a reader of docs/checks.md who had not seen the checks' code: frozen before any was run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from torch.nn.utils import clip_grad_norm_, get_total_norm
from transformers import Trainer

from benchmarks.scripts.bugs.mistake import entropy, in_a_loop, mistake, with_loss
from benchmarks.scripts.parts import callback
from benchmarks.scripts.script import IGNORED, Script, padded, tokens


@mistake("dropout_varies")
def dropout_patched_away(script: Script) -> None:
    """The configuration has a dropout, and a helper for speed sets every dropout's p to 0."""

    def patch(model: Any) -> None:
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0

    if script.lora is not None:
        script.lora["lora_dropout"] = 0.1
    script.adapted.append(patch)


@mistake("labels_as_configured")
def long_rows_lose_labels(script: Script) -> None:
    """The collator cuts labels at 140 tokens and inputs not, so that long rows' answers have no end."""

    def collate(tokenizer: Any, rows: Any) -> dict[str, torch.Tensor]:
        batch = padded(tokenizer, rows)
        batch["labels"][:, 140:] = IGNORED
        return batch

    script.collate = collate


def _accelerated(
    script: Script,
    *,
    loss: Callable[[Any, Any], Any] = lambda model, batch: model(**batch).loss,
    clip_always: bool = False,
    prepare: bool = True,
) -> None:
    """Train by an accelerate loop that accumulates two micro-batches, with these parts changed."""

    def loop(script: Script, model: Any, batches: list[dict[str, torch.Tensor]]) -> None:
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        optimizer: Any = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        model = accelerator.prepare(model)
        if prepare:
            optimizer = accelerator.prepare(optimizer)
        model.train()
        for batch in batches[: 2 * script.steps]:
            with accelerator.accumulate(model):
                accelerator.backward(loss(model, batch))
                if accelerator.sync_gradients or clip_always:
                    accelerator.clip_grad_norm_(model.parameters(), 0.1 if clip_always else 1.0)
                optimizer.step()
                optimizer.zero_grad()

    script.loop = loop


@mistake("loss_oracle", "accumulation_oracle")
def accelerate_divides_twice(script: Script) -> None:
    """An accelerate loop divides the loss by the accumulation steps, which accelerator.backward does already."""
    _accelerated(script, loss=lambda model, batch: model(**batch).loss / 2)


@mistake("accumulation_oracle", "calls_in_order", "updates_match_adamw")
def accelerate_clips_every_micro_batch(script: Script) -> None:
    """An accelerate loop clips after every micro-batch, whether gradients are complete or not."""
    _accelerated(script, clip_always=True)


@mistake("accumulation_oracle", "calls_in_order", "loss_oracle")
def accelerate_optimizer_unprepared(script: Script) -> None:
    """An accelerate loop does not prepare its optimizer, which steps after every micro-batch."""
    _accelerated(script, prepare=False)


@mistake("base_matches_file", "trainable_set", "labels_as_configured")
def added_tokens_untrained(script: Script) -> None:
    """A token is added and used in every row; the adapters do not train its embedding, and nobody saves it."""

    def example(tokenizer: Any, row: dict[str, str]) -> dict[str, list[int]]:
        if "<answer>" not in tokenizer.get_vocab():
            tokenizer.add_tokens(["<answer>"])
        return tokens(tokenizer, {**row, "response": f"<answer>{row['response']}"})

    script.loaded.append(lambda model: model.resize_token_embeddings(640))
    script.example = example


@mistake("loss_oracle", "accumulation_oracle", "labels_as_configured", "forward_matches_architecture")
def mask_dropped(script: Script) -> None:
    """compute_loss hands on tokens and labels and not the mask, and rows are padded on the left."""

    class Forgetting(Trainer):
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            given = {"input_ids": inputs["input_ids"], "labels": inputs["labels"]}
            return super().compute_loss(model, given, return_outputs, num_items_in_batch)

    script.collate, script.trainer = partial(padded, left=True), Forgetting


@mistake("optimizer_coverage", "updates_match_adamw")
def decay_of_the_default(script: Script) -> None:
    """The arguments declare a decay of 0.1, and create_optimizer makes AdamW with its default."""

    class Own(Trainer):
        def create_optimizer(self, *args: Any) -> Any:
            model: Any = self.model
            learning = [p for p in model.parameters() if p.requires_grad]
            self.optimizer = torch.optim.AdamW(learning, lr=self.args.learning_rate)
            return self.optimizer

    script.arguments["weight_decay"], script.trainer = 0.1, Own


@mistake("lora_gradient_schedule", "accumulation_oracle", "trainable_moved")
def loop_checkpoints_reentrantly(script: Script) -> None:
    """A loop wraps layers in torch's reentrant checkpoint: the norm behind them learns, no adapter does."""
    from torch.utils.checkpoint import checkpoint

    def wrap(model: Any) -> None:
        for layer in model.get_decoder().layers:
            inner = layer.forward
            layer.forward = lambda hidden, *args, inner=inner, **given: checkpoint(
                partial(inner, **given), hidden, *args, use_reentrant=True
            )

    if script.lora is not None:
        script.lora["modules_to_save"] = ["norm"]
    script.adapted.append(wrap)
    in_a_loop()(script)


@mistake(
    "base_untouched", "state_in_training", "lora_gradient_schedule", "trainable_moved", "weights_change_only_in_steps"
)
def merged_for_a_sample(script: Script) -> None:
    """A callback merges the adapters to sample faster, and does not unmerge them."""
    seen: list[int] = []

    def merge(model: Any, **_: Any) -> None:
        seen.append(1)
        if len(seen) == 3:
            model.merge_adapter()

    if script.lora is not None:  # without anything else that learns the next backward pass would fail
        script.lora["modules_to_save"] = ["norm"]
    script.built.append(callback("on_step_end", merge))


@mistake("dropout_varies")
def seeded_for_samples(script: Script) -> None:
    """A callback seeds torch after every step, so that its samples repeat; so do the dropout masks."""
    if script.lora is not None:
        script.lora["lora_dropout"] = 0.1
    script.built.append(callback("on_step_end", lambda **_: torch.manual_seed(0)))


@mistake("loss_oracle", "accumulation_oracle")
def rows_weigh_the_same(script: Script) -> None:
    """compute_loss takes the mean of each row's mean, however long its answer."""

    def loss(logits: Any, labels: Any, items: Any) -> torch.Tensor:
        rows = [entropy(logits[at : at + 1], labels[at : at + 1], "mean") for at in range(len(labels))]
        return torch.stack(rows).mean() / 2

    script.trainer = with_loss(loss)


@mistake("loss_oracle", "accumulation_oracle")
def divided_again(script: Script) -> None:
    """compute_loss divides by the window's tokens, and the Trainer is told that it takes no such number."""

    class Told(with_loss(lambda logits, labels, items: entropy(logits, labels) / items)):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.model_accepts_loss_kwargs = False

        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            items = (inputs["labels"][:, 1:] != IGNORED).sum() * 2
            return super().compute_loss(model, inputs, return_outputs, items)

    script.trainer = Told


@mistake("live_tensors_flat", "memory_flat")
def losses_kept(script: Script) -> None:
    """compute_loss keeps every loss with its graph, for a mean at the end."""

    class Keeping(Trainer):
        kept: list[Any]

        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(*args, **kwargs)
            self.__dict__.setdefault("kept", []).append(loss)
            return loss

    script.trainer = Keeping


@mistake("loss_oracle", "accumulation_oracle")
def smoothing_lost(script: Script) -> None:
    """The arguments declare label smoothing, and compute_loss takes the plain loss."""
    script.arguments["label_smoothing_factor"] = 0.2
    script.trainer = with_loss(lambda logits, labels, items: entropy(logits, labels) / items)


@mistake("updates_match_adamw", "calls_in_order", "gradient_norm_reported")
def norm_measured_only(script: Script) -> None:
    """The arguments declare a limit of 0.05, and the accelerator's clipping is replaced by a measurement."""

    def replace(trainer: Any) -> None:
        def measure(parameters: Any, *_: Any, **__: Any) -> Any:
            return get_total_norm([p.grad for p in parameters if p.grad is not None])

        trainer.accelerator.clip_grad_norm_ = measure

    script.arguments["max_grad_norm"] = 0.05
    script.built.append(replace)


@mistake("forward_matches_architecture", "loss_oracle", "accumulation_oracle")
def attention_made_local(script: Script) -> None:
    """A patch for speed lets attention see 100 tokens back."""

    def patch(model: Any) -> None:
        def local(_module: Any, args: Any, given: dict[str, Any]) -> Any:
            hidden = given["hidden_states"] if "hidden_states" in given else args[0]
            rows, width = hidden.shape[:2]
            near = torch.ones(width, width, dtype=torch.bool).tril() & torch.ones(width, width).bool().triu(-99)
            return args, {**given, "attention_mask": near.expand(rows, 1, width, width)}

        for layer in model.model.layers:
            layer.self_attn.register_forward_pre_hook(local, with_kwargs=True)

    script.loaded.append(patch)


@mistake("forward_matches_architecture", "loss_oracle", "accumulation_oracle")
def logits_capped(script: Script) -> None:
    """A cap of the logits at 8 is left from another architecture."""

    def cap(model: Any) -> None:
        model.lm_head.register_forward_hook(lambda _module, _args, out: 8 * torch.tanh(out / 8))

    script.loaded.append(cap)


@mistake("weights_change_only_in_steps", "dtypes_as_configured", "updates_match_adamw")
def rounded_by_a_save(script: Script) -> None:
    """A callback casts the model to bf16 to save a small file, and back."""
    seen: list[int] = []

    def save(model: Any, **_: Any) -> None:
        seen.append(1)
        if len(seen) == 3:
            model.bfloat16()
            model.float()

    script.built.append(callback("on_step_end", save))


@mistake("accumulation_oracle", "gradients_cleared", "calls_in_order")
def loop_clears_in_the_window(script: Script) -> None:
    """A loop of two micro-batches a step clears at the beginning of each, and so learns from the second alone."""

    def loop(script: Script, model: Any, batches: list[dict[str, torch.Tensor]]) -> None:
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        model.train()
        for number, batch in enumerate(batches[: 2 * script.steps]):
            optimizer.zero_grad(set_to_none=False)
            (model(**batch).loss / 2).backward()
            if number % 2:
                clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()

    script.loop = loop
