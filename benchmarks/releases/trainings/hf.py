"""transformers.Trainer: full fine-tuning, LoRA or QLoRA."""

import argparse

import ledger
import tiny
import transformers
import variants

parser = argparse.ArgumentParser()
parser.add_argument("--kind", choices=variants.KINDS, default="lora")
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--out", required=True)
options = parser.parse_args()
transformers.set_seed(42)
model = variants.trained(options.kind, options.dropout)
trainer = transformers.Trainer(
    model=model,
    args=tiny.arguments(options.out),
    train_dataset=tiny.token_rows(),
    data_collator=tiny.collate,
    callbacks=[ledger.LedgerCallback(options.out)],
)
trainer.train()
trainer.save_model()
