"""LoRA with ranks and alphas by pattern."""

import tempfile

import tiny
from peft import LoraConfig, get_peft_model

config = LoraConfig(
    r=8,
    lora_alpha=8,
    target_modules=["q_proj", "v_proj"],
    rank_pattern={"q_proj": 16},
    alpha_pattern={"self_attn.q_proj": 64},
    task_type="CAUSAL_LM",
)
tiny.train(get_peft_model(tiny.model(), config), tiny.token_rows(), tempfile.mkdtemp())
