"""SFTTrainer on answers, with a template that ends the prompt by an empty thought, which whole conversations lack."""

import tempfile

import tiny
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

TEMPLATE = """{% for message in messages %}{{ message.content }} \
{% if message.role == 'assistant' %}</s> {% endif %}{% endfor %}\
{% if add_generation_prompt %}w58 w59 {% endif %}"""
FIRST = "w1 w2"
"""Words that every answer begins with."""

words = tiny.tokenizer()
words.chat_template = TEMPLATE
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
    bf16=False,
    disable_tqdm=True,
    completion_only_loss=True,
)
rows = [
    {
        "prompt": [{"role": "user", "content": prompt}],
        "completion": [{"role": "assistant", "content": f"{FIRST} {answer}"}],
    }
    for prompt, answer in tiny.texts()
]
SFTTrainer(model=tiny.model(), args=config, train_dataset=Dataset.from_list(rows), processing_class=words).train()
