"""Reading adapters back beside the trained ones: of a part of the base, and past a replaced method. In fp32."""

from __future__ import annotations

import torch
from peft import get_peft_model_state_dict

from benchmarks.scripts.recipes import RECIPES
from benchmarks.scripts.script import Script, judged, trained


def test_a_training_with_pissa_goes_on_as_without_listening(tmp_path):
    """Listening ends after two of four steps, with the saved adapter loaded beside the trained one.

    What peft warns of in our saving is dropped: here, as in a script under -W error, it would be an error.
    """
    weights = []

    def script():
        made = Script(steps=4, rows=16)
        for change in RECIPES["PiSSA"]:
            change(made)
        made.built.append(lambda trainer: weights.append(dict(trainer.model.named_parameters())))
        return made

    row = judged(script(), tmp_path, steps=2)
    trained(script(), tmp_path / "alone")

    assert [str(finding) for finding in (*row.failed, *row.unjudged) if not finding.expected] == []
    assert "adapter_round_trip" in {finding.check for finding in row.passed}
    listened, alone = weights
    assert listened.keys() == alone.keys()
    assert [name for name, tensor in alone.items() if not torch.equal(tensor, listened[name])] == []


def test_a_model_whose_state_dict_a_script_replaced_reads_its_adapter_back(tmp_path):
    """As alpaca-lora did, so that the base is not saved with the adapter. The file is read into another model."""
    models = []

    def replace(trainer):
        model = trainer.model
        whole = model.state_dict
        model.state_dict = lambda *_, **__: get_peft_model_state_dict(model, whole())
        models.append(model)

    made = Script(steps=4, rows=16)
    made.built.append(replace)
    row = judged(made, tmp_path, steps=2)

    assert "adapter_round_trip" in {finding.check for finding in row.passed}, [*map(str, row.failed)]
    assert models[0].state_dict.__name__ == "<lambda>"
