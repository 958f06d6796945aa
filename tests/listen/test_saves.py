"""What is written of a model that learns, told apart by its values."""

from __future__ import annotations

import copy
import io

import numpy
import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from peft.tuners.lora.model import LoraModel
from traces import adding, healthy, with_run

from benchmarks.scripts.script import Script, judged
from tunecheck.checks import CHECKS
from tunecheck.core.finding import Status
from tunecheck.listen import imports, provenance, saves


class Learner(torch.nn.Module):
    """A layer whose bias begins at 0, and one that rests beside it with the same weights."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        torch.nn.init.zeros_(self.layer.bias)
        self.beside = copy.deepcopy(self.layer).requires_grad_(False)

    def save_pretrained(self, state):
        """As libraries have it."""
        saves.written(state)


@pytest.fixture
def heard(monkeypatch):
    """A model before its training, and the records of what it writes."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    torch.manual_seed(0)
    model, records = Learner(), []
    del model.beside
    saves.watch(model, records.append)
    return model, records


def learn(model):
    """Take a step."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1


def taken(model):
    """Its state, as it is."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_the_trained_model_is_known_by_its_values(heard):
    """Under any names, in what is written with it, or as the module."""
    model, records = heard
    saves.written(taken(model))  # before anything was learned
    learn(model)
    saves.written({"model": {f"renamed.{name}": value for name, value in taken(model).items()}, "step": 3})
    saves.written(model)

    assert [(seen.own, seen.trained, seen.earlier, seen.other) for seen in records] == [(False, 2, (), 0)] * 2


def test_a_tensor_under_another_ones_name_is_told(heard):
    """Those that are equal, as tied ones, and those that had not moved, are not."""
    model, records = heard
    model.other = torch.nn.Linear(4, 3)
    saves._TRAINED.clear()
    saves.watch(model, records.append)
    learn(model)
    state = taken(model)
    saves.written(state)
    saves.written({**state, "other.weight": state["layer.weight"]})

    assert [seen.misnamed for seen in records] == [(), ("other.weight of layer.weight",)]


def test_an_adapter_that_never_learned_is_told(monkeypatch):
    """One of the same configuration on another base, saved after the trained one."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    models = [get_peft_model(Learner(), LoraConfig(target_modules=["layer"])) for _ in range(2)]
    records = []
    saves.watch(models[0], records.append)
    learn(models[0])
    for model in models:
        saves.written(get_peft_model_state_dict(model))

    assert [seen.blank for seen in records] == [False, True]


def test_a_reference_adapter_of_the_model_never_learns(monkeypatch):
    """As TRL keeps one beside the adapter that DPO trains, and saves both."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    model = get_peft_model(Learner(), LoraConfig(target_modules=["layer"]))
    model.add_adapter("ref", LoraConfig(target_modules=["layer"]))
    records = []
    saves.watch(model, records.append)
    learn(model)
    for name in ("default", "ref"):
        saves.written(get_peft_model_state_dict(model, adapter_name=name))

    assert [seen.blank for seen in records] == [False] * len(records)


def test_a_state_from_before_is_told(heard):
    """By the weights alone: many a tensor begins at 0."""
    model, records = heard
    before = taken(model)
    learn(model)
    model.save_pretrained(before)
    model.save_pretrained({})

    assert [(seen.own, seen.tensors, seen.trained, seen.earlier) for seen in records] == [
        (True, 2, 0, ("layer.weight",)),
        (True, 0, 0, ()),
    ]


def test_a_model_that_is_back_at_its_start_is_told(heard):
    """As where an average that was never updated is copied into it for the save."""
    model, records = heard
    before = taken(model)
    model.save_pretrained(before)
    learn(model)
    saves.trained(model)
    model.load_state_dict(before)
    model.save_pretrained(taken(model))

    assert [(seen.own, seen.trained, seen.earlier, seen.returned) for seen in records] == [
        (True, 0, ("layer.weight",), True)
    ]


def test_a_file_of_trained_tensors_that_is_overwritten(heard, tmp_path):
    """By those from before: the same file, whatever else is saved; others are copies."""
    model, records = heard
    before = taken(model)
    learn(model)
    for state, name in ((taken(model), "out"), (before, "copy"), (before, "out"), (taken(model), "out")):
        saves.written(state, tmp_path / name)

    assert [seen.overwrites for seen in records] == [False, False, True, False]


