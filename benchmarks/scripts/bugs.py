"""Mistakes of users, each where a user would make it: in the rows, the collator, the model, a callback, the loop."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import Trainer, TrainerCallback

from benchmarks.scripts.script import IGNORED, Script, padded, plain_loop, tokens

Change = Callable[[Script], None]


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake, and the checks that name it: one of them is enough."""

    change: Change
    named_by: frozenset[str]

    @property
    def title(self) -> str:
        """What is wrong, in a sentence."""
        return (self.change.__doc__ or "").strip()


MISTAKES: dict[str, Mistake] = {}


def mistake(*checks: str) -> Callable[[Change], Change]:
    """Add a mistake that one of these checks must name."""

    def add(change: Change) -> Change:
        MISTAKES[change.__name__] = Mistake(change, frozenset(checks))
        return change

    return add


# Rows and collator.


@mistake("labels_as_declared")
def labels_shifted(script: Script) -> None:
    """The collator shifts the labels, and the loss shifts them again."""

    def collate(tokenizer: Any, rows: Any) -> dict[str, torch.Tensor]:
        batch = padded(tokenizer, rows)
        batch["labels"] = torch.cat([batch["labels"][:, 1:], torch.full_like(batch["labels"][:, :1], IGNORED)], dim=1)
        return batch

    script.collate = collate


@mistake("labels_as_declared")
def padding_learned(script: Script) -> None:
    """The collator pads the labels with the padding token, so that padding is learned."""

    def collate(tokenizer: Any, rows: Any) -> dict[str, torch.Tensor]:
        batch = padded(tokenizer, rows)
        batch["labels"][batch["attention_mask"] == 0] = tokenizer.pad_token_id
        return batch

    script.collate = collate


@mistake("labels_as_declared")
def end_masked_with_padding(script: Script) -> None:
    """The padding token is the end token, and the collator masks both."""

    def collate(tokenizer: Any, rows: Any) -> dict[str, torch.Tensor]:
        tokenizer.pad_token = tokenizer.eos_token
        batch = padded(tokenizer, rows)
        batch["labels"][batch["input_ids"] == tokenizer.pad_token_id] = IGNORED
        return batch

    script.collate = collate


@mistake("labels_as_declared", "finite")
def nothing_supervised(script: Script) -> None:
    """The response template is not found, so that every label is masked."""
    script.example = lambda tokenizer, row: {
        "input_ids": (ids := tokens(tokenizer, row)["input_ids"]),
        "labels": [IGNORED] * len(ids),
    }


@mistake("labels_as_declared")
def start_doubled(script: Script) -> None:
    """The template writes a start token, and the tokenizer adds another."""

    def example(tokenizer: Any, row: dict[str, str]) -> dict[str, list[int]]:
        held = tokens(tokenizer, row)
        start = tokenizer.bos_token_id
        return {"input_ids": [start, start, *held["input_ids"]], "labels": [IGNORED, IGNORED, *held["labels"]]}

    script.example = example


@mistake("labels_as_declared")
def left_padding_unmasked(script: Script) -> None:
    """Rows are padded on the left, and the attention mask says that padding is text."""

    def collate(tokenizer: Any, rows: Any) -> dict[str, torch.Tensor]:
        batch = padded(tokenizer, rows, left=True)
        batch["attention_mask"] = torch.ones_like(batch["attention_mask"])
        return batch

    script.collate = collate


@mistake("rows_come_once")
def same_batch(script: Script) -> None:
    """The loader is asked for its first batch in every step."""

    class Repeating(Trainer):
        def get_train_dataloader(self) -> Any:
            first = next(iter(super().get_train_dataloader()))
            return _Endless(first)

    script.trainer = Repeating


class _Endless:
    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __iter__(self) -> Any:
        return itertools.repeat(self.batch)

    def __len__(self) -> int:
        return 30


@mistake("rows_come_once")
def rows_drawn_with_replacement(script: Script) -> None:
    """The sampler draws rows with replacement."""

    class Drawing(Trainer):
        def _get_train_sampler(self, *args: Any) -> Any:
            return torch.utils.data.RandomSampler(range(30), replacement=True, num_samples=60)

    script.trainer = Drawing
    script.rows = 30


# The loss.


def _with_loss(loss: Callable[[Any, Any, Any], torch.Tensor]) -> type[Trainer]:
    class Losing(Trainer):
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            outputs = model(**inputs)
            value = loss(outputs.logits.float(), inputs["labels"], num_items_in_batch)
            return (value, outputs) if return_outputs else value

    return Losing


