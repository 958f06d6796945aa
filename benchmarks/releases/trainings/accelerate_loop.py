"""A loop with accelerate: LoRA, two micro-batches a step, normalised by the tokens of both."""

import argparse

import ledger
import tiny
import torch
import variants
from accelerate import Accelerator
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
options = parser.parse_args()
torch.manual_seed(42)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = variants.trained("lora")
loader = DataLoader(tiny.token_rows(), batch_size=2, shuffle=True, collate_fn=tiny.collate)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=0.1, total_iters=8)
model, loader, optimizer, schedule = accelerator.prepare(model, loader, optimizer, schedule)
book = ledger.Ledger(options.out)
model.train()
batches = iter(loader)
for step in range(8):
    window = [next(batches) for _ in range(2)]
    items = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in window)
    for batch in window:
        with accelerator.accumulate(model):
            own = int((batch["labels"][:, 1:] != -100).sum())
            # accelerate divides by the number of micro-batches
            accelerator.backward(model(**batch).loss * own / items * accelerator.gradient_accumulation_steps)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    book.stepped(step, model)
accelerator.unwrap_model(model).save_pretrained(options.out)
