"""LoRA with fp32 adapters on a base in bf16, trained, saved and loaded to be trained on."""

import tempfile

import tiny
import torch
from peft import LoraConfig, PeftModel, get_peft_model

folder = tempfile.mkdtemp()
adapters = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
model = get_peft_model(tiny.model().to(torch.bfloat16), adapters)
tiny.train(model, tiny.token_rows(), tempfile.mkdtemp())
model.save_pretrained(folder)
again = PeftModel.from_pretrained(tiny.model().to(torch.bfloat16), folder, is_trainable=True)
tiny.train(again, tiny.token_rows(), tempfile.mkdtemp())