def _entropy(logits: torch.Tensor, labels: torch.Tensor, reduction: str = "sum") -> torch.Tensor:
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED, reduction=reduction
    )


@mistake("loss_oracle", "accumulation_oracle")
def loss_not_shifted(script: Script) -> None:
    """compute_loss compares each token with itself."""
    script.trainer = _with_loss(
        lambda logits, labels, items: (
            torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
            )
            / items
        )
    )


@mistake("loss_oracle", "accumulation_oracle")
def means_averaged(script: Script) -> None:
    """compute_loss takes the mean of each micro-batch, whatever its number of tokens."""
    script.trainer = _with_loss(lambda logits, labels, items: _entropy(logits, labels, "mean") / 2)


@mistake("loss_oracle", "accumulation_oracle")
def not_divided_by_accumulation(script: Script) -> None:
    """compute_loss returns a mean, which nobody divides by the accumulation steps."""
    script.trainer = _with_loss(lambda logits, labels, items: _entropy(logits, labels, "mean"))


@mistake("loss_oracle", "accumulation_oracle")
def loss_in_bf16(script: Script) -> None:
    """compute_loss takes its cross entropy in bf16."""
    script.trainer = _with_loss(lambda logits, labels, items: _entropy(logits.bfloat16(), labels).float() / items)


@mistake("loss_oracle", "accumulation_oracle")
def z_loss_added(script: Script) -> None:
    """compute_loss keeps a penalty of the partition function from another project."""
    script.trainer = _with_loss(
        lambda logits, labels, items: (_entropy(logits, labels) + 0.05 * logits.logsumexp(-1).square().sum()) / items
    )


# The model.


@mistake("trainable_set")
def adapters_frozen_above(script: Script) -> None:
    """A helper freezes the second layer, adapters and all."""

    def freeze(model: Any) -> None:
        for name, parameter in model.named_parameters():
            if ".layers.1." in name:
                parameter.requires_grad_(False)

    script.adapted.append(freeze)


@mistake("trainable_set")
def norms_unfrozen(script: Script) -> None:
    """A helper for 4-bit training makes the norms trainable."""

    def unfreeze(model: Any) -> None:
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.requires_grad_(True)

    script.adapted.append(unfreeze)


@mistake("adapter_algebra")
def scaling_doubled(script: Script) -> None:
    """The adapters' scaling is set by hand, to twice what the configuration says."""

    def scale(model: Any) -> None:
        for module in model.modules():
            if hasattr(module, "scaling") and isinstance(module.scaling, dict):
                module.scaling["default"] *= 2

    script.adapted.append(scale)


@mistake("adapters_start_neutral")
def adapter_starts_changed(script: Script) -> None:
    """Both factors are initialised at random, so that the adapted model is not the base."""

    def fill(model: Any) -> None:
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                torch.nn.init.normal_(parameter, std=0.02)

    script.adapted.append(fill)


@mistake("adapters_start_random", "lora_gradient_schedule")
def first_factor_zero(script: Script) -> None:
    """Both factors start at zero, so that nothing can learn."""

    def clear(model: Any) -> None:
        for name, parameter in model.named_parameters():
            if ".lora_A." in name:
                torch.nn.init.zeros_(parameter)

    script.adapted.append(clear)


@mistake("base_matches_file")
def layer_initialised_again(script: Script) -> None:
    """After loading, a layer's weights are initialised again."""

    def initialise(model: Any) -> None:
        torch.nn.init.normal_(model.model.layers[1].mlp.up_proj.weight, std=0.02)

    script.loaded.append(initialise)


@mistake("base_matches_file")
def head_untied(script: Script) -> None:
    """The head is copied, so that it is no longer the embedding."""

    def untie(model: Any) -> None:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())

    script.loaded.append(untie)


@mistake("forward_matches_architecture")
def epsilon_changed(script: Script) -> None:
    """A patch of the norms has another epsilon."""

    def patch(model: Any) -> None:
        for module in model.modules():
            if hasattr(module, "variance_epsilon"):
                module.variance_epsilon = 1e-2

    script.loaded.append(patch)


@mistake("forward_matches_architecture")
def layer_skipped(script: Script) -> None:
    """A layer's MLP is multiplied by a half, for a technique that was given up."""

    def halve(model: Any) -> None:
        model.model.layers[0].mlp.register_forward_hook(lambda _module, _args, out: 0.5 * out)

    script.loaded.append(halve)


