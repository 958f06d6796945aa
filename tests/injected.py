"""Real training bugs as functions that break a healthy session from outside. Numbers are those of the public bug list.

Each is imported by name in the training child, so they live at the top level of a module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from suite.trainer import Session


def layers(session: Session) -> Any:
    """The decoder layers."""
    return session.model.base_model.model.model.layers


def lora_parameters(session: Session, side: str = "lora_") -> list[tuple[str, torch.nn.Parameter]]:
    """The adapter tensors, those of one side if asked."""
    return [(name, p) for name, p in session.model.named_parameters() if side in name]


def b01_reentrant_checkpointing(session: Session) -> None:
    """Reentrant checkpointing over the first half of the layers: frozen inputs cut the gradient there."""
    half = layers(session)[: len(layers(session)) // 2]
    for layer in half:
        inner = layer.forward

        def forward(hidden: torch.Tensor, *args: Any, inner: Any = inner, **kwargs: Any) -> Any:
            return checkpoint(lambda h: inner(h, *args, **kwargs), hidden, use_reentrant=True)

        layer.forward = forward


def b05_gradient_switched_off(session: Session) -> None:
    """requires_grad is lost on the adapters of the upper layers."""
    upper = {f".layers.{number}." for number in range(len(layers(session)) // 2, len(layers(session)))}
    for name, parameter in lora_parameters(session):
        if any(part in name for part in upper):
            parameter.requires_grad_(False)


def b06_targets_in_some_layers(session: Session) -> None:
    """The adapters of every second layer are missing, as with a pattern that matches only some."""
    for layer in layers(session)[::2]:
        layer.self_attn.q_proj = layer.self_attn.q_proj.base_layer


def b12_scaling_is_alpha(session: Session) -> None:
    """LoRA scales by alpha instead of alpha / r."""
    for module in session.model.modules():
        if isinstance(getattr(module, "scaling", None), dict):
            module.scaling["default"] = session.run.lora.alpha


def b14_random_b(session: Session) -> None:
    """B does not start at zero."""
    with torch.no_grad():
        for _, parameter in lora_parameters(session, "lora_B"):
            parameter.normal_(std=0.02)


def b18_mean_of_means(session: Session) -> None:
    """Each micro-batch is averaged alone, and then the averages."""
    windows = session.run.training.gradient_accumulation_steps

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten()) / windows

    session.loss = loss


def b22_labels_shifted_twice(session: Session) -> None:
    """The collator shifts the labels, and the loss does it again."""
    collate = session.batches.collate

    def shifted(examples: Any, pad_token_id: int) -> dict[str, list[list[int]]]:
        columns = collate(examples, pad_token_id)
        columns["labels"] = [[*row[1:], -100] for row in columns["labels"]]
        return columns

    session.batches.collate = shifted


def b23_no_shift(session: Session) -> None:
    """The loss compares each position with its own token."""

    def loss(logits: torch.Tensor, labels: torch.Tensor, supervised_tokens: int) -> torch.Tensor:
        total = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=-100, reduction="sum")
        return total / supervised_tokens

    session.loss = loss


def b25_end_token_masked_with_padding(session: Session) -> None:
    """Every label that is the padding id is masked, and the padding id is the end token's."""
    collate = session.batches.collate

    def masked(examples: Any, pad_token_id: int) -> dict[str, list[list[int]]]:
        columns = collate(examples, pad_token_id)
        end = session.tokenizer.eos_token_id
        columns["labels"] = [[-100 if label == end else label for label in row] for row in columns["labels"]]
        return columns

    session.batches.collate = masked


def b26_padding_supervised(session: Session) -> None:
    """Labels are a copy of the ids, padding included."""
    collate = session.batches.collate

    def unmasked(examples: Any, pad_token_id: int) -> dict[str, list[list[int]]]:
        columns = collate(examples, pad_token_id)
        for ids, mask, labels in zip(*(columns[k] for k in ("input_ids", "attention_mask", "labels")), strict=True):
            labels[:] = [i if not m else label for i, m, label in zip(ids, mask, labels, strict=True)]
        return columns

    session.batches.collate = unmasked


def b35_double_start_token(session: Session) -> None:
    """Every row begins with a start token that the template has not."""
    import dataclasses

    start = session.tokenizer.bos_token_id
    session.batches.train = [
        dataclasses.replace(row, input_ids=(start, *row.input_ids), labels=(-100, *row.labels))
        for row in session.batches.train
    ]


