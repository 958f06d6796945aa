"""LoRA, merged and saved after the training."""

import argparse
import tempfile

import tiny
from peft import LoraConfig, get_peft_model

parser = argparse.ArgumentParser()
parser.add_argument("--lora-bias", action="store_true", help="lora_B has a bias")
parser.add_argument("--tied", action="store_true", help="the head is the embedding")
parser.add_argument("--save-embedding", action="store_true", help="the embedding learns, too")
parser.add_argument("--adapt-head", action="store_true", help="the head has an adapter, too")
options = parser.parse_args()
config = LoraConfig(
    r=8,
    lora_alpha=16,
    target_modules=["q_proj", "v_proj", *(["lm_head"] if options.adapt_head else [])],
    modules_to_save=["embed_tokens"] if options.save_embedding else None,
    lora_bias=options.lora_bias,
    task_type="CAUSAL_LM",
)
# the bias of B is added to the base's, which Llama does not have
family = "Qwen2" if options.lora_bias else "Llama"
model = get_peft_model(tiny.model(family, tie_word_embeddings=options.tied), config)
tiny.train(model, tiny.token_rows(), tempfile.mkdtemp(), learning_rate=1e-2)
model.merge_and_unload().save_pretrained(tempfile.mkdtemp())