def test_an_average_is_neither(heard):
    """So is another model of the same shape; other tensors are nothing."""
    model, records = heard
    before = taken(model)
    learn(model)
    saves.written({name: (value + before[name]) / 2 for name, value in taken(model).items()})
    saves.written({"loss": torch.ones(7)})
    model.save_pretrained({"step": 3})
    model.save_pretrained(["anything"])

    assert [(seen.trained, seen.earlier, seen.other) for seen in records] == [(0, (), 2)]


@pytest.mark.parametrize("updated", [True, False])
@pytest.mark.parametrize("with_model", [True, False])
def test_an_average_that_is_never_updated(updated, with_model, heard):
    """It is the start, beside the trained model or in a file of its own."""
    model, records = heard
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    average.update_parameters(model)
    learn(model)
    if updated:
        average.update_parameters(model)
    saves.written({"model": taken(model), "average": taken(average)} if with_model else taken(average))

    assert [seen.start for seen in records] == [not updated]


def on_save(model, path):
    """As a callback writes adapters into a checkpoint's folder."""
    saves.written(taken(model), path)


def _save_checkpoint(model, path):
    """As transformers' Trainer has it."""
    saves.written(taken(model), path)


@pytest.mark.parametrize(
    ("then", "told"),
    [
        (lambda model, folder: None, True),
        (lambda model, folder: _save_checkpoint(model, folder / "checkpoint"), True),
        (lambda model, folder: on_save(model, folder / "checkpoint"), True),
        (lambda model, folder: saves.written(taken(model), folder / "trained"), False),
        (lambda model, folder: saves.written({n: v / 2 for n, v in taken(model).items()}, folder / "half"), False),
        (lambda model, folder: (folder / "early").unlink(), False),
    ],
    ids=["nothing", "a Trainer's checkpoint", "a callback's", "the trained model", "an average", "no file is left"],
)
@pytest.mark.parametrize("early", [True, False])
def test_a_model_that_is_kept_as_it_was_before(early, then, told, tmp_path, monkeypatch):
    """Where the process ends, and the script itself wrote nothing else of it."""
    monkeypatch.setattr(saves, "_EARLY", [])
    monkeypatch.setattr(saves, "_TRAINED", {})
    records = []
    model = Learner()
    del model.beside
    (tmp_path / "early").touch()
    saves.written(taken(model if early else Learner()), tmp_path / "early")
    saves.watch(model, records.append)
    learn(model)
    saves.trained(model)
    then(model, tmp_path)
    saves.script_ends()

    assert [seen.first for seen in records if seen.first] == [True] * (early and told)


@pytest.mark.parametrize("early", [True, False])
def test_the_best_checkpoint_may_be_the_first_one(early, tmp_path, monkeypatch):
    """A file that the script wrote then holds the same values; without one, a stale copy is saved."""
    monkeypatch.setattr(saves, "_EARLY", [])
    monkeypatch.setattr(saves, "_TRAINED", {})
    records, model = [], Learner()
    del model.beside
    first = taken(model)
    if early:
        saves.written(first, tmp_path / "best")
    saves.watch(model, records.append)
    learn(model)
    saves.written(first, tmp_path / "final")

    assert [(bool(seen.earlier), seen.start) for seen in records] == [(not early, True)]


