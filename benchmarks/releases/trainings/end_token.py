"""SFTTrainer with the end token as padding, as for tokenizers that have none of their own."""

import tempfile

import tiny
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

words = tiny.tokenizer()
words.pad_token = words.eos_token
model = tiny.model(pad_token_id=words.eos_token_id)
model.accepts_loss_kwargs = False  # transformers before 5.11 would count the first token, see first_token.py
config = SFTConfig(
    output_dir=tempfile.mkdtemp(),
    max_steps=8,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=1,
    learning_rate=1e-3,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
    disable_tqdm=True,
)
rows = Dataset.from_list([{"text": f"{prompt} {answer}"} for prompt, answer in tiny.texts()])
SFTTrainer(model=model, args=config, train_dataset=rows, processing_class=words).train()
