"""transformers.Trainer: full fine-tuning, LoRA or QLoRA."""

import argparse

import ledger
import tiny
import transformers
import variants
from peft import get_peft_model, prepare_model_for_kbit_training

parser = argparse.ArgumentParser()
parser.add_argument("--kind", choices=variants.KINDS, default="lora")
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--out", required=True)
options = parser.parse_args()
transformers.set_seed(42)
model = variants.base(options.kind)
if options.kind == "qlora":
    model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
if (config := variants.adapters(options.kind, options.dropout)) is not None:
    model = get_peft_model(model, config)
trainer = transformers.Trainer(
    model=model,
    args=tiny.arguments(options.out),
    train_dataset=tiny.token_rows(),
    data_collator=tiny.collate,
    callbacks=[ledger.Ledger(options.out)],
)
trainer.train()
trainer.save_model()
