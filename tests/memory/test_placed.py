"""Predictions for the offloading rungs: against FSDP2 itself, real tensors and arithmetic, on the CPU."""

from __future__ import annotations

import warnings
from math import prod

import pytest
import torch
from simulations import CHECKPOINTING, FULL, rotary_frequencies, run_with, simulated
from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group

from tunecheck.memory import simulate as simulation
from tunecheck.memory.live import ELSEWHERE, LiveStorages
from tunecheck.models.layer_names import layer_of
from tunecheck.models.shapes import tensor_shapes
from tunecheck.training import native
from tunecheck.training.placement import offload_parameters

PARAMETERS, ACTIVATIONS = "training.offload=parameters", "training.offload=activations"
LEAN = ["profile=lean", "training.precision=bf16"]
SETTINGS = {
    "as asked": FULL,
    "lean": [*FULL, *LEAN],
    "frozen below": ["strategy=freeze_lower", *FULL[1:]],
    "a frozen table": ["strategy=freeze_embeddings", *FULL[1:]],
}


@pytest.fixture(autouse=True)
def _quiet_libraries():
    """peft looks at a name that transformers deprecates, here as in a training."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*", category=FutureWarning)
        yield


class Watched(LiveStorages):
    """Counts what FSDP2 gathers and frees: it empties storages and fills them again, which no operation tells."""

    def _count(self, tensor):
        if not hasattr(tensor, "to_local"):  # a DTensor has no storage of its own
            super()._count(tensor)

    def freed(self, tensor):
        """The storage was emptied."""
        self.hold([tensor], ELSEWHERE)

    def filled(self, tensor):
        """The storage has its size again."""
        key = tensor.untyped_storage()._cdata
        if self._storages.get(key, (0, ""))[1] == ELSEWHERE:
            del self._storages[key]
            self._count(tensor)


def of_fsdp(run, monkeypatch):
    """Peaks of two real steps by FSDP2, whose sharded parameters, gradients and optimizer count nothing."""
    session = simulation.build(run)
    offload_parameters(session.model, torch.device("cpu"))
    live = Watched(1)
    for name, told in (("free_storage", live.freed), ("alloc_storage", live.filled)):
        for module in (_fsdp_param, _fsdp_param_group):
            if (real := getattr(module, name, None)) is not None:
                monkeypatch.setattr(module, name, lambda t, real=real, told=told: (real(t), told(t)))
    parameters = list(session.model.parameters())
    live.hold(session.model.buffers(), "other_weights")
    live.hold((parameter.to_local() for parameter in parameters), ELSEWHERE)
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in trainable:
        parameter.register_post_accumulate_grad_hook(lambda trained: live.hold([trained.grad.to_local()], ELSEWHERE))
    session.optimizer = native.make_optimizer(trainable, run.training, torch.device("cpu"))
    peaks = []
    with live:
        batch = simulation._batch(run.training.micro_batch_size, run)
        for _ in range(2):
            live.start_phase()
            native.forward(session, batch, batch.supervised_tokens).backward()
            peaks.append(live.peak_bytes)
            with live.elsewhere():
                native.clip_gradients(trainable, run.training.max_grad_norm)
                session.optimizer.step()
                session.optimizer.zero_grad(set_to_none=True)
    return peaks


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_stand_in_holds_what_fsdp2_holds(settings, monkeypatch):
    """To the byte, but for the copies to and from a card that a CPU does not make; they are no peak here."""
    run = run_with(*settings, PARAMETERS)
    expected = simulated(*settings, PARAMETERS, rounding_bytes=1)

    assert of_fsdp(run, monkeypatch)[1] == expected.steady_bytes


def test_copies_to_the_card_are_counted_beside_what_is_used():
    """Gathering goes parameter by parameter: the copy that arrived is there with the one that is used."""
    live, used = LiveStorages(1), [torch.nn.Parameter(torch.zeros(size)) for size in (1000, 10)]
    stand_in = simulation.Offloaded.__new__(simulation.Offloaded)
    stand_in._live = live

    with live:
        stand_in._gather(group := simulation._Group(used))

    assert live.by_kind() == {"gathered": 4 * 1010}
    assert live.peak_bytes == 4 * (1000 + 1000 + 10)  # the next one arrives while the one before is still there
    assert len(group.gathered) == 2


@pytest.mark.parametrize("settings", [FULL, [*FULL, *LEAN], ["strategy=freeze_lower", *FULL[1:]]])
def test_nothing_that_is_trained_stays_on_the_card(settings):
    """Between steps only buffers; at the peak the table and the last norm, which no layer owns, and a layer or none."""
    seen = simulated(*settings, PARAMETERS, rounding_bytes=1)
    run = run_with(*settings)
    sizes = {name: 4 * prod(shape) for name, shape in tensor_shapes(run.model.architecture).items()}
    rest = sum(size for name, size in sizes.items() if layer_of(name) is None)
    layer = sum(size for name, size in sizes.items() if layer_of(name) == 0)

    assert set(seen.between_steps) == {"other_weights"}
    assert seen.between_steps["other_weights"] == 2 * 4 * rotary_frequencies(run.model.architecture)
    assert seen.at_peak.get("gathered", 0) in (0, rest, layer, rest + layer)


def test_activations_on_the_cpu_are_not_on_the_card():
    """With a checkpoint in each of 8 layers that is what they were given, of which a layer in use needs its own."""
    deep = (CHECKPOINTING, "model.architecture.num_hidden_layers=8")
    run = run_with(*deep)
    there, elsewhere = (
        simulation.simulate(run_with(*deep, *more), rounding_bytes=1, fake=False) for more in ((), (ACTIVATIONS,))
    )
    given_bytes = 4 * run.training.micro_batch_size * run.data.max_length * run.model.architecture.hidden_size

    assert 4 * given_bytes < there.steady_bytes - elsewhere.steady_bytes < 8 * given_bytes
    assert elsewhere.between_steps == there.between_steps


@pytest.mark.parametrize("settings", [(), tuple(LEAN)], ids=["plain", "lean"])
def test_fake_copies_live_as_real_ones_do(settings):
    """Every number, to the byte."""
    real = simulation.simulate(run_with(*settings, ACTIVATIONS), rounding_bytes=1, fake=False)

    assert real == simulated(*settings, ACTIVATIONS, rounding_bytes=1)
