"""SFTTrainer with a PeftModel that the script made itself, on a base in 8 bit."""

import tempfile

import tiny
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

base = tempfile.mkdtemp()
tiny.model().save_pretrained(base)
model = AutoModelForCausalLM.from_pretrained(
    base, quantization_config=BitsAndBytesConfig(load_in_8bit=True), device_map={"": "cpu"}
)
model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
config = SFTConfig(
    output_dir=tempfile.mkdtemp(),
    max_steps=8,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    learning_rate=1e-3,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
    bf16=False,
    disable_tqdm=True,
)
rows = Dataset.from_list([{"prompt": prompt, "completion": f" {answer}"} for prompt, answer in tiny.texts()])
SFTTrainer(model=model, args=config, train_dataset=rows, processing_class=tiny.tokenizer()).train()
