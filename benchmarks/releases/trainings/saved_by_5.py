"""LoRA on a folder whose config.json has the rotary base where transformers 5 puts it."""

import json
import tempfile
from pathlib import Path

import tiny
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

BASE = 100.0
folder = Path(tempfile.mkdtemp())
tiny.model(rope_theta=BASE).save_pretrained(folder)
config = json.loads((folder / "config.json").read_text())
config.pop("rope_theta", None)
config["rope_parameters"] = {"rope_type": "default", "rope_theta": BASE}
(folder / "config.json").write_text(json.dumps(config))
model = AutoModelForCausalLM.from_pretrained(folder)
adapters = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
tiny.train(get_peft_model(model, adapters), tiny.token_rows(), tempfile.mkdtemp())