class Apart(torch.nn.Module):
    """A body and its head, and a teacher that another file may hold."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 5), torch.nn.Linear(5, 5))
        self.head = torch.nn.Linear(5, 2)


@pytest.mark.parametrize(
    ("kept", "kind"),
    [
        (lambda model, teacher: [model.head.state_dict()], "head"),
        (lambda model, teacher: [{"net": [{"head": {"layers": model.head.state_dict()}}]}], "head"),
        (lambda model, teacher: [model.head, teacher], "head"),
        (lambda model, teacher: [teacher], "teacher"),
        (lambda model, teacher: [{"model": teacher.state_dict(), "step": 3}], "teacher"),
        (lambda model, teacher: [model.body], "body"),
        (lambda model, teacher: [model.head, model.body], ""),
        (lambda model, teacher: [teacher, model], ""),
        (lambda model, teacher: [model.head, {n: t.half() for n, t in taken(model.body).items()}], ""),
        (lambda model, teacher: [{n: t.half() for n, t in taken(teacher).items()}], ""),
        (lambda model, teacher: [torch.nn.Linear(4, 6)], ""),
        (lambda model, teacher: [{"optimizer": {"state": {0: taken(model)}, "param_groups": []}}], ""),
        (lambda model, teacher: [], ""),
    ],
    ids=[
        *("head", "head, deep", "head and teacher", "teacher", "teacher's state", "body", "both", "all"),
        *("body in 16 bit", "teacher in 16 bit", "another", "the optimizer's", "nothing"),
    ],
)
@pytest.mark.parametrize("learns", ["", "head"])
def test_what_learns_lies_in_a_file(learns, kept, kind):
    """In any of them, by the end of the script. Values that nobody knows may be what has learnt, in another form."""
    torch.manual_seed(0)
    model, teacher, records = Apart(), torch.nn.Linear(7, 3), []
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.startswith(learns)
    saves.watch(model, records.append)
    learn(model)
    saves.trained(model)
    for each in kept(model, teacher):
        saves.written(each)
    saves.script_ends()

    finding = CHECKS["saved_as_trained"]()(adding(with_run(healthy(), features=["user_code"]), *records))
    assert (finding.status is not Status.PASSED) == (
        kind in ("teacher", "body") or (kind == "head" and not learns) or not records
    )
    assert ("another model" in finding.detail) is (kind == "teacher")


def test_a_copy_of_the_start_may_be_the_models_own():
    """As where the best state so far is the first one, and a teacher begins as a copy of its student."""
    model, records = Apart(), []
    teacher = copy.deepcopy(model)
    saves.watch(model, records.append)
    start = taken(model)
    learn(model)
    saves.trained(model)
    saves.written(start)
    saves.script_ends()
    assert not any(seen.other for seen in records)
    assert teacher is not model


class Adapted(torch.nn.Linear):
    """A linear with LoRA of the script's own."""

    def __init__(self):
        super().__init__(6, 6)
        self.lora_a, self.lora_b = (torch.nn.Parameter(torch.randn(shape)) for shape in ((2, 6), (6, 2)))


@pytest.mark.parametrize("frozen", [False, True])
def test_adapters_alone_are_no_model_whose_base_learns_too(frozen):
    """Which a script forgot to freeze."""
    torch.manual_seed(0)
    model, records = torch.nn.Sequential(Adapted(), Adapted(), torch.nn.Linear(6, 40)), []
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "lora" in name or not frozen
    saves.watch(model, records.append)
    learn(model)
    saves.trained(model)
    saves.written({name: tensor for name, tensor in model.state_dict().items() if "lora" in name})
    saves.script_ends()

    finding = CHECKS["saved_as_trained"]()(adding(with_run(healthy(), features=["user_code"]), *records))
    assert ("are in no file" in finding.detail) is not frozen


@pytest.mark.parametrize("outputs", [2, 17])
def test_a_projection_may_be_of_no_use_after_the_training(outputs):
    """As that of a contrastive loss; a head of few outputs is what the training is for."""
    model, records = Apart(), []
    model.head = torch.nn.Linear(5, outputs)
    saves.watch(model, records.append)
    learn(model)
    saves.trained(model)
    saves.written(model.body)
    saves.script_ends()
    assert records[-1].scoring is (outputs == 2)


def test_what_rests_in_the_model_may_be_what_the_trained_one_was():
    """A reference adapter is saved with the trained one, each into a file of its own."""
    torch.manual_seed(0)
    model, records = Learner(), []
    saves.watch(model, records.append)
    learn(model)
    model.save_pretrained(taken(model.beside))

    assert not any(seen.earlier for seen in records)


