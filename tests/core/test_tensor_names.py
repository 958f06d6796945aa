"""Many names of tensors in a sentence, and what tells some from others."""

from __future__ import annotations

from tunecheck.checks.model import by_layer, told_apart

LORA = [f"layers.{n}.{m}.lora_{half}.weight" for n in (0, 1, 2, 11) for m in ("q_proj", "v_proj") for half in "AB"]


def test_layers_that_have_the_same_tensors_are_one():
    """Every name is in it."""
    halves = [name for name in LORA if "lora_A" in name]
    told = by_layer([*halves, "norm.weight"])
    assert told == "layers.0-2,11: q_proj.lora_A.weight, v_proj.lora_A.weight; norm.weight"


def test_what_tells_tensors_apart():
    """The shortest part of a name; a layer by its number and the word before."""
    for part in ("lora_A", "q_proj", r"layers\.1\."):
        some = [name for name in LORA if part.replace("\\", "") in name]
        assert told_apart(some, [name for name in LORA if name not in some]) == part
    assert told_apart(LORA[:3], LORA[3:]) == ""
