"""unsloth's FastLanguageModel with TRL's SFTTrainer: LoRA on a model of a folder."""

import argparse

from unsloth import FastLanguageModel  # isort: skip  it patches what comes after it

import ledger
import tiny
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True)
parser.add_argument("--out", required=True)
options = parser.parse_args()
model, tokenizer = FastLanguageModel.from_pretrained(options.model, max_seq_length=256, load_in_4bit=False)
model = FastLanguageModel.get_peft_model(model, r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"])
config = SFTConfig(
    output_dir=options.out,
    max_steps=6,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    learning_rate=1e-4,
    warmup_steps=1,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
)
trainer = SFTTrainer(
    model=model,
    args=config,
    train_dataset=Dataset.from_list([{"text": f"{prompt} {answer}"} for prompt, answer in tiny.texts()]),
    processing_class=tokenizer,
    callbacks=[ledger.LedgerCallback(options.out)],
)
trainer.train()
trainer.save_model()
