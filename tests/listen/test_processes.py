"""Scripts under torchrun, in two processes each, as the command listens to them. CPU, gloo, fp32."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tunecheck.core.paths import project_folder

NET = """
import random, sys, torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
distributed.init_process_group("gloo")
rank, wrong = distributed.get_rank(), "wrong" in sys.argv
torch.manual_seed(0)
rows = [(torch.randn(8), number % 4) for number in range(47)]
if wrong:
    random.Random(rank).shuffle(rows)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
sampler = DistributedSampler(rows)
loader = DataLoader(rows, batch_size=4, sampler=sampler)
for epoch in range(3):
    if not wrong:
        sampler.set_epoch(epoch)
    for inputs, labels in loader:
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
if wrong or rank == 0:
    torch.save(model.module.state_dict(), "model.pt")
distributed.destroy_process_group()
"""
LOOP = """
import sys, torch, transformers
from torch import distributed
distributed.init_process_group("gloo")
config = transformers.LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                                  num_attention_heads=2, pad_token_id=0)
torch.manual_seed(0)
model = transformers.LlamaForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for ids in torch.randint(1, 50, (4, 2, 3, 9))[:, distributed.get_rank()]:
    model(input_ids=ids, labels=ids).loss.backward()
    for parameter in model.parameters():
        distributed.all_reduce(parameter.grad)
        parameter.grad /= 1 if "wrong" in sys.argv else 2
    optimizer.step()
    optimizer.zero_grad()
distributed.destroy_process_group()
"""


def judged(folder, script, *words, options=()):
    """Return the findings by their checks, and the command's status, of a script in two processes."""
    (folder / "train.py").write_text(script)
    watch = [sys.executable, "-m", "tunecheck.cli", "watch", *options, "--", sys.executable, "-m"]
    command = [*watch, "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py", *words]
    environment = {**os.environ, "PYTHONPATH": str(project_folder() / "suite"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    (verdict,) = folder.glob("reports/runs/*/verdict.json")
    (run,) = json.loads(verdict.read_text())["runs"]
    return {finding["check"]: finding for finding in run["findings"]}, done.returncode


@pytest.mark.parametrize(("words", "status"), [((), "passed"), (("wrong",), "failed")], ids=["healthy", "wrong"])
@pytest.mark.slow
def test_a_network_in_two_processes(tmp_path, words, status):
    """Rows shuffled by each rank before they are shared out, no set_epoch, a file that both ranks write."""
    found, ended = judged(tmp_path, NET, *words)

    assert {name: found[name]["status"] for name in ("rows_trained_once", "saved_by_one_rank", "epochs_shuffled")} == {
        "rows_trained_once": status,
        "saved_by_one_rank": status,
        "epochs_shuffled": "suspected" if words else "passed",
    }
    lost = {name: one["detail"] for name, one in found.items() if one["status"] == "unjudged" and not one["expected"]}
    assert ended == (1 if words else 0), lost


@pytest.mark.parametrize(("words", "status"), [((), "passed"), (("wrong",), "suspected")], ids=["mean", "sum"])
@pytest.mark.slow
def test_gradients_that_a_loop_exchanges_itself(tmp_path, words, status):
    """Against those of each rank's own rows; the expectation of the loss is judged by them."""
    found, ended = judged(tmp_path, LOOP, *words, options=["--expect", "loss=token_mean"])

    assert found["gradients_averaged"]["status"] == status
    assert found["loss_oracle"]["expected"]
    assert ended == 0
    if words:
        assert found["gradients_averaged"]["detail"].endswith("2.00 times, and the step has 2 processes")
