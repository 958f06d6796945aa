"""LoRA on a Gemma 3, which scales its embedding's output, with a few tokens of the embedding that learn, too."""

import tempfile

import tiny
from peft import LoraConfig, get_peft_model

config = LoraConfig(
    r=8,
    target_modules=["q_proj", "v_proj"],
    trainable_token_indices={"embed_tokens": [5, 6, 7]},
    task_type="CAUSAL_LM",
)
model = get_peft_model(tiny.model("Gemma3Text", head_dim=8, tie_word_embeddings=True), config)
tiny.train(model, tiny.token_rows(), tempfile.mkdtemp())