@mistake("forward_deterministic", "accumulation_oracle", "loss_oracle")
def noise_in_the_forward(script: Script) -> None:
    """A hook adds noise to the hidden states in training."""

    def noise(model: Any) -> None:
        model.model.layers[0].register_forward_hook(
            lambda module, _args, out: out + 0.01 * torch.randn_like(out) if module.training else out
        )

    script.loaded.append(noise)


@mistake("rows_isolated", "forward_matches_architecture")
def attention_not_causal(script: Script) -> None:
    """A patch of attention forgets the causal mask."""

    def patch(model: Any) -> None:
        from transformers.models.llama import modeling_llama

        for layer in model.model.layers:
            layer.self_attn.is_causal = False

            def hook(_module: Any, args: Any, given: dict[str, Any]) -> Any:
                ids = given["hidden_states"] if "hidden_states" in given else args[0]
                rows, width = ids.shape[:2]
                return args, {**given, "attention_mask": torch.ones(rows, 1, width, width, dtype=torch.bool)}

            layer.self_attn.register_forward_pre_hook(hook, with_kwargs=True)
        assert modeling_llama

    script.loaded.append(patch)


# Gradients and optimizer.


@mistake("accumulation_oracle", "adapter_algebra")
def gradient_doubled(script: Script) -> None:
    """A hook doubles the gradient of one kind of adapter."""

    def hook(model: Any) -> None:
        for name, parameter in model.named_parameters():
            if "v_proj.lora_B" in name:
                parameter.register_hook(lambda gradient: 2 * gradient)

    script.adapted.append(hook)


@mistake("lora_gradient_schedule", "accumulation_oracle")
def gradient_cut(script: Script) -> None:
    """A detach in the first layer cuts the gradient of what lies below."""

    def cut(model: Any) -> None:
        model.get_decoder().layers[0].register_forward_hook(lambda _module, _args, out: out.detach())

    script.adapted.append(cut)


@mistake("optimizer_coverage", "trainable_moved")
def optimizer_of_another_model(script: Script) -> None:
    """The optimizer was built from another instance of the model."""

    def swap(trainer: Any) -> None:
        model, _ = script.model_and_tokenizer()
        trainer.optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)

    script.built.append(swap)


@mistake("optimizer_coverage")
def optimizer_of_half(script: Script) -> None:
    """The optimizer holds the second factors alone."""

    def swap(trainer: Any) -> None:
        held = [p for name, p in trainer.model.named_parameters() if ".lora_B." in name]
        trainer.optimizer = torch.optim.AdamW(held, lr=1e-3, weight_decay=0.0)

    script.built.append(swap)


