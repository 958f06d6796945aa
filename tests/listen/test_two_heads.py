"""A module of the script's own around a language model: our looks at that one are none of the training's. fp32."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from tunecheck.core import evidence as e
from tunecheck.core.finding import Status
from tunecheck.core.trace import read
from tunecheck.listen.hf_trainer import TrainerListener
from tunecheck.listen.options import Options
from tunecheck.results.rejudge import judged_again

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own
SIZES = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


class TwoHeads(torch.nn.Module):
    """Learns to go on, and a class of each row."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **SIZES))
        self.head = torch.nn.Linear(32, 3)

    def forward(self, input_ids, labels):
        """Return the sum of both losses."""
        out = self.model(input_ids=input_ids, labels=input_ids, output_hidden_states=True)
        return {"loss": out.loss + cross_entropy(self.head(out.hidden_states[-1][:, -1]), labels)}


def test_the_language_model_inside_is_looked_at_and_nothing_is_flagged(tmp_path):
    """It is called in eval mode with other tokens, which no hook of ours takes for the training's."""
    rows = [{"input_ids": torch.randint(0, 64, (8,)), "labels": number % 3} for number in range(40)]
    arguments = TrainingArguments(
        tmp_path / "out",
        per_device_train_batch_size=4,
        max_steps=5,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=TwoHeads(), args=arguments, train_dataset=rows)
    with TrainerListener(trainer, Options(folder=str(tmp_path), name="script", steps=5)):
        trainer.train()
    (path,) = tmp_path.glob("watch-*.jsonl")
    trace = read(path)

    assert sum(seen.asked_for_next for seen in trace.main.all(e.PositionGradients)) >= 1
    assert [f.check for f in judged_again(trace, [], trace_file=path.name).findings if f.status is Status.FAILED] == []
