"""A script that freezes a part of its adapters trains the same bits under watch, and it stays frozen. CPU, fp32."""

from __future__ import annotations

import torch

from benchmarks.scripts.script import Script, judged, trained


def frozen(folder, run):
    """Train with A frozen, as LoRA-FA has it, and return the tensors, what is learned, and what `run` returns."""
    models = []

    def freeze(model):
        models.append(model)
        for name, parameter in model.named_parameters():
            if "lora_A" in name:
                parameter.requires_grad_(False)

    folder.mkdir()
    found = run(Script(adapted=[freeze]), folder)
    parameters = dict(models[0].named_parameters())
    return parameters, {name for name, parameter in parameters.items() if parameter.requires_grad}, found


def test_what_a_script_freezes_of_its_adapters_stays_frozen(tmp_path):
    """The probes disable adapters and read the saved one back, for which peft thaws all of an adapter."""
    alone, learned_alone, _ = frozen(tmp_path / "alone", trained)
    watched, learned, report = frozen(tmp_path / "watched", judged)

    assert learned == learned_alone
    assert {name.partition("lora_")[2][0] for name in learned} == {"B"}
    assert all(torch.equal(alone[name], tensor) for name, tensor in watched.items())
    # the LoraConfig declares that all of the adapters learn
    failed = {finding.check: finding for finding in report.failed}
    assert failed.keys() == {"trainable_set", "parameters_counted", "state_in_training"}
    assert "--expect 'frozen=lora_A'" in failed["trainable_set"].detail
