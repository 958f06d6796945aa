"""The base against its file, where the loader gives tensors other names or joins them, and positions turn otherwise."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tunecheck.listen.declared import architecture_of
from tunecheck.listen.premises import stores_quantised
from tunecheck.probes.fidelity import FidelityProbe

SHAPES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1e6, "factor": 4.0}


def loaded(folder: Any, kind: str, **others: Any) -> Any:
    """A random model of this kind, saved and loaded."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SHAPES, **others)).save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder)


def fidelity(model: Any, folder: Any, *, declared: bool = False) -> Any:
    """What the probe says of it, in a training whose dtypes are declared, or not."""
    said: list[Any] = []
    session: Any = SimpleNamespace(
        folder=folder,
        model=model,
        batches=SimpleNamespace(train=[]),
        run=SimpleNamespace(
            model=SimpleNamespace(architecture=architecture_of(model.config)), holds=lambda premise: declared
        ),
    )
    FidelityProbe(said.append).start(session)
    return said[0]


@pytest.mark.parametrize(
    ("kind", "others"),
    [
        ("gpt_neox", {}),
        ("mixtral", {"num_local_experts": 3}),
        ("ernie4_5_moe", {"moe_num_experts": 4, "moe_intermediate_size": 16, "moe_layer_start_index": 0}),
        ("phi", {"partial_rotary_factor": 0.5}),
        ("mistral", {"head_dim": 16}),
        ("llama", {"rope_parameters": LLAMA3}),
        ("qwen3", {"head_dim": 16, "rope_parameters": LINEAR}),
        ("gemma3_text", {"head_dim": 16}),
    ],
)
def test_a_base_that_was_loaded_right_is_the_files(tmp_path: Any, kind: str, others: dict[str, Any]) -> None:
    """GPT-NeoX's head has another name in the file, Mixtral's experts are joined; each turns positions its own way."""
    seen = fidelity(loaded(tmp_path, kind, **others), tmp_path)

    assert not seen.differing
    assert not seen.buffers_differing


@pytest.mark.parametrize(
    ("kept", "declared", "differing"),
    [(torch.bfloat16, False, 0), (torch.bfloat16, True, 1), (torch.float8_e5m2, False, 1)],
    ids=["16 bit", "16 bit, declared in fp32", "8 bit"],
)
def test_a_script_may_read_its_base_in_16_bit(tmp_path: Any, kept: torch.dtype, declared: bool, differing: int) -> None:
    """As where prepare_model_for_kbit_training raises it to fp32 again. The suite's own runs may not."""
    model = loaded(tmp_path, "llama")
    weight = model.model.embed_tokens.weight
    weight.data = weight.data.to(kept).float()

    assert len(fidelity(model, tmp_path, declared=declared).differing) == differing


@pytest.mark.parametrize("kind", ["gpt_neox", "llama"])
def test_a_vocabulary_that_grew_has_new_rows_beside_the_files(tmp_path: Any, kind: str) -> None:
    """Of a head that the file has by another name, too; one that is drawn anew is named."""
    model = loaded(tmp_path, kind, tie_word_embeddings=False)
    model.resize_token_embeddings(model.config.vocab_size + 3)
    assert not fidelity(model, tmp_path).differing

    torch.nn.init.normal_(model.lm_head.weight.data)
    assert fidelity(model, tmp_path).differing == ("lm_head.weight",)


def test_a_file_says_whether_its_weights_are_quantised(tmp_path: Any) -> None:
    """A base that was unpacked while it was loaded has no tensor of its file's."""
    loaded(tmp_path, "llama")
    assert not stores_quantised(tmp_path)

    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
    assert stores_quantised(tmp_path)


def test_joined_experts_that_are_not_the_files_are_named(tmp_path: Any) -> None:
    """A tensor drawn anew after loading is under no name of the file."""
    model = loaded(tmp_path, "mixtral", num_local_experts=3)
    names = {name: parameter for name, parameter in model.named_parameters() if name.endswith("gate.weight")}
    for parameter in names.values():
        torch.nn.init.normal_(parameter.data)

    assert len(fidelity(model, tmp_path).differing) == len(names) == 1


@pytest.mark.parametrize(
    "others",
    [{}, {"head_dim": 16}, {"rope_parameters": LLAMA3}, {"rope_parameters": LINEAR}],
    ids=["plain", "wide heads", "as Llama 3", "linear"],
)
def test_a_frequency_that_is_not_its_closed_form_is_named(tmp_path: Any, others: dict[str, Any]) -> None:
    """One of them by a percent, whatever the scaling: positions far on are then others."""
    model = loaded(tmp_path, "llama", **others)
    model.model.rotary_emb.inv_freq[-1] *= 1.01

    assert fidelity(model, tmp_path).buffers_differing == ("model.rotary_emb.inv_freq",)


@pytest.mark.parametrize("whole", [True, False])
def test_a_cast_of_the_whole_model_rounds_its_frequencies(tmp_path: Any, whole: bool) -> None:
    """One of its parameters alone does not: bf16."""
    model = loaded(tmp_path, "llama", head_dim=16)
    if whole:
        model.to(torch.bfloat16)
    else:
        for parameter in model.parameters():
            parameter.data = parameter.data.bfloat16()
    seen = fidelity(model, tmp_path)

    assert seen.buffers_cast is bool(seen.buffers_differing) is whole
