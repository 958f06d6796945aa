"""Mistakes thought up after the checks were written: on 2026-11-22 three of these 34 went unnamed at first.

Those were `rows_captured_late`, `one_batch_evaluated` and `loop_clips_after_step`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from transformers import Trainer

from benchmarks.scripts.bugs.mistake import entropy, in_a_loop, mistake, with_loss
from benchmarks.scripts.parts import callback
from benchmarks.scripts.script import IGNORED, Script, padded, tokens


@mistake("rows_come_once")
def rows_captured_late(script: Script) -> None:
    """Every example is made from the same row: a variable is captured late."""
    first: dict[str, dict[str, str]] = {}

    def example(tokenizer: Any, row: dict[str, str]) -> dict[str, list[int]]:
        first.setdefault("row", row)
        return tokens(tokenizer, first["row"])

    script.example = example


@mistake("mask_and_positions")
def positions_all_zero(script: Script) -> None:
    """The collator gives position_ids that are all zero."""

    def collate(tokenizer: Any, rows: Any) -> dict[str, torch.Tensor]:
        batch = padded(tokenizer, rows)
        batch["position_ids"] = torch.zeros_like(batch["input_ids"])
        return batch

    script.collate = collate


@mistake("mask_and_positions")
def mask_hides_prompt(script: Script) -> None:
    """The attention mask is made from the labels, so that the prompt is not attended to."""

    def collate(tokenizer: Any, rows: Any) -> dict[str, torch.Tensor]:
        batch = padded(tokenizer, rows)
        batch["attention_mask"] = (batch["labels"] != IGNORED).long()
        return batch

    script.collate = collate


@mistake("labels_as_configured")
def labels_of_another_row(script: Script) -> None:
    """The collator sorts the inputs by length, and not the labels."""

    def collate(tokenizer: Any, rows: Any) -> dict[str, torch.Tensor]:
        batch = padded(tokenizer, rows)
        batch["labels"] = batch["labels"].flip(0)
        return batch

    script.collate = collate


@mistake("labels_as_configured")
def end_never_supervised(script: Script) -> None:
    """The end token is in the input, and its label masked."""

    def example(tokenizer: Any, row: dict[str, str]) -> dict[str, list[int]]:
        held = tokens(tokenizer, row)
        held["labels"][-1] = IGNORED
        return held

    script.example = example


@mistake("labels_as_configured")
def responses_cut_off(script: Script) -> None:
    """A maximum of 20 tokens cuts nearly every answer off."""

    def example(tokenizer: Any, row: dict[str, str]) -> dict[str, list[int]]:
        held = tokens(tokenizer, row)
        return {name: ids[:12] for name, ids in held.items()}

    script.example = example


@mistake("loss_oracle", "accumulation_oracle")
def loss_smoothed(script: Script) -> None:
    """compute_loss smooths labels, which no argument says."""
    script.expect = {"loss": "token_mean"}
    script.trainer = with_loss(
        lambda logits, labels, items: (
            torch.nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1),
                labels[:, 1:].flatten(),
                ignore_index=IGNORED,
                reduction="sum",
                label_smoothing=0.1,
            )
            / items
        )
    )


@mistake("loss_oracle", "accumulation_oracle")
def last_token_dropped(script: Script) -> None:
    """compute_loss slices one token too many off."""
    script.trainer = with_loss(
        lambda logits, labels, items: (
            torch.nn.functional.cross_entropy(
                logits[:, :-2].flatten(0, 1), labels[:, 1:-1].flatten(), ignore_index=IGNORED, reduction="sum"
            )
            / items
        )
    )


@mistake("loss_normalised_over_accumulation", "loss_oracle", "accumulation_oracle")
def loss_capped(script: Script) -> None:
    """compute_loss caps the loss against spikes."""
    script.trainer = with_loss(lambda logits, labels, items: (entropy(logits, labels) / items).clamp(max=0.5))


@mistake("loss_oracle", "accumulation_oracle")
def temperature(script: Script) -> None:
    """compute_loss divides the logits by a temperature."""
    script.expect = {"loss": "token_mean"}
    script.trainer = with_loss(lambda logits, labels, items: entropy(logits / 1.1, labels) / items)


@mistake("loss_oracle", "accumulation_oracle")
def first_row_only(script: Script) -> None:
    """compute_loss takes the first row of each micro-batch."""
    script.trainer = with_loss(lambda logits, labels, items: entropy(logits[:1], labels[:1]) / items * 2)


@mistake("supervised_tokens", "loss_oracle", "accumulation_oracle")
def items_count_padding(script: Script) -> None:
    """get_batch_samples counts all tokens, padding and prompts too."""

    class Counting(Trainer):
        def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
            samples, _ = super().get_batch_samples(*args, **kwargs)
            return samples, torch.tensor(sum(batch["input_ids"].numel() for batch in samples))

    script.trainer = Counting


@mistake("loss_oracle", "accumulation_oracle")
def kl_penalty(script: Script) -> None:
    """compute_loss adds a penalty to stay near the base."""
    script.expect = {"loss": "token_mean"}

    class Near(Trainer):
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            outputs = model(**inputs)
            with torch.no_grad(), model.disable_adapter():
                base = model(**{k: v for k, v in inputs.items() if k != "labels"}).logits
            value = entropy(outputs.logits, inputs["labels"]) / num_items_in_batch
            value = value + 0.5 * (outputs.logits - base).square().mean()
            return (value, outputs) if return_outputs else value

    script.trainer = Near


@mistake("base_matches_file", "forward_matches_architecture")
def rope_scaled(script: Script) -> None:
    """A patch scales the rotary frequencies for longer contexts."""

    def scale(model: Any) -> None:
        model.model.rotary_emb.inv_freq.mul_(0.25)

    script.loaded.append(scale)


@mistake("forward_matches_architecture")
def activation_exchanged(script: Script) -> None:
    """A fused MLP uses GELU where the model has SiLU."""

    def swap(model: Any) -> None:
        for layer in model.model.layers:
            layer.mlp.act_fn = torch.nn.GELU()

    script.loaded.append(swap)


@mistake("base_matches_file")
def base_rounded(script: Script) -> None:
    """The base goes through fp16 on its way to the card and back."""

    def through(model: Any) -> None:
        model.half()
        model.float()

    script.loaded.append(through)


@mistake("optimizer_coverage", "updates_match_adamw")
def stepped_twice(script: Script) -> None:
    """A callback steps the optimizer, which the Trainer does already."""
    script.built.append(callback("on_pre_optimizer_step", lambda optimizer, **_: optimizer.step()))


@mistake("updates_match_adamw", "optimizer_coverage")
def betas_of_another_recipe(script: Script) -> None:
    """create_optimizer sets the betas of another recipe over those that are declared."""

    class Other(Trainer):
        def create_optimizer(self, *args: Any) -> Any:
            optimizer = super().create_optimizer(*args)
            for group in optimizer.param_groups:
                group["betas"] = (0.5, 0.9)
            return optimizer

    script.trainer = Other


@mistake("updates_match_adamw", "optimizer_coverage")
def epsilon_of_another_recipe(script: Script) -> None:
    """create_optimizer sets an epsilon that swallows small gradients."""

    class Other(Trainer):
        def create_optimizer(self, *args: Any) -> Any:
            optimizer = super().create_optimizer(*args)
            for group in optimizer.param_groups:
                group["eps"] = 1e-2
            return optimizer

    script.trainer = Other


@mistake("learning_rate_trace")
def warmup_in_micro_batches(script: Script) -> None:
    """create_scheduler counts the micro-batches as steps."""

    class Counting(Trainer):
        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            return super().create_scheduler(2 * num_training_steps, optimizer)

    script.trainer = Counting


@mistake("updates_match_adamw", "accumulation_oracle", "gradient_norm_reported")
def clipped_by_value(script: Script) -> None:
    """A callback clips by value, beside the norm that is declared."""
    script.built.append(
        callback(
            "on_pre_optimizer_step",
            lambda model, **_: clip_grad_value_([p for p in model.parameters() if p.grad is not None], 1e-4),
        )
    )


@mistake("accumulation_oracle", "updates_match_adamw", "weight_gradients")
def layers_gradient_dropped(script: Script) -> None:
    """A callback drops the gradient of the second layer, to save time."""

    def drop(model: Any, **_: Any) -> None:
        for name, parameter in model.named_parameters():
            if ".layers.1." in name and parameter.grad is not None:
                parameter.grad.zero_()

    script.built.append(callback("on_pre_optimizer_step", drop))


@mistake("accumulation_oracle", "updates_match_adamw", "weight_gradients")
def gradient_noised(script: Script) -> None:
    """A callback adds noise to the gradients."""

    def noise(model: Any, **_: Any) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.add_(1e-3 * torch.randn_like(parameter.grad))

    script.built.append(callback("on_pre_optimizer_step", noise))


@mistake("evaluation_reported", "weights_change_only_in_steps", "updates_match_adamw")
def averaged_weights_stay(script: Script) -> None:
    """Averaged weights are put in for the evaluation, and never taken out."""

    class Averaging(Trainer):
        def evaluate(self, *args: Any, **kwargs: Any) -> Any:
            model: Any = self.model
            with torch.no_grad():
                for p in model.parameters():
                    if p.requires_grad:
                        p.mul_(0.9)
            return super().evaluate(*args, **kwargs)

    script.trainer, script.evaluates = Averaging, True


@mistake("evaluation_reported")
def one_batch_evaluated(script: Script) -> None:
    """The loader for evaluation stops after its first batch."""

    class First(Trainer):
        def get_eval_dataloader(self, *args: Any, **kwargs: Any) -> Any:
            loader = super().get_eval_dataloader(*args, **kwargs)
            return [next(iter(loader))]

    script.trainer, script.evaluates = First, True
    script.arguments["per_device_eval_batch_size"] = 2


@mistake("adapter_round_trip")
def saved_rounded(script: Script) -> None:
    """_save writes the fp32 adapters in bf16."""

    class Small(Trainer):
        def _save(self, output_dir: Any = None, state_dict: Any = None) -> None:
            model: Any = self.model
            whole = {name: tensor.bfloat16() for name, tensor in model.state_dict().items()}
            model.save_pretrained(output_dir, state_dict=whole)

    script.trainer = Small


@mistake("adapter_round_trip")
def saved_under_other_names(script: Script) -> None:
    """_save strips the prefix, so that nothing is found when the adapters are loaded."""

    class Renaming(Trainer):
        def _save(self, output_dir: Any = None, state_dict: Any = None) -> None:
            model: Any = self.model
            from safetensors.torch import load_file, save_file

            model.save_pretrained(output_dir)
            path = f"{output_dir}/adapter_model.safetensors"
            save_file({name.removeprefix("base_model.model."): t for name, t in load_file(path).items()}, path)

    script.trainer = Renaming


@mistake("trainable_moved", "gradients_cleared", "accumulation_oracle")
def loop_clears_before_step(script: Script) -> None:
    """A loop clears the gradients between backward and step."""

    def loss(model: Any, batch: dict[str, torch.Tensor]) -> Any:
        value = model(**batch).loss
        return value

    def optimizer(model: Any) -> Any:
        made: Any = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        step = made.step
        made.step = lambda *args: (made.zero_grad(), step(*args))
        return made

    in_a_loop(loss=loss, optimizer=optimizer)(script)


@mistake("calls_in_order")
def loop_clips_after_step(script: Script) -> None:
    """A loop clips after the step."""

    def loop(script: Script, model: Any, batches: list[dict[str, torch.Tensor]]) -> None:
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        model.train()
        for step in range(script.steps):
            model(**batches[step]).loss.backward()
            optimizer.step()
            clip_grad_norm_(model.parameters(), 0.1)
            optimizer.zero_grad()

    script.loop = loop


@mistake("labels_as_configured", "loss_oracle")
def loop_masks_in_place(script: Script) -> None:
    """A loop writes ignored labels into the batch's input tokens."""

    def loss(model: Any, batch: dict[str, torch.Tensor]) -> Any:
        labels = batch["labels"]
        labels[:, -1] = batch["input_ids"][:, 0]
        return model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss

    in_a_loop(loss=loss)(script)


