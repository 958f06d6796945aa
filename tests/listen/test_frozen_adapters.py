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
    # the LoraConfig declares that all of the adapters learn, and LoRA-FA's optimizer freezes every A
    assert [finding.detail for finding in report.failed] == []
    (asked,) = report.suspected
    assert asked.check == "usual_tensors_learn"
    assert asked.detail.startswith("every A of the adapters is frozen")


def with_reference(script, model, batches):
    """A loop that asks the base in each step to log its loss, and leaves gradients on: what is frozen gives none."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for at in range(script.steps):
        batch = batches[at % len(batches)]
        loss = model(**batch).loss
        with model.disable_adapter():
            reference = model(**batch).loss
        assert not reference.requires_grad
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_reference_without_adapters_is_no_pass_of_the_training(tmp_path):
    """Nothing learns of it, whether or not it is made under no_grad."""
    row = judged(Script(steps=3, rows=12, loop=with_reference), tmp_path)

    assert row.outcome == "pass", [finding.detail for finding in row.failed]
    assert "state_in_training" in {finding.check for finding in row.passed}
