"""Healthy trainings as users write them: nothing of these may be flagged."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from peft import LoraConfig
from torch.nn.functional import cross_entropy
from transformers import FalconConfig, FalconForCausalLM, TrainerCallback

from benchmarks.scripts.bugs.order import healthy_scaled
from benchmarks.scripts.bugs.order import loop as loop_of
from benchmarks.scripts.parts import Change, fields, masked_tokens, one_micro_batch, other
from benchmarks.scripts.script import IGNORED, TARGETS, Script, padded, plain_loop, tokens


def arguments(**values: Any) -> Change:
    """Return a change of the arguments."""
    return lambda script: script.arguments.update(values)


def lora(**values: Any) -> Change:
    """Return a change of the adapters."""
    return lambda script: script.lora.update(values) if script.lora is not None else None


def loop(**values: Any) -> Change:
    """Return a loop in place of the Trainer."""
    return lambda script: setattr(script, "loop", partial(plain_loop, **values))


def all_supervised(tokenizer: Any, row: dict[str, str]) -> dict[str, list[int]]:
    """Return a row all of which is learned but its first token."""
    ids = tokens(tokenizer, row)["input_ids"]
    return {"input_ids": ids, "labels": [IGNORED, *ids[1:]]}


def eval_in_a_callback(script: Script) -> None:
    """Put the model in eval mode and back, as a callback that samples does."""

    def on_step_end(self: Any, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        model.eval()
        with torch.no_grad():
            model(input_ids=torch.tensor([[5, 6, 7]]))
        model.train()

    script.built.append(
        lambda trainer: trainer.add_callback(type("Sampling", (TrainerCallback,), {"on_step_end": on_step_end})())
    )


def accumulating_loop(script: Script) -> None:
    """Accumulate two micro-batches of one row each, whose losses are sums over a known number of tokens."""

    def run(script: Script, model: Any, batches: list[dict[str, torch.Tensor]]) -> None:
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        model.train()
        for step in range(script.steps):
            window = batches[2 * step : 2 * step + 2]
            items = sum(int((batch["labels"][:, 1:] != IGNORED).sum()) for batch in window)
            for batch in window:
                own = int((batch["labels"][:, 1:] != IGNORED).sum())
                (model(**batch).loss * own / items).backward()
            optimizer.step()
            optimizer.zero_grad()

    script.loop = run


def in_autocast(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the loss of a forward pass under autocast."""
    with torch.autocast("cpu", torch.bfloat16):
        loss: torch.Tensor = model(**batch).loss
    return loss