def b46_reinitialised_weight(session: Session) -> None:
    """One down projection is initialised again after loading."""
    weight = layers(session)[0].mlp.down_proj.weight
    noise = torch.randint(0, 256, weight.shape, generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    weight.data.copy_(noise.to(weight.device))


def b48_rotary_buffer_uninitialised(session: Session) -> None:
    """The rotary frequencies are noise: they are in no file, so nothing loads them."""
    session.model.base_model.model.model.rotary_emb.inv_freq.uniform_(0, 0.01)


def b61_scheduler_per_micro_batch(session: Session) -> None:
    """The scheduler steps once a micro-batch."""
    step = session.scheduler.step

    def often() -> None:
        for _ in range(session.run.training.gradient_accumulation_steps):
            step()

    session.scheduler.step = often


def b63_learning_rate_nothing(session: Session) -> None:
    """The rate is a billionth of what it should be."""
    session.scheduler.base_lrs = [rate * 1e-9 for rate in session.scheduler.base_lrs]


def b65_optimizer_never_steps(session: Session) -> None:
    """The optimizer's step does nothing, while everything else goes on."""
    session.optimizer.step = lambda *args, **kwargs: None


def b69_gradients_never_cleared(session: Session) -> None:
    """zero_grad is missing."""
    session.optimizer.zero_grad = lambda *args, **kwargs: None


def b72_optimizer_holds_stale_tensors(session: Session) -> None:
    """Half of the B matrices are replaced after the optimizer was built."""
    for name, parameter in lora_parameters(session, "lora_B")[::2]:
        owner, _, attribute = name.rpartition(".")
        setattr(session.model.get_submodule(owner), attribute, torch.nn.Parameter(parameter.detach().clone()))


def b76_adapter_saved_empty(session: Session) -> None:
    """The saved file holds no tensor."""
    from safetensors.torch import save_file

    def save(_session: Session, folder: Path) -> None:
        save_file({}, folder / "adapter_model.safetensors")
        session.model.peft_config["default"].save_pretrained(folder)

    session.save_adapter = save


def b84_losses_kept_with_their_graph(session: Session) -> None:
    """Every loss is kept, graph and all."""
    inner, kept = session.loss, KEPT

    def loss(*args: Any) -> torch.Tensor:
        kept.append(inner(*args))
        return kept[-1]

    session.loss = loss


KEPT: list[torch.Tensor] = []


def b93_train_mode_in_evaluation(session: Session) -> None:
    """eval() does nothing."""
    session.model.eval = lambda: session.model


def b100_training_rows_held_out(session: Session) -> None:
    """The held-out rows are training rows."""
    session.batches.heldout = session.batches.train[:8]


def b103_low_precision_products(session: Session) -> None:
    """Matrix products drop the 13 low bits of their inputs' mantissas, as TF32 does."""
    product = torch.Tensor.__matmul__

    def truncated(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        def cut(x: torch.Tensor) -> torch.Tensor:
            return (x.view(torch.int32) & ~0x1FFF).view(torch.float32) if x.dtype == torch.float32 else x

        return product(cut(a.contiguous()), cut(b.contiguous()))

    torch.Tensor.__matmul__ = truncated  # type: ignore[method-assign]


def b110_flipped_weight(session: Session) -> None:
    """One bit of a frozen weight flips after the first step, as with a bad card."""
    step, weight = session.optimizer.step, layers(session)[0].mlp.up_proj.weight

    def flip(*args: Any, **kwargs: Any) -> Any:
        result = step(*args, **kwargs)
        weight.data.view(torch.uint8).flatten()[5] ^= 1
        session.optimizer.step = step
        return result

    session.optimizer.step = flip


def b112_noise_in_forward(session: Session) -> None:
    """The final norm adds noise."""
    norm = session.model.base_model.model.model.norm
    inner = norm.forward
    norm.forward = lambda hidden: inner(hidden) + 1e-3 * torch.randn_like(hidden)


def b114_gradients_end_with_an_evaluation(session: Session) -> None:
    """After the first forward in eval mode no gradient passes a quantised linear any more, and nothing complains."""
    import bitsandbytes

    state = {"evaluated": False}

    def notice(module: torch.nn.Module, *_: Any) -> None:
        state["evaluated"] = state["evaluated"] or not module.training

    session.model.register_forward_pre_hook(notice)
    for module in session.model.modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            module.register_forward_hook(lambda _m, _a, out: out.detach() + 0 * out if state["evaluated"] else out)


def wrong_kernel_for_one_row(session: Session) -> None:
    """The 4-bit kernel gives NaN for a single row, and only in linears of one shape."""

    def spoil(_module: Any, arguments: Any, out: torch.Tensor) -> torch.Tensor:
        return out * float("nan") if arguments[0].shape[:-1] == (1,) else out

    for layer in layers(session):
        layer.mlp.down_proj.register_forward_hook(spoil)


def same_batch_every_step(session: Session) -> None:
    """The data loader starts over at each step."""
    window = session.batches.window
    session.batches.window = lambda step: window(0)  # type: ignore[method-assign]


def future_tokens_visible(session: Session) -> None:
    """Attention is not causal."""
    for layer in layers(session):
        inner = layer.forward

        def forward(hidden: torch.Tensor, *args: Any, inner: Any = inner, **kwargs: Any) -> Any:
            ones = torch.zeros(hidden.shape[0], 1, hidden.shape[1], hidden.shape[1], dtype=hidden.dtype)
            return inner(hidden, *args, **{**kwargs, "attention_mask": ones.to(hidden.device)})

        layer.forward = forward


def moved_to_another_dtype(session: Session) -> None:
    """The final norm is upcast (to float64 here, so that it shows in fp32 runs too)."""
    session.model.base_model.model.model.norm.double()


def hang(session: Session) -> None:
    """Never comes back."""
    import time

    while True:
        time.sleep(1)


def crash(session: Session) -> None:
    """Dies by a signal, as on an illegal memory access."""
    import os
    import signal

    os.kill(os.getpid(), signal.SIGSEGV)


def out_of_memory(session: Session) -> None:
    """The allocator gives up."""
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


def error(session: Session) -> None:
    """Something in the training is wrong."""
    raise ValueError("the shapes do not fit")


def disk_full(session: Session) -> None:
    """No space is left for a file."""
    import errno

    raise OSError(errno.ENOSPC, "No space left on device", "/full/adapter_model.safetensors")


def b84_four_kib_kept_a_step(session: Session) -> None:
    """A hook keeps 4 KiB of every forward pass: too small for any ceiling, fatal in a long run."""
    kept: list[torch.Tensor] = []
    session.model.register_forward_hook(lambda *_: kept.append(torch.zeros(1024)))
