"""A head that begins at 0 gives all rows the same scores: forward passes are told apart all the same. fp32."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from tunecheck.core import evidence as e
from tunecheck.core.finding import Status
from tunecheck.core.trace import read
from tunecheck.listen.hf_trainer import TrainerListener
from tunecheck.listen.options import Options
from tunecheck.results.rejudge import judged_again

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own
SIZES = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def trained(folder, *, leaks=False, heard=True):
    """The model after four steps, whose decoder may show each position the one behind it."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, tie_word_embeddings=False, **SIZES))
    torch.nn.init.zeros_(model.lm_head.weight)
    if leaks:
        model.model.norm.register_forward_hook(lambda _norm, _args, out: out + out.roll(-1, dims=1))
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 64, (40, 16))]
    arguments = TrainingArguments(
        folder / "out",
        per_device_train_batch_size=4,
        max_steps=4,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows)
    if not heard:
        trainer.train()
        return model
    with TrainerListener(trainer, Options(folder=str(folder), name="script", steps=4)):
        trainer.train()
    return model


@pytest.mark.parametrize("leaks", [False, True])
def test_a_head_of_zeros_hides_no_later_token(leaks, tmp_path):
    """The head is drawn for the look, and is 0 again when the training begins."""
    weights = trained(tmp_path, leaks=leaks).state_dict()
    alone = trained(tmp_path / "alone", leaks=leaks, heard=False).state_dict()
    (path,) = tmp_path.glob("watch-*.jsonl")
    trace = read(path)
    findings = judged_again(trace, [], trace_file=path.name).findings

    assert not trace.main.all(e.ProbeFailed)
    assert [seen.future_token_difference > 0.01 for seen in trace.main.all(e.ForwardPaths)] == [leaks]
    assert ("rows_isolated" in [f.check for f in findings if f.status is Status.FAILED]) is leaks
    assert all(torch.equal(weights[name], alone[name]) for name in weights)