def zero_grad_after_forward(script: Script) -> None:
    """Clear gradients between forward and backward."""

    def run(script: Script, model: Any, batches: list[dict[str, torch.Tensor]]) -> None:
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        model.train()
        for batch in batches[: script.steps]:
            loss = model(**batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    script.loop = run


def other_labels(script: Script) -> None:
    """Each row has a class, not labels of its tokens."""
    one_micro_batch(script)
    script.example = lambda tok, row: {**tokens(tok, row), "labels": [len(row["response"]) % 2]}

    def collate(tokenizer: Any, rows: Any) -> dict[str, torch.Tensor]:
        classes = torch.tensor([row["labels"][0] for row in rows])
        return {**padded(tokenizer, [{**row, "labels": row["input_ids"]} for row in rows]), "labels": classes}

    script.collate = collate


def own_entropy(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the cross entropy that a loop takes of the logits itself."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), batch["labels"][:, 1:].reshape(-1))


def shifted_entropy(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return that of rows that are shifted before the model is called, with the classes second."""
    given = {"input_ids": batch["input_ids"][:, :-1], "attention_mask": batch["attention_mask"][:, :-1]}
    return cross_entropy(model(**given).logits.transpose(1, 2), batch["labels"][:, 1:])


def several_optimizers(script: Script) -> None:
    """Step one optimizer for A and one for B."""

    def run(script: Script, model: Any, batches: list[dict[str, torch.Tensor]]) -> None:
        halves = [[p for name, p in model.named_parameters() if f"lora_{half}" in name] for half in "AB"]
        optimizers = [torch.optim.AdamW(half, lr=1e-3) for half in halves]
        model.train()
        for batch in batches[: script.steps]:
            model(**batch).loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    script.loop = run


def penalised(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the model's loss and a penalty of the loop's own."""
    squares = [p.square().sum() for p in model.parameters() if p.requires_grad]
    loss: torch.Tensor = model(**batch).loss + 1e-3 * torch.stack(squares).sum()
    return loss


def rates_by_group(model: Any) -> torch.optim.Optimizer:
    """Return AdamW with a rate and a decay for A, and others for B."""
    halves = [[p for name, p in model.named_parameters() if f"lora_{half}" in name] for half in "AB"]
    return torch.optim.AdamW(
        [{"params": halves[0], "lr": 1e-3}, {"params": halves[1], "lr": 4e-3, "weight_decay": 0.1}]
    )


def in_a_closure(script: Script) -> None:
    """Hand forward and backward to the optimizer's step, as Lightning does."""

    def run(script: Script, model: Any, batches: list[dict[str, torch.Tensor]]) -> None:
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        model.train()
        for batch in batches[: script.steps]:

            def closure(batch: dict[str, torch.Tensor] = batch) -> Any:
                loss: Any = model(**batch).loss
                optimizer.zero_grad()
                loss.backward()
                return loss

            optimizer.step(closure)

    script.loop = run


def freeze(part: str) -> Change:
    """Return a change that freezes the tensors with this in their names, and expects it."""

    def rest(model: Any) -> None:
        for name, parameter in model.named_parameters():
            if part in name:
                parameter.requires_grad_(False)

    return fields(adapted=[rest], expect={"frozen": part})


def packed(tokenizer: Any, rows: Any) -> dict[str, torch.Tensor]:
    """Return one row of all of these, whose positions begin again with each."""
    joined = {name: [token for row in rows for token in row[name]] for name in ("input_ids", "labels")}
    positions = [place for row in rows for place in range(len(row["input_ids"]))]
    return {name: torch.tensor([ids]) for name, ids in {**joined, "position_ids": positions}.items()}


def classes_as_text(tokenizer: Any, row: dict[str, str]) -> dict[str, list[int]]:
    """Return a question with the name of a class as its answer, which needs no end."""
    held = tokens(tokenizer, {**row, "response": "it is long" if len(row["response"]) % 2 else "short"})
    return {name: ids[:-1] for name, ids in held.items()}


def own_mark(tokenizer: Any, row: dict[str, str]) -> dict[str, list[int]]:
    """Return a row that ends in a mark of the script's own, at which it stops what it generates."""
    held = tokens(tokenizer, {**row, "response": f"{row['response']} ###"})
    return {name: ids[:-1] for name, ids in held.items()}


def second_adapter(model: Any) -> None:
    """Add an adapter that rests, as a reference to compare with."""
    model.add_adapter("reference", model.peft_config["default"])


def second_by_olora(model: Any) -> None:
    """Train a second adapter that moves a part of the base into itself, beside the first, which rests."""
    model.add_adapter("second", LoraConfig(r=4, target_modules=TARGETS, init_lora_weights="olora"))
    model.set_adapter("second")


def enlarged(model: Any) -> None:
    """Give the vocabulary a token more, as a script does that adds one for padding."""
    model.resize_token_embeddings(model.config.vocab_size + 1)


def parallel() -> Any:
    """Return a small Falcon, whose layers add to their linears' outputs in place."""
    sizes: dict[str, Any] = {"vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    return FalconForCausalLM(FalconConfig(**sizes))


HEALTHY: dict[str, tuple[Change, ...]] = {
    "lora": (),
    "lora dropout": (lora(lora_dropout=0.1),),
    "rslora": (lora(use_rslora=True),),
    "dora": (lora(use_dora=True),),
    "rank pattern": (lora(rank_pattern={"v_proj": 2}, alpha_pattern={"v_proj": 6}),),
    "rank pattern, dropout": (lora(rank_pattern={"v_proj": 2}, alpha_pattern={"v_proj": 6}, lora_dropout=0.1),),
    "biases of what is adapted": (
        other("gpt2", "AutoModelForCausalLM"),
        fields(lora={"r": 4, "target_modules": ["c_attn"], "bias": "lora_only"}),
    ),
    "dora of embeddings, bf16 weights": (
        lora(use_dora=True, target_modules=[*TARGETS, "embed_tokens"]),
        fields(dtype=torch.bfloat16),
    ),
    "second adapter by OLoRA": (fields(adapted=[second_by_olora]),),
    "Falcon, adapters, a token more": (
        fields(
            base=lambda dtype: parallel().to(dtype),
            lora={"r": 4, "target_modules": ["query_key_value", "dense", "dense_4h_to_h"], "lora_dropout": 0.1},
            loaded=[enlarged],
        ),
    ),
    "experts, the router's loss, evaluation": (
        other("qwen3_moe", "AutoModelForCausalLM", output_router_logits=True, router_aux_loss_coef=0.1),
        fields(evaluates=True),
    ),
    "all linears": (lora(target_modules="all-linear"),),
    "targets by expression": (lora(target_modules=r".*layers\.1\..*(q|v)_proj"),),
    "one layer": (lora(layers_to_transform=[1]),),
    "norm saved": (lora(modules_to_save=["norm"]),),
    "embedding saved": (lora(modules_to_save=["embed_tokens"]),),
    "A frozen, expected": (freeze("lora_A"),),
    "a layer frozen, expected": (freeze("layers.1."),),
    "second adapter": (fields(adapted=[second_adapter]),),
    "packed": (fields(collate=packed),),
    "classes as answers": (fields(example=classes_as_text),),
    "mark of its own": (fields(example=own_mark),),
    "label smoothing, evaluation": (arguments(label_smoothing_factor=0.1), fields(evaluates=True)),
    "rank 1": (lora(r=1, lora_alpha=1),),
    "full": (fields(lora=None),),
    "full, decay": (fields(lora=None), arguments(weight_decay=0.1)),
    "decay": (arguments(weight_decay=0.1),),
    "bf16 weights": (fields(dtype=torch.bfloat16),),
    "full, bf16 weights": (fields(lora=None, dtype=torch.bfloat16),),
    "autocast": (arguments(bf16=True),),
    "full, autocast": (fields(lora=None), arguments(bf16=True)),
    "no accumulation": (arguments(gradient_accumulation_steps=1),),
    "accumulation 3": (arguments(gradient_accumulation_steps=3),),
    "one row": (arguments(per_device_train_batch_size=1, gradient_accumulation_steps=1),),
    "no clipping": (arguments(max_grad_norm=0.0),),
    "clipping hard": (arguments(max_grad_norm=0.01),),
    "linear": (arguments(lr_scheduler_type="linear"),),
    "constant": (arguments(lr_scheduler_type="constant", warmup_steps=0),),
    "restarts": (arguments(lr_scheduler_type="cosine_with_restarts"),),
    "no warm-up": (arguments(warmup_steps=0),),
    "checkpointing": (arguments(gradient_checkpointing=True),),
    "checkpointing, dropout": (arguments(gradient_checkpointing=True), lora(lora_dropout=0.1)),
    "evaluation": (fields(evaluates=True),),
    "evaluation, dropout": (fields(evaluates=True), lora(lora_dropout=0.1)),
    "saving": (arguments(save_strategy="steps", save_steps=2),),
    "log rarely": (arguments(logging_steps=4),),
    "adafactor": (arguments(optim="adafactor"),),
    "sgd": (arguments(optim="sgd"),),
    "label smoothing": (arguments(label_smoothing_factor=0.1),),
    "neftune": (arguments(neftune_noise_alpha=5),),
    "two epochs": (fields(rows=10, steps=5),),
    "last window short": (fields(rows=11, steps=6),),
    "all supervised": (fields(example=all_supervised),),
    "left padding": (fields(collate=partial(padded, left=True)),),
    "callback that samples": (eval_in_a_callback,),
    "attention eager": (fields(loaded=[lambda model: model.set_attn_implementation("eager")]),),
    "loop": (loop(),),
    "loop, dropout": (loop(), lora(lora_dropout=0.1)),
    "loop, full": (loop(), fields(lora=None)),
    "loop, no clipping": (loop(clip=False),),
    "loop, sgd": (
        loop(optimizer=lambda model: torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)),
    ),
    "loop, bf16": (loop(), fields(dtype=torch.bfloat16)),
    "loop, autocast": (loop(loss=in_autocast),),
    "loop, autocast, full": (loop(loss=in_autocast), fields(lora=None)),
    "loop, accumulation": (accumulating_loop,),
    "loop, own cross entropy": (loop(loss=own_entropy),),
    "loop, own cross entropy of shifted rows": (loop(loss=shifted_entropy),),
    "loop, closure": (in_a_closure,),
    "loop, several optimizers": (several_optimizers,),
    "loop, penalty": (loop(loss=penalised),),
    "loop, rates by group": (loop(optimizer=rates_by_group),),
    "loop, all parameters": (loop(optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3)),),
    "loop, amsgrad": (loop(optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, amsgrad=True)),),
    "loop, cleared after forward": (zero_grad_after_forward,),
    "loop, scaled": (loop_of(healthy_scaled),),
    "loop, end in eval mode": (loop(around=lambda step, model, optimizer: (model.eval(), model.train())),),
    "classes of rows": (other("llama", "AutoModelForSequenceClassification", pad_token_id=0), other_labels),
    "masked tokens": (other("bert", "AutoModelForMaskedLM", is_decoder=False), masked_tokens),
    "encoder and decoder": (
        other("t5", "AutoModelForSeq2SeqLM", decoder_start_token_id=0, is_decoder=False),
        one_micro_batch,
    ),
    "GPT-2": (other("gpt2", "AutoModelForCausalLM"),),
    "GPT-2, adapters": (other("gpt2", "AutoModelForCausalLM"), fields(lora={"r": 4, "target_modules": ["c_attn"]})),
    "Mamba": (other("mamba", "AutoModelForCausalLM"),),
    "mixture of experts": (other("qwen3_moe", "AutoModelForCausalLM"),),
}
"""Name to what it changes of the plain script."""
