"""The history's key of a watched training: what was declared, so that another configuration is never a regression."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tunecheck
from tunecheck.cli import main
from tunecheck.core.trace import read
from tunecheck.history.store import history_entry
from tunecheck.listen import listener

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own
SIZE = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32}


def watched(folder, *, rank=8, rate=3e-4, rows=2, kind=torch.optim.AdamW, seed=0, **settings):
    """Three steps of a small model with adapters, listened to: the trace's file, and its entry."""
    from peft import LoraConfig, get_peft_model

    listener._trainings = 0  # each is the first one of a process, and so called the same
    torch.manual_seed(seed)
    base = LlamaForCausalLM(LlamaConfig(**SIZE, num_attention_heads=2, num_key_value_heads=2))
    model = get_peft_model(base, LoraConfig(r=rank, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    optimizer = kind([p for p in model.parameters() if p.requires_grad], lr=rate, **settings)
    ids = torch.randint(3, 64, (rows, 12))
    with tunecheck.watch(model=model, optimizer=optimizer, steps=3, folder=folder, tell=False) as seen:
        for _ in range(3):
            model(input_ids=ids, labels=ids, attention_mask=torch.ones_like(ids)).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    (row,) = seen.report.runs
    path = folder / row.trace_file
    return path, history_entry(row, read(path), session=folder.name, started_at="2026-11-24T02:00:00+00:00")


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The training that the others are compared with."""
    return watched(tmp_path_factory.mktemp("first"))


def test_the_same_training_has_the_same_key_and_its_loss_is_kept(first, tmp_path):
    """Its seed is not declared by a loop."""
    path, entry = watched(tmp_path, seed=1)

    assert entry.key == first[1].key
    assert len(entry.key.fingerprint) == 16
    losses = [step.loss for step in read(path).steps]
    assert entry.figures["training_loss"] == pytest.approx(sum(losses[1:]) / 2)


@pytest.mark.parametrize(
    "change",
    [{"rank": 64}, {"rate": 3e-7}, {"kind": torch.optim.SGD}, {"weight_decay": 0.5}, {"kind": torch.optim.Adam}],
    ids=str,
)
def test_another_declaration_is_another_key(first, tmp_path, change, capsys):
    """And `compare` calls none of them a regression."""
    path, _ = watched(tmp_path, **change)

    main(["compare", str(first[0]), str(path), "--json"])
    (compared,) = json.loads(capsys.readouterr().out)
    assert "they trained different things" in compared["incomparable"]
    assert compared["differences"] == []
