"""Healthy trainings in many of the ways in which people fine-tune, and which were flagged when first tried."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn.functional import kl_div, logsigmoid
from torch.nn.utils import parametrize
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer

from benchmarks.scripts.parts import Change, fields
from benchmarks.scripts.script import IGNORED, MODEL, Script, loaded, plain_loop

Batches = list[dict[str, torch.Tensor]]


def _optimizer(model: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)


def _step(held: torch.optim.Optimizer, loss: Any) -> None:
    loss.backward()
    held.step()
    held.zero_grad()


def packed(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the batch's rows as documents of one row, kept apart by a mask of four dimensions."""
    real = batch["attention_mask"].bool()
    numbers = torch.arange(len(real))[:, None].expand_as(real)[real]
    ids, labels = batch["input_ids"][real][None], batch["labels"][real][None]
    same = (numbers[:, None] == numbers) & torch.ones(len(numbers), len(numbers)).tril().bool()
    mask = torch.zeros(same.shape).masked_fill(~same, torch.finfo(torch.float32).min)
    begins = torch.cat([torch.ones(1, dtype=torch.bool), numbers[1:] != numbers[:-1]])
    return {"input_ids": ids, "labels": labels.masked_fill(begins, IGNORED), "attention_mask": mask[None, None]}


def losses_weighed(script: Script, model: Any, batches: Batches) -> None:
    """A loop over two sources of rows, of which one counts less."""
    held = _optimizer(model)
    model.train()
    for step in range(script.steps):
        first, second = (model(**batch).loss for batch in batches[2 * step : 2 * step + 2])
        _step(held, 0.7 * first + 0.3 * second)


class SoftPrompt(torch.nn.Module):
    """Learned vectors before the embedded rows of a frozen model."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner = loaded(dtype).requires_grad_(False)
        self.prompt = torch.nn.Parameter(self.inner.get_input_embeddings().weight[:6].detach().clone())

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> Any:
        """Return what the frozen model makes of prompt and rows."""
        rows, own = len(input_ids), len(self.prompt)
        embedded = self.inner.get_input_embeddings()(input_ids)
        return self.inner(
            inputs_embeds=torch.cat([self.prompt.expand(rows, -1, -1), embedded], dim=1),
            attention_mask=torch.cat([attention_mask.new_ones(rows, own), attention_mask], dim=1),
            labels=torch.cat([labels.new_full((rows, own), IGNORED), labels], dim=1),
        )


def in_four_bits(dtype: torch.dtype) -> Any:
    """Return the tiny model in 4 bits that compute in bf16 whatever the other layers do."""
    settings: dict[str, Any] = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.bfloat16}
    config: Any = BitsAndBytesConfig(load_in_4bit=True, **settings)  # type: ignore[no-untyped-call]
    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=dtype, quantization_config=config)


class Adapted(torch.nn.Module):
    """An adapter as a parametrisation of a weight (minLoRA)."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.down = torch.nn.Parameter(torch.randn(4, columns) / columns**0.5)
        self.up = torch.nn.Parameter(torch.zeros(rows, 4))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight with what was learned added."""
        return weight + self.up @ self.down


def parametrised(dtype: torch.dtype) -> Any:
    """Return the tiny model with such adapters, which alone learn."""
    model = loaded(dtype).requires_grad_(False)
    for layer in model.model.layers:
        linear = layer.self_attn.q_proj
        parametrize.register_parametrization(linear, "weight", Adapted(*linear.weight.shape))
    return model


def _likelihood(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    labels = batch["labels"][:, 1:]
    scores = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1].log_softmax(-1)
    taken: torch.Tensor = scores.gather(2, labels.clamp(min=0)[..., None])[..., 0]
    return (taken * (labels != IGNORED)).sum(dim=1)


def preferring(script: Script, model: Any, batches: Batches) -> None:
    """DPO (arXiv 2305.18290) against the same model without its adapters."""
    held = _optimizer(model)
    model.train()
    for step in range(script.steps):
        pair = batches[2 * step : 2 * step + 2]
        with torch.no_grad(), model.disable_adapter():
            reference = [_likelihood(model, batch) for batch in pair]
        chosen, rejected = (_likelihood(model, batch) - own for batch, own in zip(pair, reference, strict=True))
        _step(held, -logsigmoid(0.1 * (chosen - rejected)).mean())


class HeldToBase(Trainer):
    """A loss that holds the adapters' predictions near those of the base."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss of the rows and a tenth of the divergence from the model without its adapters, divided."""
        outputs = model(**inputs)
        with torch.no_grad(), self.accelerator.unwrap_model(model).disable_adapter():
            base = model(**inputs).logits.log_softmax(-1)
        own = outputs.logits.log_softmax(-1)
        loss = outputs.loss + 0.1 * kl_div(own, base, log_target=True, reduction="none").sum(-1).mean()
        loss = loss / self.current_gradient_accumulation_steps
        return (loss, outputs) if return_outputs else loss


def looking_ahead(script: Script, model: Any, batches: Batches) -> None:
    """Slow weights are pulled after the fast ones in every second step (Lookahead, arXiv 1907.08610)."""
    slow = {p: p.detach().clone() for p in model.parameters() if p.requires_grad}

    @torch.no_grad()
    def around(step: int, model: Any, optimizer: Any) -> None:
        for fast, kept in slow.items() if step % 2 else ():
            fast.copy_(kept.lerp_(fast, 0.5))

    plain_loop(script, model, batches, around=around)


def _packing(script: Script, model: Any, batches: Batches) -> None:
    plain_loop(script, model, [packed(batch) for batch in batches])


def compiled(script: Script, model: Any, batches: Batches) -> None:
    """A loop around a model of transformers in torch.compile."""
    plain_loop(script, torch.compile(model, backend="eager"), batches)


PRACTICES: dict[str, tuple[Change, ...]] = {
    "4 bits, computed in bf16": (fields(base=in_four_bits),),
    "loop, packed by a mask": (fields(lora=None, loop=_packing),),
    "loop, losses weighed": (fields(lora=None, loop=losses_weighed),),
    "loop, soft prompt": (fields(lora=None, base=SoftPrompt, loop=partial(plain_loop, clip=False)),),
    "loop, adapters as parametrisations": (fields(lora=None, base=parametrised, loop=plain_loop),),
    "loop, compiled": (fields(lora=None, loop=compiled),),
    "loop, slow weights": (fields(loop=looking_ahead),),
    "loop, preferences": (fields(loop=preferring),),
    "held to its base": (fields(trainer=HeldToBase),),
    "held to its base, checkpointed": (fields(trainer=HeldToBase, arguments={"gradient_checkpointing": True}),),
}
"""Name to what it changes of the plain script."""
