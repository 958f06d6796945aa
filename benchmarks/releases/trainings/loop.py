"""A plain PyTorch loop: LoRA, QLoRA or full fine-tuning, in one process or in several."""

import argparse
import os

import ledger
import tiny
import torch
import variants
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--kind", choices=variants.KINDS, default="lora")
parser.add_argument("--own-loss", action="store_true", help="take the cross entropy of the logits in the loop")
parser.add_argument("--out", required=True)
options = parser.parse_args()
torch.manual_seed(42)
model, rows, sampler = variants.trained(options.kind), tiny.token_rows(), None
called = model
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    torch.distributed.init_process_group("gloo")
    called, sampler = DistributedDataParallel(model), DistributedSampler(rows)
loader = DataLoader(rows, batch_size=2, shuffle=sampler is None, sampler=sampler, collate_fn=tiny.collate)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
book = ledger.Ledger(options.out)
model.train()
for step, batch in zip(range(8), loader, strict=False):
    if options.own_loss:
        logits = called(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        loss = cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), batch["labels"][:, 1:].reshape(-1))
    else:
        loss = called(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    book.stepped(step, model)
    book.write(f"loss {loss.item()!r}")
if book.path.exists() and os.environ.get("RANK", "0") == "0":
    model.save_pretrained(options.out)
if called is not model:
    torch.distributed.destroy_process_group()
