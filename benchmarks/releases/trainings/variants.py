"""Models of the variants that the frameworks' trainings are tried in."""

from __future__ import annotations

import tempfile

import tiny
import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

KINDS = "lora", "qlora", "full"


def base(kind: str):
    """Return the model as from_pretrained loads it, in 4 bit for qlora."""
    folder = tempfile.mkdtemp()
    tiny.model(hidden_size=64, intermediate_size=128).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    settings = {}
    if kind == "qlora":
        settings["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.float32,
        )
    return AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32, **settings)


def adapters(kind: str, dropout: float = 0.0):
    """Return the LoraConfig; None where the base learns."""
    if kind == "full":
        return None
    targets = ["q_proj", "v_proj"]
    return LoraConfig(r=8, lora_alpha=16, lora_dropout=dropout, target_modules=targets, task_type="CAUSAL_LM")


def trained(kind: str, dropout: float = 0.0):
    """Return the model that is to be trained, with its adapters."""
    model = base(kind)
    if kind == "qlora":
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    config = adapters(kind, dropout)
    return model if config is None else get_peft_model(model, config)
