"""What a loop saves of the model that it trained, read back: under names that load, or under others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from tunecheck.listen import saves

pytestmark = pytest.mark.filterwarnings("ignore")
IDS = torch.arange(12)[None]


def small():
    """A model of one layer, whose head is its own."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, tie_word_embeddings=False, **sizes))


def heard(model):
    """The list that gets what is found of its saves."""
    seen = []
    saves.PRODUCTS[model] = saves.Product(lambda record, seconds: seen.append(record), IDS)
    return seen


def save(model, folder, **given):
    """As the hook of save_pretrained has it."""
    after = saves.saving(model, folder, **given)
    model.save_pretrained(folder, **given)
    if after is not None:
        after(None)


def save_by_hand(model, folder, prefix):
    """Weights first, as many scripts do, and the configuration after them."""
    state = {f"{prefix}{name}": tensor.clone() for name, tensor in model.state_dict().items()}
    path = Path(folder) / "model.safetensors"
    after = saves.writing(state, path)
    save_file(state, path, metadata={"format": "pt"})
    after(None)
    model.config.save_pretrained(folder)
    saves.describing(model.config, folder)(None)


@pytest.mark.parametrize(("prefix", "same"), [("", True), ("module.", False), ("_orig_mod.", False)])
def test_names_that_nobody_loads_are_another_function(tmp_path, prefix, same):
    """By the library's save_pretrained, and by a file that lies where it looks."""
    model = small()
    seen = heard(model)
    (tmp_path / "hand").mkdir()

    save(model, tmp_path, state_dict={f"{prefix}{name}": tensor for name, tensor in model.state_dict().items()})
    save_by_hand(model, tmp_path / "hand", prefix)

    assert [record.logit_difference < 1e-4 for record in seen] == [same, same]


def test_an_average_and_a_file_elsewhere_are_the_scripts_own(tmp_path):
    """Nothing is read back of them."""
    model = small()
    seen = heard(model)
    state = {name: tensor * 0.9 for name, tensor in model.state_dict().items()}

    save(model, tmp_path, state_dict=state)
    assert saves.writing(model.state_dict(), tmp_path / "mine.pt") is None
    assert saves.writing(state, tmp_path / "model.safetensors") is None
    assert seen == []


def test_alike_saves_are_read_twice(tmp_path):
    """Checkpoints."""
    model = small()
    seen = heard(model)
    for step in range(4):
        save(model, tmp_path / str(step))

    assert len(seen) == saves.MOST_READ


def test_a_base_saved_with_its_adapters_in_place_does_not_load(tmp_path):
    """Its linears lie under `base_layer`; saved without them by hand it is the base alone, which may be meant."""
    model = get_peft_model(small(), LoraConfig(target_modules="all-linear", init_lora_weights=False))
    seen = heard(model)
    base = model.get_base_model()
    alone = {n.replace(".base_layer", ""): p for n, p in base.state_dict().items() if "lora_" not in n}

    save(base, tmp_path / "broken")
    save(base, tmp_path / "base", state_dict=alone)

    assert len(seen) == 1
    assert seen[0].logit_difference > 0.01
