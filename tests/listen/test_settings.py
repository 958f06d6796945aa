"""Settings far out of what recipes use, as a training's own objects have them. Trainings on a CPU."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from benchmarks.scripts.script import MODEL
from tunecheck.checks import CHECKS
from tunecheck.checks.habits import USUAL
from tunecheck.core.finding import Status
from tunecheck.core.trace import read
from tunecheck.listen.hf_trainer import TrainerListener
from tunecheck.listen.loop import LoopHooks
from tunecheck.listen.options import Options
from tunecheck.listen.settings import settings_of

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own


def judged(folder):
    """The finding about the settings of the training that was heard in this folder."""
    (path,) = folder.glob("watch-*.jsonl")
    return CHECKS["settings_usual"]()(read(path))


def lora(**settings):
    """A small pretrained model with adapters."""
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"], **settings))


@pytest.mark.parametrize(
    ("adapters", "arguments", "asked"),
    [
        ({}, {}, ""),
        ({"r": 8, "lora_alpha": 16, "lora_dropout": 0.1}, {"label_smoothing_factor": 0.1, "weight_decay": 0.1}, ""),
        ({"r": 256, "lora_alpha": 512, "use_rslora": True}, {}, ""),
        ({"r": 1, "lora_alpha": 32, "use_dora": True}, {}, ""),
        ({}, {"optim": "adafactor", "learning_rate": 1.0}, ""),
        ({}, {"optim": "sgd", "learning_rate": 1.0}, ""),
        ({"r": 8, "lora_alpha": 1600}, {}, "lora_alpha / r is 200,"),
        ({"lora_dropout": 0.95}, {}, "Dropout.p is 0.95,"),
        ({}, {"learning_rate": 1.0}, "AdamW's rate for pretrained weights is 1,"),
        ({}, {"learning_rate": 0.2, "warmup_steps": 2}, "AdamW's rate for pretrained weights is 0.2,"),
        ({}, {"adam_beta1": 0.999, "adam_beta2": 0.9}, "AdamW's beta1 is 0.999,"),
        ({}, {"weight_decay": 10.0}, "AdamW's weight_decay is 10,"),
        ({}, {"label_smoothing_factor": 0.9}, "TrainingArguments.label_smoothing_factor is 0.9,"),
        ({}, {"adam_epsilon": 1.0}, "AdamW's eps is 1,"),
    ],
)
def test_a_trainer_is_asked_about_settings_far_out(adapters, arguments, asked, tmp_path):
    """With the number and what is usual."""
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(1, 250, (16, 9))]
    given = {"report_to": "none", "save_strategy": "no", "use_cpu": True, "disable_tqdm": True} | arguments
    made = TrainingArguments(tmp_path / "out", per_device_train_batch_size=4, max_steps=4, **given)
    trainer = Trainer(model=lora(**adapters), args=made, train_dataset=rows)
    with TrainerListener(trainer, Options(folder=str(tmp_path), name="script", steps=2)):
        trainer.train()
    finding = judged(tmp_path)

    assert finding.status is (Status.SUSPECTED if asked else Status.PASSED), finding.detail
    assert asked in finding.detail
    assert finding.detail.count("usually") == bool(asked)


class Net(nn.Module):
    """Two layers, and a distance whose p is no share."""

    def __init__(self, dropout):
        super().__init__()
        self.body, self.drop, self.head = nn.Linear(8, 32), nn.Dropout(dropout), nn.Linear(32, 3)
        self.distance = nn.PairwiseDistance(p=2.0)

    def forward(self, x):
        """Return scores."""
        return self.head(self.drop(torch.relu(self.body(x))))


@pytest.mark.parametrize(
    ("dropout", "smoothing", "optimizer", "asked"),
    [
        (0.5, 0.1, lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9, weight_decay=5e-4), ""),
        (0.1, 0.0, lambda p: torch.optim.Adam(p, lr=1.0, betas=(0.0, 0.9)), ""),
        (0.9, 0.0, lambda p: torch.optim.Adam(p, lr=1e-3), "Dropout.p is 0.9,"),
        (0.1, 0.9, lambda p: torch.optim.Adam(p, lr=1e-3), "CrossEntropyLoss.label_smoothing is 0.9,"),
        (0.1, 0.0, lambda p: torch.optim.Adam(p, betas=(0.9, 0.09)), "Adam's beta2 is 0.09,"),
        (0.1, 0.0, lambda p: torch.optim.SGD(p, lr=0.1, momentum=1.0), "SGD's momentum is 1,"),
    ],
)
def test_a_loop_is_asked_about_settings_far_out(dropout, smoothing, optimizer, asked, tmp_path):
    """A rate of 1 may be meant for a small net that is drawn at random."""
    model, loss = Net(dropout), nn.CrossEntropyLoss(label_smoothing=smoothing)
    optimizer, hooks = optimizer(model.parameters()), LoopHooks(Options(folder=str(tmp_path), name="script", steps=2))
    hooks.attach()
    for _ in range(2):
        loss(model(torch.randn(6, 8)), torch.arange(6) % 3).backward()
        optimizer.step()
        optimizer.zero_grad()
    hooks.detach()
    finding = judged(tmp_path)

    assert finding.status is (Status.SUSPECTED if asked else Status.PASSED), finding.detail
    assert asked in finding.detail


def config(**settings):
    """Arguments of a preference training, of a class that derives from one of TRL's."""
    base = type("DPOConfig", (), {"__module__": "trl.trainer.dpo_config"})
    return type("Own", (base,), {"loss_type": ["sigmoid"], **settings})()


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (config(beta=10.0), "preference_beta"),
        (config(beta=10.0, loss_type="simpo"), "simpo_beta"),
        (type("Own", (), {"beta": 10.0})(), None),
        (config(), None),
    ],
    ids=["dpo", "simpo", "another's", "none"],
)
def test_a_beta_is_that_of_its_loss(arguments, kind):
    """SimPO's are larger; those of other libraries may mean anything."""
    settings = settings_of(nn.Linear(2, 2), [], arguments).settings
    assert [setting.kind for setting in settings] == ([kind] if kind else [])


