"""What a user would write by hand: the quick tier's ten steps without the suite. For scripts/bench-quick.sh only."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, get_scheduler

STEPS, ROWS, ACCUMULATION = 10, 2, 2
PROJECT = Path(__file__).resolve().parent.parent


def main(folder: str, precision: str) -> None:
    """Train in fp32 or bf16 and print the losses."""
    sys.path.insert(0, str(PROJECT))
    from tunecheck.training.data import window_rows

    torch.manual_seed(0)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
    model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=config, dtype=dtype)
    model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"]))
    rows = [json.loads(line) for line in (PROJECT / "configs/data/rust-python-facts/train.jsonl").open()]
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4, weight_decay=0.1)
    schedule = get_scheduler("cosine", optimizer, math.ceil(0.1 * STEPS), STEPS)
    model.train()
    for step in range(STEPS):
        picked = [rows[number] for number in window_rows(step, ROWS * ACCUMULATION, len(rows), seed=0)]
        batches = [batch(picked[at : at + ROWS], tokenizer) for at in range(0, len(picked), ROWS)]
        supervised = sum(int((labels[:, 1:] != -100).sum()) for _, _, labels in batches)
        total = 0.0
        for ids, mask, labels in batches:
            ids, mask, labels = (part.to(model.device) for part in (ids, mask, labels))
            loss = model(input_ids=ids, attention_mask=mask, labels=labels, num_items_in_batch=supervised).loss
            loss.backward()
            total += float(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        print(f"step {step + 1}: loss {total:.4f}")


def batch(rows: list[dict[str, str]], tokenizer: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token ids, mask and labels of these rows, padded on the right."""
    encoded = []
    for row in rows:
        prompt = tokenizer(f"### Instruction:\n{row['instruction']}\n\n### Response:\n")["input_ids"]
        answer = [*tokenizer(row["response"])["input_ids"], tokenizer.eos_token_id]
        encoded.append((prompt + answer, [-100] * len(prompt) + answer))
    longest = max(len(ids) for ids, _ in encoded)
    pad = tokenizer.pad_token_id
    ids = torch.tensor([ids + [pad] * (longest - len(ids)) for ids, _ in encoded])
    mask = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in encoded])
    labels = torch.tensor([labels + [-100] * (longest - len(labels)) for _, labels in encoded])
    return ids, mask, labels


if __name__ == "__main__":
    main(*sys.argv[1:])
