"""Every causal architecture of the installed transformers, two layers of random weights: a healthy training of each.

What a check takes for granted of a model shows here: names, lists of layers, tables, noise, kernels.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.scripts.script import Script

SIZES: dict[str, Any] = {
    "vocab_size": 512,
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim", "lru_width"), 64),
    **dict.fromkeys(("n_ctx", "n_positions", "max_position_embeddings", "max_seq_len"), 512),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "d_ff", "decoder_ffn_dim", "ffn_hidden_size"), 128),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads", "mamba_n_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok", "linear_num_key_heads"), 2),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "linear_num_value_heads"), 4),
    **dict.fromkeys(("head_dim", "rotary_dim", "q_lora_rank", "kv_lora_rank", "v_head_dim"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "linear_key_head_dim", "linear_value_head_dim"), 16),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "mamba_d_head"), 32),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace"), 1),
    **dict.fromkeys(("state_size", "mamba_d_state"), 8),
    **{"vocab_size_per_layer_input": 512, "hidden_size_per_layer_input": 16, "is_decoder": True, "pad_token_id": 0},
}
"""Keys of configurations, of whatever family, to small values."""
SAVED = tempfile.TemporaryDirectory(prefix="tunecheck-architectures-")
"""The models' files, for as long as this process lives."""
MOST_PARAMETERS = 6_000_000
"""Those whose size the keys above do not reach are left out."""


def architectures() -> list[str]:
    """Return the model types that transformers has a causal language model for."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def small(model_type: str, task: str = "AutoModelForCausalLM", **settings: Any) -> Any:
    """Return a model of this type with two layers and random weights. Raises what its classes raise for such a one."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    usual = CONFIG_MAPPING[model_type]()
    text = usual.get_text_config()
    known = {key: value for key, value in SIZES.items() if hasattr(text, key)}
    if hasattr(text, "kv_lora_rank"):  # its latents are those of all heads
        known["num_key_value_heads"] = known["num_attention_heads"]
    config = type(text)(**{**known, **settings})
    torch.manual_seed(0)
    return getattr(transformers, task).from_config(config)


def training(model_type: str, *, adapters: bool = False) -> Script | None:
    """Return a full fine-tuning, or one of adapters on every linear, of a model loaded from its file.

    None for a model that cannot be made small.
    """
    folder = Path(SAVED.name, model_type)
    try:
        with torch.device("meta"):  # some would fill the memory
            if sum(p.numel() for p in small(model_type).parameters()) > MOST_PARAMETERS:
                return None
        model = small(model_type)
        model.save_pretrained(folder)
    except Exception:  # a configuration that these sizes do not suit is not this study's matter
        return None
    lora = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"} if adapters else None
    return Script(lora=lora, base=lambda dtype: type(model).from_pretrained(folder, dtype=dtype))