def test_a_schedules_factor_is_no_rate(tmp_path):
    """As in the first Transformer's: a base rate of 1, of which the first step takes a thousandth."""
    optimizer = torch.optim.Adam((model := lora()).parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1e-3 * (step + 1))
    rates = [s.value for s in settings_of(model, [schedule.optimizer]).settings if s.kind == "adam_rate"]

    assert rates == [1e-3]


@pytest.mark.parametrize(
    ("rates", "ratio"),
    [
        pytest.param([0.1, 0.2, 0.4, 0.8], 0.125, id="lower layers slower"),
        pytest.param([0.8, 0.4, 0.2, 0.1], 8.0, id="reversed"),
        pytest.param([0.8, 0.4, 0.8, 0.1], None, id="up and down"),
        pytest.param([0.8, 0.8, 0.1, 0.1], None, id="two parts"),
        pytest.param([0.1, 0.1, 0.1, 0.1], None, id="one rate"),
    ],
)
@pytest.mark.parametrize("key", ["lr", "lr_scale"])
def test_rates_that_fall_with_depth_are_asked_about(key, rates, ratio):
    """As where a decay by layer is applied from the wrong end."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in rates))
    groups = [{"params": layer.parameters(), key: rate} for layer, rate in zip(model, rates, strict=True)]
    seen = settings_of(model, [torch.optim.SGD(groups, lr=1.0)])
    found = [setting for setting in seen.settings if setting.kind == "rates_by_depth"]

    assert [setting.value for setting in found] == ([] if ratio is None else [pytest.approx(ratio)])
    assert all((setting.value > USUAL[setting.kind][1]) is (setting.value > 1) for setting in found)


@pytest.mark.parametrize(
    ("left_out", "decay"),
    [
        (("bias",), 0.1),
        (("bias", "LayerNorm.weight"), 0.1),
        (("bias", "norm.weight"), 0.0),
        (("bias", "first_norm.weight"), 0.0),
        ((), None),
        (("norm",), None),
    ],
    ids=["biases alone", "names of another model", "both", "one norm", "nothing", "norms alone"],
)
def test_norms_that_decay_without_biases_are_asked_about(left_out, decay):
    """As where a list of names is that of another model."""
    model = nn.ModuleDict({"first": nn.Linear(4, 4), "first_norm": nn.LayerNorm(4), "last_norm": nn.LayerNorm(4)})
    apart = {name: any(part in name for part in left_out) for name, _ in model.named_parameters()}
    groups = [
        {"params": [p for name, p in model.named_parameters() if apart[name] is kept], "weight_decay": 0.1 * (not kept)}
        for kept in (True, False)
    ]
    seen = settings_of(model, [torch.optim.AdamW(groups)])

    assert [setting.value for setting in seen.settings if setting.kind == "norm_decay"] == (
        [] if decay is None else [decay]
    )
