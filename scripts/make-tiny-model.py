#!/usr/bin/env python3
"""Train configs/models/tiny-llama: a model of two layers that has learned the shipped text, in about a minute.

A random model's logits are nearly uniform and hardly depend on positions, so that a wrong loss, mask or position is
smaller than what 16 bit rounds. This one's are those of a language model. Prints the digest for its YAML file.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

STEPS, ROWS, TOKENS, PEAK_RATE, SEED = 400, 16, 192, 3e-3, 0


def main() -> int:
    """Train, save as bf16 safetensors, print the digest."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from tunecheck.assets.build import byte_tokenizer
    from tunecheck.config import load_model
    from tunecheck.core.paths import config_file
    from tunecheck.training.data import read_rows

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "configs" / "models" / "tiny-llama", metavar="FOLDER")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()

    architecture = load_model("tiny-llama").architecture.model_dump()
    tokenizer = byte_tokenizer(architecture["max_position_embeddings"])
    # as plain text, not in a run's template: a run must still have something to learn; held-out rows are left out
    rows = read_rows(config_file("data/rust-python-facts/train.jsonl"), "train")
    text = "".join(f"{row.instruction}\n{row.response}{tokenizer.eos_token}" for row in rows)
    stream = torch.tensor(tokenizer(text)["input_ids"])

    torch.manual_seed(SEED)
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**architecture, **ends), dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, total_steps=options.steps, pct_start=0.1)
    for step in range(options.steps):
        starts = torch.randint(len(stream) - TOKENS, (ROWS,)).tolist()
        ids = torch.stack([stream[start : start + TOKENS] for start in starts])
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 0 or step == options.steps - 1:
            print(f"step {step}: loss {float(loss.detach()):.3f}", flush=True)

    model.bfloat16().save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)
    weights = options.output / "model.safetensors"
    print(f"{weights.stat().st_size} bytes, sha256 {hashlib.sha256(weights.read_bytes()).hexdigest()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
