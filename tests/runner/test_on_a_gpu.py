"""What only a training on a GPU meets, with fakes at its edges: no GPU was there."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch
from tiny_runs import run_with

from tunecheck import assets as models
from tunecheck.probes import evaluation
from tunecheck.probes.reference import measures
from tunecheck.runner import Runner, child
from tunecheck.training import native


def built(*settings):
    """A session of the tiny model on the CPU."""
    run = run_with(*settings)
    found = models.resolve(run.model, allow_random=True)
    return native.build(run, found.path, torch.device("cpu"))


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"), torch.OutOfMemoryError, "20.00"),
        (RuntimeError("CUDA error: out of memory"), RuntimeError, "CUDA error: out of memory"),
        (ValueError("an odd shape"), ValueError, "an odd shape"),
    ],
    ids=["allocator", "driver", "another error"],
)
def test_an_error_while_weights_are_packed_is_told_as_that(monkeypatch, error, kind, words):
    """transformers raises another error for one in its conversions; the fallback must see the out-of-memory error."""
    from transformers.integrations.bitsandbytes import Bnb4bitQuantize

    def fails(*_, **__):
        raise error

    monkeypatch.setattr(Bnb4bitQuantize, "convert", fails)

    with pytest.raises(kind, match=words):
        built()


def test_where_there_is_a_gpu_a_child_imports_all_for_itself(tmp_path):
    """Spawned, not forked, since an import may begin CUDA; an attempt on the CPU is shown no card there."""
    run = run_with("device=cpu", "training.max_steps=2", "probes.oracle_steps=[]")
    run = run.model_copy(update={"deadline": 300.0})

    trace = Runner(folder=tmp_path, environment={}, gpu=True, faults=(tells_its_cards,)).execute(run)

    assert trace.main.end.outcome == "finished", trace.main.end
    assert "CUDA_VISIBLE_DEVICES is ''" in next(tmp_path.glob("*.log")).read_text()


def tells_its_cards(session):
    """Into the child's log, from inside the child."""
    print(f"CUDA_VISIBLE_DEVICES is {os.environ.get('CUDA_VISIBLE_DEVICES')!r}", flush=True)


def test_large_tensors_are_looked_at_in_parts(monkeypatch):
    """The same sums and norm in any parts: a whole copy in 64 bit could be what does not fit."""
    data = torch.randn(1001, generator=torch.Generator().manual_seed(0))
    bytes_of_it = data.view(torch.uint8)
    whole = measures.word_sums(bytes_of_it), measures.norm(data)

    monkeypatch.setattr(measures, "PART", 64)

    assert measures.word_sums(bytes_of_it) == whole[0]
    assert measures.norm(data) == pytest.approx(whole[1], rel=1e-12)
    assert whole[1] == pytest.approx(float(data.double().norm()), rel=1e-12)


@pytest.mark.parametrize(("device", "cleared"), [("cuda", 1), ("cpu", 0)])
def test_workspaces_of_cublas_are_no_tensors_that_stay(monkeypatch, device, cleared):
    """They come from the same allocator and outlive the session: on a small model a third of what it held."""
    calls = []
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: calls.append(1), raising=False)

    child._let_go(SimpleNamespace(type=device))

    assert len(calls) == cleared


def test_untrained_logits_in_16_bit_tie_and_are_greedy_all_the_same():
    """A tie that falls the other way counts as the largest; a token that is no tie does not."""
    session = built("training.precision=bf16", "probes.prompts=[Rust is]")
    question = evaluation._questions(session)[-1]

    seen = evaluation._answer(session, question, "start")
    session.model.generation_config.repetition_penalty = 5.0
    punished = evaluation._answer(session, question, "start")

    assert seen.greedy_agreement == 1.0
    assert punished.greedy_agreement < 0.9