@pytest.mark.parametrize(("saved", "resting"), [("second", [2]), ("default", [0]), ("joined", [0])])
def test_an_adapter_that_rested_is_told(saved, resting):
    """One that is joined of both afterwards was in no model before; B's zeros tell nothing."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 4))
    model = get_peft_model(layers, LoraConfig(target_modules=["0", "1"], r=2))
    model.add_adapter("second", LoraConfig(target_modules=["0", "1"], r=2))
    records = []
    saves.watch(model, records.append)
    learn(model)
    if saved == "joined":
        model.add_weighted_adapter(["default", "second"], [0.5, 0.5], "joined", combination_type="linear")
    saves.written(get_peft_model_state_dict(model, adapter_name=saved))

    assert [seen.resting for seen in records] == resting


@pytest.mark.parametrize(("leave", "base"), [("unload", [1]), ("merge_and_unload", [])])
def test_a_base_whose_adapters_were_taken_off_is_told(leave, base):
    """Merged it holds what they learned, under which nobody knows its values."""
    torch.manual_seed(0)
    model = get_peft_model(torch.nn.Sequential(torch.nn.Linear(4, 3)), LoraConfig(target_modules=["0"]))
    records = []
    saves.watch(model, records.append)
    saves.written(model.base_model.model)  # before anything was learned
    learn(model)

    def save_pretrained(self):
        saves.written(self)

    with imports._tell(LoraModel, "unload", provenance.unloading):
        save_pretrained(getattr(model, leave)())

    assert [(seen.without_adapters, seen.unloaded) for seen in records] == [(number, True) for number in base]


@pytest.mark.parametrize("merges", [True, False])
def test_adapters_that_a_merge_took_off_are_missing_in_a_save(merges):
    """Its result is dropped, and the model that is saved holds none any more."""

    def save_pretrained(self):
        saves.written(get_peft_model_state_dict(self))

    model = get_peft_model(torch.nn.Sequential(torch.nn.Linear(4, 3)), LoraConfig(target_modules=["0"]))
    records = []
    saves.watch(model, records.append)
    learn(model)
    if merges:
        model.merge_and_unload()
    save_pretrained(model)

    assert [(seen.own, seen.tensors) for seen in records] == [(True, 0 if merges else 2)]


@pytest.mark.parametrize("other_learns", [True, False])
def test_a_base_beside_what_learns_elsewhere_is_told(other_learns, monkeypatch):
    """As of a soft prompt, beside another training of the same base, whose tensors are not this one's."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(saves, "_TRAINED", saves.WeakKeyDictionary())
    torch.manual_seed(0)
    base, records = torch.nn.Linear(4, 3).requires_grad_(False), []
    prompts = [torch.nn.ModuleDict({"base": base, "prompt": torch.nn.Embedding(2, 4)}) for _ in range(2)]
    for prompt, tell in zip(prompts, [records.append, lambda record: None], strict=True):
        if prompt is prompts[0] or other_learns:
            saves.watch(prompt, tell)
        learn(prompt)
    saves.written(base.state_dict())
    saves.written(prompts[1]["prompt"].state_dict())

    seen = [(each.without_adapters, each.trained, each.other) for each in records]
    assert seen == [(1, 0, 0), (0, 0, int(not other_learns))]


def test_what_a_probe_saves_is_not_the_scripts(heard, monkeypatch):
    """The round trip of an adapter."""
    model, records = heard
    learn(model)
    monkeypatch.setattr(saves, "probing", lambda: True)
    saves.written(taken(model))

    assert not records


def test_alike_writes_are_told_twice(heard):
    """Checkpoints."""
    model, records = heard
    for _ in range(5):
        learn(model)
        saves.written(taken(model))

    assert len(records) == 2


@pytest.mark.parametrize(("rank", "records"), [("0", 1), ("1", 0)])
def test_the_first_of_several_processes_is_listened_to(rank, records, monkeypatch):
    """It is the one that saves; the others hold the same."""
    monkeypatch.setattr(saves, "rank_and_processes", lambda: (int(rank), 2))
    model, heard = Learner(), []
    saves.watch(model, heard.append)
    learn(model)
    saves.written(taken(model))

    assert len(heard) == records


