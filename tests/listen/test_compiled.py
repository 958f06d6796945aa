"""Models in torch.compile: what is compiled hides its modules, and our own passes are none of its versions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from footprint import differences, of_patches
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.scripts.script import Script, judged
from tunecheck.listen.launch import rows_of
from tunecheck.listen.loop import LoopHooks
from tunecheck.listen.options import Options

STEPS, VOCABULARY = 5, 64


pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # dynamo's own look at an input


@pytest.fixture(autouse=True)
def dynamo(monkeypatch):
    """Have torch.compile compile, and forget what it has compiled."""
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "0")
    torch._dynamo.reset()
    with torch._dynamo.config.patch(disable=False):
        yield
    torch._dynamo.reset()


class Own(torch.nn.Module):
    """A language model of the script's own, which computes its loss itself."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(VOCABULARY, 16)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(16, 16)])
        self.head = torch.nn.Linear(16, VOCABULARY)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> Any:
        """Return scores and loss."""
        hidden = self.table(ids)
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        scores = self.head(hidden)
        return scores, cross_entropy(scores.flatten(0, 1), labels.flatten())


class OfOne(Own):
    """The same, which takes a batch as one dictionary."""

    def forward(self, batch: Any, labels: torch.Tensor | None = None) -> Any:
        """Return scores and loss."""
        return super().forward(batch["ids"], batch["labels"])


def llama() -> Any:
    """Make a model of transformers."""
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **size))


def in_place(model: Any, backend: Any) -> Any:
    """Have the model compile its own call."""
    model.compile(backend=backend)
    return model


def its_forward(model: Any, backend: Any) -> Any:
    """Put a compiled function in the place of its forward."""
    model.forward = torch.compile(model.forward, backend=backend)
    return model


def its_layers(model: Any, backend: Any) -> Any:
    """Compile a layer."""
    layers = getattr(model, "model", model).layers
    layers[0] = torch.compile(layers[0], backend=backend)
    return model


WAYS = {
    "whole": lambda model, backend: torch.compile(model, backend=backend, fullgraph=True),
    "in place": in_place,
    "forward": its_forward,
    "layers": its_layers,
}


def trained(make: Any, compiled: Any, ahead: int = 1) -> tuple[list[float], int]:
    """Train this model, more steps than are listened to; return the losses and how often it was compiled."""
    torch.manual_seed(0)
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model, losses = make(), []
    called = compiled(model, backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(STEPS + 2):
        rows = torch.randint(VOCABULARY, (4, 17))
        if make is llama:
            loss = called(input_ids=rows, labels=rows).loss
        elif make is OfOne:
            loss = called({"ids": rows[:, :-1].contiguous(), "labels": rows[:, 1:].contiguous()})[1]
        else:
            loss = called(rows[:, :-1].contiguous(), rows[:, ahead : 16 + ahead].contiguous())[1]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses, len(graphs)


def heard(folder: Any, *training: Any, **how: Any) -> tuple[Any, Any]:
    """Return what this training returns under watch, and its row."""
    options = Options(folder=str(folder), name="train", steps=STEPS)
    hooks = LoopHooks(options)
    hooks.attach()
    try:
        result = trained(*training, **how)
    finally:
        hooks.detach()
    (row,) = rows_of(folder, options, 0)
    return result, row


TRAININGS = [*((Own, way) for way in WAYS), (llama, "whole"), (llama, "forward"), (OfOne, "whole")]


@pytest.mark.parametrize(("make", "way"), TRAININGS, ids=lambda given: getattr(given, "__name__", given))
@pytest.mark.slow
def test_a_compiled_model_is_compiled_as_often_as_without_watch(make, way, tmp_path):
    """Each further version costs minutes on a GPU, and after eight of them torch runs the model uncompiled."""
    bare = trained(make, WAYS[way])
    torch._dynamo.reset()
    before = of_patches()
    seen, row = heard(tmp_path, make, WAYS[way])

    assert seen == bare
    assert seen[1]
    assert differences(before, of_patches()) == []
    assert row.outcome == "pass", [finding.detail for finding in (*row.failed, *row.unjudged)]
    passed = {finding.check for finding in row.findings if finding.passed}
    assert passed >= ({"loss_oracle", "labels_as_configured"} if make is llama else {"no_target_leakage"})


@pytest.mark.parametrize("way", ["whole", "in place"])
def test_a_compiled_model_that_copies_its_tokens_is_named(way, tmp_path):
    """In a pass of ours that is not compiled, since what is compiled has no graph of its scores."""
    _, row = heard(tmp_path, Own, WAYS[way], ahead=0)

    assert [finding.check for finding in row.failed] == ["no_target_leakage"]


@pytest.mark.slow
def test_a_model_that_a_trainer_compiles_hides_its_layers_calls(tmp_path):
    """A Trainer compiles what it calls, not the model that it was given."""
    row = judged(Script(steps=3, arguments={"torch_compile": True, "torch_compile_backend": "eager"}), tmp_path)
    unjudged = {finding.check: finding.detail for finding in row.unjudged}

    assert [finding.detail for finding in row.failed] == []
    assert unjudged["attention_as_configured"].startswith("torch.compile hides the modules")
