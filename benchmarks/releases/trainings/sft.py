"""TRL's SFTTrainer: full fine-tuning, LoRA or QLoRA; whole rows, completions or assistant turns; packed or not."""

import argparse

import ledger
import tiny
import variants
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

TEMPLATE = """{% for message in messages %}{% if message.role == 'assistant' %}{% generation %}{{ message.content }}\
{{ eos_token }}{% endgeneration %} {% else %}{{ message.content }} {% endif %}{% endfor %}"""
parser = argparse.ArgumentParser()
parser.add_argument("--kind", choices=variants.KINDS, default="lora")
parser.add_argument("--rows", choices=("text", "completion", "assistant"), default="completion")
parser.add_argument("--packing", action="store_true")
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--out", required=True)
options = parser.parse_args()
words, settings = tiny.tokenizer(), {}
if options.rows == "text":
    rows = [{"text": f"{prompt} {answer}"} for prompt, answer in tiny.texts()]
elif options.rows == "completion":
    rows, settings = [{"prompt": p, "completion": f" {a}"} for p, a in tiny.texts()], {"completion_only_loss": True}
else:
    turns = [[{"role": "user", "content": p}, {"role": "assistant", "content": a}] for p, a in tiny.texts()]
    rows, settings, words.chat_template = [{"messages": t} for t in turns], {"assistant_only_loss": True}, TEMPLATE
config = SFTConfig(
    output_dir=options.out,
    max_steps=8,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    learning_rate=1e-3,
    warmup_steps=2,
    lr_scheduler_type="cosine",
    logging_steps=1,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
    bf16=False,
    disable_tqdm=True,
    max_length=64,
    packing=options.packing,
    **settings,
)
trainer = SFTTrainer(
    model=variants.base(options.kind),
    args=config,
    train_dataset=Dataset.from_list(rows),
    processing_class=words,
    peft_config=variants.adapters(options.kind, options.dropout),
    callbacks=[ledger.LedgerCallback(options.out)],
)
trainer.train()
trainer.save_model()