def test_every_process_tells_its_files(monkeypatch, tmp_path):
    """By their whole names, each once; what holds no tensors, is in memory or is thrown away is none."""
    records = []
    monkeypatch.setattr(saves, "rank_and_processes", lambda: (1, 2))
    monkeypatch.setattr(saves, "_FILES", set())
    monkeypatch.setattr(saves, "_TELL_FILE", [])
    monkeypatch.chdir(tmp_path)
    model = Learner()
    saves.watch(model, records.append)
    for thing, path in (
        (model, "a.pt"),
        (taken(model), tmp_path / "a.pt"),
        ({"model": taken(model)}, "b.pt"),
        ({"step": 3}, "c.pt"),
        (model, io.BytesIO()),
        (model, "/dev/null"),
    ):
        saves.written(thing, path)

    assert [seen.path for seen in records] == [str(tmp_path / "a.pt"), str(tmp_path / "b.pt")]


@pytest.mark.parametrize("greater", [True, None])
def test_a_trainer_keeps_the_best_checkpoint(greater, tmp_path):
    """Its arguments say in which direction."""
    every = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": greater}
    row = judged(Script(steps=2, rows=16, evaluates=True, arguments={**every, **best}), tmp_path)

    told = [finding.detail for finding in row.suspected if finding.check == "saved_as_trained"]
    assert told == ["the checkpoint with the highest loss counts as the best"] * bool(greater)


@pytest.mark.parametrize("named", [("obj", "f"), ("tensors", "filename")], ids=["torch", "safetensors"])
def test_what_is_written_may_be_named(named, heard):
    """As in torch.save(obj=..., f=...) and save_file(tensors=..., filename=...)."""
    model, records = heard
    learn(model)
    saves.writing(**dict(zip(named, (taken(model), "model.pt"), strict=True)))

    assert [seen.trained for seen in records] == [2]


def test_a_file_of_an_array_is_no_model(heard):
    """Numbers of the script's own, which numpy compares one by one."""
    model, records = heard
    learn(model)
    saves.writing(numpy.array([1.0, 2.0]), "losses.pt")

    assert not records


def test_rows_of_tokens_are_not_looked_through():
    """There may be millions of them; a checkpoint may be a tuple that begins with a number."""
    tensor = torch.ones(2)
    rows = [{"input_ids": [*range(20)], "text": "a"}] * 3

    assert [*saves.tensors_of((3, {"weight": tensor}, rows))] == [("1.weight", tensor)]
    assert not [*saves.tensors_of([[tensor, *range(20)]])]


class Sharded(torch.nn.Parameter):
    """A part of a tensor, of which only all ranks together see the whole."""

    def to_local(self):
        """One rank alone would wait here."""
        raise AssertionError("asked for the whole")


def test_parts_of_sharded_tensors_are_left_alone(monkeypatch):
    """Those of another model, and those that one rank writes."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    teacher = torch.nn.Linear(4, 3)
    teacher.weight = Sharded(torch.ones(3, 4))
    saves.written({"weight": teacher.weight}, "before.pt")
    model, records = Learner(), []
    saves.watch(model, records.append)
    learn(model)
    saves.written({"weight": teacher.weight, **taken(model)}, "after.pt")

    assert [seen.trained for seen in records] == [2]


def test_a_file_with_nothing_in_it_is_told(heard):
    """As where a filter over names keeps none."""
    model, records = heard
    learn(model)
    saves.written({}, "adapter.pt")

    assert [(seen.own, seen.tensors) for seen in records] == [(False, 0)]


def test_a_base_that_is_saved_within_its_adapters_is_told(heard):
    """save_pretrained writes the names that the layers have there; a checkpoint of the script's own may."""
    model, records = heard
    learn(model)
    state = {**taken(model), "layer.base_layer.weight": torch.zeros(3, 4)}
    saves.written(state, "checkpoint.pt")
    model.save_pretrained(state)

    assert [seen.wrapped for seen in records] == [0, 1]


class Adapters(torch.nn.Module):
    """Saves itself as peft's models do."""

    def save_pretrained(self, state):
        """As libraries have it."""
        saves.written(state)


def test_peft_may_write_the_base_of_an_adapted_embedding(heard, monkeypatch):
    """It reads these names."""
    model, records = heard
    learn(model)
    monkeypatch.setattr(Adapters, "__module__", "peft.peft_model")
    Adapters().save_pretrained({**taken(model), "layer.base_layer.weight": torch.zeros(3, 4)})

    assert [seen.wrapped for seen in records] == [0]