@mistake("mask_and_positions")
def loop_no_attention_mask(script: Script) -> None:
    """A loop pads on the left and gives no attention mask."""
    script.collate = lambda tokenizer, rows: padded(tokenizer, rows, left=True)

    def loss(model: Any, batch: dict[str, torch.Tensor]) -> Any:
        return model(input_ids=batch["input_ids"], labels=batch["labels"]).loss

    in_a_loop(loss=loss)(script)


@mistake("loss_oracle", "weight_gradients", "accumulation_oracle")
def loop_backward_twice(script: Script) -> None:
    """A loop calls backward twice on the same loss."""

    def loss(model: Any, batch: dict[str, torch.Tensor]) -> Any:
        value = model(**batch).loss
        value.backward(retain_graph=True)
        return value

    in_a_loop(loss=loss)(script)


@mistake("loss_oracle", "accumulation_oracle")
def loop_sum_of_tokens(script: Script) -> None:
    """A loop multiplies its loss by the number of rows."""
    in_a_loop(loss=lambda model, batch: model(**batch).loss * len(batch["input_ids"]))(script)


@mistake("weights_change_only_in_steps", "updates_match_adamw")
def loop_weights_restored(script: Script) -> None:
    """A loop puts the weights of its start back after each step, for a search that was given up."""
    start: dict[str, torch.Tensor] = {}

    def around(step: int, model: Any, optimizer: Any) -> None:
        if not start:
            start.update({n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad})
        elif step >= 2:
            with torch.no_grad():
                for n, p in model.named_parameters():
                    if p.requires_grad:
                        p.copy_(start[n])

    in_a_loop(around=around)(script)
