"""LoRA+ with an adapter on the embedding, which has a rate of its own."""

import tempfile

import tiny
import torch
from peft import LoraConfig, get_peft_model
from peft.optimizers import create_loraplus_optimizer

config = LoraConfig(r=8, target_modules=["q_proj", "v_proj", "embed_tokens"], task_type="CAUSAL_LM")
model = get_peft_model(tiny.model(), config)
optimizer = create_loraplus_optimizer(
    model=model, optimizer_cls=torch.optim.AdamW, lr=1e-3, loraplus_lr_ratio=16, loraplus_lr_embedding=1e-6
)
tiny.train(model, tiny.token_rows(), tempfile.mkdtemp(), optimizers=(optimizer, None))