def _callback(moment: str, call: Callable[..., Any]) -> Callable[[Any], None]:
    """Return a change that adds a callback with this one method."""

    def method(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        call(**kwargs)

    return lambda trainer: trainer.add_callback(type("Callback", (TrainerCallback,), {moment: method})())


@mistake("learning_rate_trace")
def schedule_stepped_twice(script: Script) -> None:
    """A callback steps the schedule, which the Trainer does already."""
    script.built.append(_callback("on_step_end", lambda lr_scheduler, **_: lr_scheduler.step()))


@mistake("learning_rate_trace")
def rate_overwritten(script: Script) -> None:
    """A callback for layer-wise rates sets the rate to a constant."""

    def overwrite(optimizer: Any, **_: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 5e-4

    script.built.append(_callback("on_step_begin", overwrite))


@mistake("updates_match_adamw")
def state_cleared(script: Script) -> None:
    """A callback that saves memory clears the optimizer's state after each step."""
    script.built.append(
        _callback("on_step_end", lambda optimizer, **_: getattr(optimizer, "optimizer", optimizer).state.clear())
    )


@mistake("updates_match_adamw", "accumulation_oracle")
def clipped_again(script: Script) -> None:
    """A callback clips once more, far below the norm that is declared."""
    script.built.append(
        _callback("on_pre_optimizer_step", lambda model, **_: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01))
    )


@mistake("updates_match_adamw", "trainable_moved")
def weights_averaged(script: Script) -> None:
    """A callback writes an average of the weights back into the model after each step."""

    def shrink(model: Any, **_: Any) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.mul_(0.97)

    script.built.append(_callback("on_step_end", shrink))


@mistake("gradients_cleared", "accumulation_oracle")
def gradients_kept(script: Script) -> None:
    """zero_grad does nothing, since somebody replaced it for speed."""

    def replace(trainer: Any) -> None:
        trainer.model.zero_grad = lambda *args, **kwargs: None

    script.built.append(replace)


@mistake("base_untouched", "state_in_training", "lora_gradient_schedule")
def base_noised(script: Script) -> None:
    """A callback adds noise to all weights, frozen ones too."""

    def noise(model: Any, **_: Any) -> None:
        with torch.no_grad():
            next(p for name, p in model.named_parameters() if "down_proj.base_layer" in name).add_(1e-3)

    script.built.append(_callback("on_step_end", noise))


@mistake("state_in_training")
def another_adapter_active(script: Script) -> None:
    """A second adapter is added for a comparison, and stays the active one."""

    def add(model: Any) -> None:
        from peft import LoraConfig

        model.add_adapter("other", LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"]))
        model.set_adapter("other")
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(".lora_" in name)

    script.adapted.append(add)


# What is reported and saved.


@mistake("evaluation_reported")
def evaluated_in_train_mode(script: Script) -> None:
    """prediction_step calls model.train(), so that dropout is active in evaluation."""

    class Training(Trainer):
        def prediction_step(self, model: Any, *args: Any, **kwargs: Any) -> Any:
            model.train()
            return super().prediction_step(model, *args, **kwargs)

    script.trainer, script.evaluates = Training, True


@mistake("evaluation_reported")
def evaluation_summed(script: Script) -> None:
    """evaluate reports a sum over batches as a mean."""

    class Summing(Trainer):
        def evaluate(self, *args: Any, **kwargs: Any) -> Any:
            metrics = super().evaluate(*args, **kwargs)
            metrics["eval_loss"] *= 4
            return metrics

    script.trainer, script.evaluates = Summing, True


@mistake("loss_logged")
def log_scaled(script: Script) -> None:
    """log multiplies the loss by the accumulation steps."""

    class Scaling(Trainer):
        def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
            super().log({**logs, **({"loss": 2 * logs["loss"]} if "loss" in logs else {})}, *args, **kwargs)

    script.trainer = Scaling


@mistake("adapter_round_trip")
def half_saved(script: Script) -> None:
    """_save writes the adapters of the first layer alone."""

    class Halving(Trainer):
        def _save(self, output_dir: Any = None, state_dict: Any = None) -> None:
            model: Any = self.model
            whole = {name: tensor for name, tensor in model.state_dict().items() if ".layers.0." in name}
            model.save_pretrained(output_dir, state_dict=whole)

    script.trainer = Halving


# Loops.


def _in_a_loop(**changes: Any) -> Callable[[Script], None]:
    return lambda script: setattr(script, "loop", partial(plain_loop, **changes))


@mistake("accumulation_oracle", "gradients_cleared")
def loop_never_clears(script: Script) -> None:
    """A loop never calls zero_grad."""
    _in_a_loop(clear=False)(script)


@mistake("accumulation_oracle", "loss_oracle")
def loop_loss_shifted_twice(script: Script) -> None:
    """A loop shifts logits and labels and hands them to a loss that shifts."""

    def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return _entropy(model(**batch).logits[:, :-1], batch["labels"][:, 1:], "mean")

    _in_a_loop(loss=loss)(script)


@mistake("rows_come_once")
def loop_same_batch(script: Script) -> None:
    """A loop makes its iterator anew in each step."""
    script.loop = lambda script, model, batches: plain_loop(script, model, batches[:1])


@mistake("state_in_training")
def loop_in_eval_mode(script: Script) -> None:
    """A loop leaves the model in eval mode after its evaluation."""
    _in_a_loop(around=lambda step, model, optimizer: model.eval())(script)


@mistake("optimizer_coverage", "trainable_moved")
def loop_optimizer_of_half(script: Script) -> None:
    """A loop's optimizer holds a part of what learns."""
    _in_a_loop(
        optimizer=lambda model: torch.optim.AdamW(
            [p for name, p in model.named_parameters() if "lora_A" in name], lr=1e-3
        )
    )(script)


@mistake("updates_match_adamw")
def loop_state_lost(script: Script) -> None:
    """A loop clears its optimizer's state after each step."""
    _in_a_loop(around=lambda step, model, optimizer: optimizer.state.clear())(script)


@mistake("accumulation_oracle", "loss_oracle")
def loop_loss_without_mask(script: Script) -> None:
    """A loop's own cross entropy learns the prompt and the padding, too."""

    def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return _entropy(model(**batch).logits, batch["input_ids"], "mean")

    _in_a_loop(loss=loss)(script)


@mistake("finite")
def loop_loss_overflows(script: Script) -> None:
    """A loop divides by the number of rows that are left, which is 0."""
    _in_a_loop(loss=lambda model, batch: model(**batch).loss * math.inf)(script)
