"""A training on a card that is not there: the CUDA branches, what the probes keep on the card, and what it reserves."""

from __future__ import annotations

import threading

import pytest
import torch
from fake_cuda import CUDA, MIB, Segments, fake_card
from rehearsing import failed, findings, rehearsed, slow
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

import tunecheck
from tunecheck.core.evidence import LiveTensors, Phase, ProbeFailed, Setup, Step
from tunecheck.core.finding import Status
from tunecheck.core.paths import shipped_folder
from tunecheck.core.premises import Premise
from tunecheck.core.trace import read
from tunecheck.listen.declared import described
from tunecheck.probes import gradients
from tunecheck.training import native

UNLIKE_A_CARD = {"memory_returned"}
"""bitsandbytes' and our code tables, 512 bytes each once rounded, may be 1 % of a model of 200 KB."""
NEEDS_A_CARD = {"hardware_healthy", "card_returns_to_baseline", "seconds_reported", "first_loss_below_uniform"}
"""Unjudged: NVML, the time of the card's own work; and the weights are random."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Six steps with all probes: neither five nor ten, at which what waits to be read happens to be equal."""
    with fake_card():
        return rehearsed(tmp_path_factory.mktemp("card"), "training.max_steps=6", gpu=True)


def test_a_healthy_run_on_a_card_passes(trained):
    """Losses and norms are read in groups there; nothing of that counts as a tensor that stays."""
    assert trained.main.finished, trained.main.end
    assert trained.all(Setup)[0].device == "cuda:0"
    assert [record for record in trained.main.all(ProbeFailed)] == []
    assert failed(trained, "training.max_steps=6") <= UNLIKE_A_CARD
    unjudged = {f.check for f in findings(trained, "training.max_steps=6") if f.status is Status.UNJUDGED}
    assert unjudged <= NEEDS_A_CARD
    assert [step.step for step in trained.all(Step)] == list(range(6))
    assert all(step.seconds > 0 and step.allocated_bytes for step in trained.all(Step))


def test_the_same_number_of_tensors_is_alive_at_every_step(trained):
    """Of the trainer's pending numbers and of the probes'."""
    assert len({record.tensors for record in trained.all(LiveTensors)}) == 1


def test_a_backward_pass_has_a_thread_of_its_own():
    """As autograd's for a card: what belongs to one thread is not there."""
    threads = []
    with fake_card():
        x = torch.ones(2, device=CUDA, requires_grad=True)
        x.register_hook(lambda _: threads.append(threading.get_ident()))
        x.sum().backward()

    assert threads
    assert threading.get_ident() not in threads


@pytest.fixture
def _process_as_before():
    """A deterministic run sets torch's process-wide modes, and one that offloads its weights begins a process group."""
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


BASE_LEARNS = ("lora=null", "quantization=null", "checks={}")
WAYS = {
    "trainer": ("trainer=transformers", "evaluation.batch_size=2", "training.precision=bf16"),
    "resume": ("probes.resume_from=2", "probes.repeat_steps=2", "probes.read_back=true", "probes.merge=true"),
    "activations": ("training.offload=activations",),
    "parameters": ("strategy=full", *BASE_LEARNS, "training.offload=parameters"),
}
FURTHER = {
    "lora": ("strategy=lora", "quantization=null"),
    "full": ("strategy=full", *BASE_LEARNS, "training.precision=bf16"),
    "lean": ("profile=lean",),
    "generate": ("probes.generate=true",),
    "dora": ("lora.use_dora=true",),
    "dropout": ("lora.dropout=0.1", "probes.resume_from=2", "probes.repeat_steps=2"),
    "freeze_lower": ("strategy=freeze_lower", *BASE_LEARNS),
    "memory_order": ("probes.memory_order=true",),
    "fp16": ("training.precision=fp16",),
    "deterministic trainer": ("trainer=transformers", "evaluation.batch_size=2", "training.deterministic=true"),
}


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
@pytest.mark.usefixtures("_process_as_before")
@pytest.mark.parametrize("way", [*WAYS, *(pytest.param(way, marks=slow) for way in FURTHER)])
def test_every_way_of_training_keeps_to_its_device(tmp_path, way):
    """What computes with tensors of card and host together, or asks for the wrong generator, raises."""
    settings = ["training.max_steps=5", *({**WAYS, **FURTHER}[way])]
    with fake_card():
        trace = rehearsed(tmp_path, *settings, gpu=True)

    assert [attempt.end.outcome for attempt in trace.attempts] == ["finished"] * len(trace.attempts)
    assert [record for attempt in trace.attempts for record in attempt.all(ProbeFailed)] == []
    assert failed(trace, *settings) <= UNLIKE_A_CARD


def test_a_card_without_bf16_trains_in_fp16(tmp_path):
    """By itself, with its gradients scaled; the checks hold it to the rounding of fp16."""
    settings = ["training.max_steps=5", "training.precision=auto"]
    with fake_card(capability=(7, 5)):
        trace = rehearsed(tmp_path, *settings, gpu=True)

    assert trace.main.finished, trace.main.end
    assert trace.one(Setup).precision == "fp16"
    assert failed(trace, *settings) <= UNLIKE_A_CARD


def test_a_loop_of_anothers_is_watched_on_the_card(tmp_path):
    """Rows of two lengths, padded: its batches, its modes and its random state stay where they are."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = shipped_folder() / "configs" / "models" / "tiny-llama"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    rows = ["one two three four five six seven", "the quick brown fox jumps over the lazy dog", "a b c d e f", "x y z"]
    with fake_card():
        model.to("cuda")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        with tunecheck.watch(model=model, optimizer=optimizer, tokenizer=tokenizer, folder=tmp_path) as watched:
            for step in range(10):
                batch = tokenizer(rows[step % 2 :: 2], return_tensors="pt", padding=True).to("cuda")
                labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
                model(**batch, labels=labels).loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()

    assert {f.check: f.detail for f in watched.findings if f.status is Status.FAILED} == {}
    assert len([f for f in watched.findings if f.passed]) > 20


class Moved(torch.autograd.Function):
    """To another device, and its gradient back."""

    @staticmethod
    def forward(ctx, x, device):
        """Copy it there."""
        ctx.back = x.device.type
        return x.to(device)

    @staticmethod
    def backward(ctx, gradient):
        """Copy it back."""
        return gradient.to(ctx.back), None


def on_device(module, device):
    """Have the module compute there, its inputs moved within its call, as accelerate does for a `device_map`."""
    own = module.to(device).forward

    def moved(value):
        if not isinstance(value, torch.Tensor) or value.device.type == device:
            return value
        return Moved.apply(value, device) if value.is_floating_point() else value.to(device)

    module.forward = lambda *args, **given: own(*tree_map(moved, args), **tree_map(moved, given))


@pytest.mark.parametrize("adapted", [True, False])
def test_a_model_on_two_devices_is_watched(tmp_path, adapted):
    """Host and card stand for two cards: what computes with tensors of both raises."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = shipped_folder() / "configs" / "models" / "tiny-llama"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.config.tie_word_embeddings = False
    rows = ["one two three four five six seven", "the quick brown fox jumps over the lazy dog", "a b c d e f", "x y z"]
    with fake_card():
        for part in (model.model.layers[-1], model.model.norm, model.lm_head):
            on_device(part, "cuda")
        if adapted:
            model = get_peft_model(
                model, LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "down_proj"])
            )
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        with tunecheck.watch(model=model, optimizer=optimizer, tokenizer=tokenizer, folder=tmp_path) as watched:
            for step in range(6):
                batch = tokenizer(rows[step % 2 :: 2], return_tensors="pt", padding=True)
                labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
                model(**batch, labels=labels.to("cuda")).loss.backward()
                optimizer.step()
                optimizer.zero_grad()

    (trace,) = tmp_path.rglob("watch-*.jsonl")
    assert [(record.probe, record.error) for record in read(trace).main.all(ProbeFailed)] == []
    assert {f.check for f in watched.findings if f.status is Status.FAILED} == {
        "device_as_configured"
    }  # a part was left
    assert len([f for f in watched.findings if f.passed]) > 20


class Spread(TorchFunctionMode):
    """Has tensors say that they lie on two cards, by the number of their dimensions."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Answer for a tensor's device."""
        if func == torch.Tensor.device.__get__:
            return torch.device("cuda", args[0].ndim % 2)
        return func(*args, **(kwargs or {}))


def test_a_model_on_several_cards_declares_no_device():
    """A `device_map` places it: none of its tensors was left behind."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(shipped_folder() / "configs" / "models" / "tiny-llama")
    with Spread():
        _, left_open = described(model)
    _, alone = described(model)

    assert left_open[Premise.DEVICE_DECLARED] == "the model lies on several GPUs"
    assert Premise.DEVICE_DECLARED not in alone


ROUNDINGS = {"dequantised": 1.65e-3, "tensor cores": 3.2e-3, "SIMT": 3.65e-3}
"""Relative error of bitsandbytes' 4-bit products in bf16 by their kernel, from a study of their sums."""


@pytest.mark.parametrize("kernel", ["SIMT", *(pytest.param(name, marks=slow) for name in list(ROUNDINGS)[:2])])
def test_the_rounding_of_a_cards_4_bit_kernels_is_healthy(tmp_path, monkeypatch, kernel):
    """Each number off by what follows from its own bits: the same for the same number in another batch."""
    import bitsandbytes

    forward, size = bitsandbytes.nn.Linear4bit.forward, ROUNDINGS[kernel] * 3**0.5

    def rounded(module, x):
        out = forward(module, x)
        bits = out.detach().float().view(torch.int32)
        share = ((bits * -1640531527) >> 8).float() / 2**23  # evenly between -1 and 1
        return out + (out.detach().float() * share * size).to(out.dtype)

    monkeypatch.setattr(bitsandbytes.nn.Linear4bit, "forward", rounded)
    settings = ["training.max_steps=5", "training.precision=bf16"]

    assert failed(rehearsed(tmp_path, *settings), *settings) == set()


@pytest.mark.usefixtures("_process_as_before")
def test_a_deterministic_run_in_16_bit_uses_no_kernel_that_a_card_lacks(tmp_path):
    """In bf16 more is compared than in fp32."""
    settings = ["training.max_steps=3", "training.deterministic=true", "training.precision=bf16"]
    with fake_card():
        trace = rehearsed(tmp_path, *settings, gpu=True)

    assert trace.main.all(ProbeFailed) == []
    assert failed(trace, *settings) <= UNLIKE_A_CARD


def test_a_model_that_is_recomputed_whole_is_watched(tmp_path):
    """On a card that happens in a thread of autograd's own, which is none of the script's."""
    torch.manual_seed(0)
    with fake_card():
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 3)).to("cuda")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        with tunecheck.watch(model=model, optimizer=optimizer, folder=tmp_path) as watched:
            for _ in range(4):
                out = torch.utils.checkpoint.checkpoint(model, torch.randn(6, 4).to("cuda"), use_reentrant=False)
                torch.nn.functional.cross_entropy(out, torch.tensor([0, 1, 2, 0, 1, 2]).to("cuda")).backward()
                optimizer.step()
                optimizer.zero_grad()

    assert {f.check for f in watched.findings if f.status is Status.FAILED} == set()
    assert len([f for f in watched.findings if f.passed]) > 5


@slow
@pytest.mark.parametrize("steps", [5, 8, 9, 11, 20])
def test_no_number_of_steps_looks_like_a_leak(tmp_path, steps):
    """Whatever waits to be read at the first sample and at the last."""
    with fake_card():
        trace = rehearsed(tmp_path, f"training.max_steps={steps}", gpu=True)

    assert failed(trace, f"training.max_steps={steps}") <= UNLIKE_A_CARD


def test_a_tensor_for_each_waiting_step_looks_like_a_leak(tmp_path, monkeypatch):
    """What this rehearsal found: norms that wait on the card one by one."""
    read, kept = gradients.GradientProbe.backward_end, []

    def backward_end(self, session, step):
        read(self, session, step)
        kept.append(torch.zeros((), device=CUDA))

    monkeypatch.setattr(gradients.GradientProbe, "backward_end", backward_end)
    with fake_card():
        trace = rehearsed(tmp_path, "training.max_steps=6", gpu=True)

    assert "live_tensors_flat" in failed(trace, "training.max_steps=6")


@pytest.mark.slow
def test_probes_keep_nothing_on_the_card_while_the_training_works(tmp_path, monkeypatch):
    """Where all weights learn, a copy of them or of their gradients would be 10 % of a step's peak.

    4 % are measured: the fake card is in host memory, so that what probes keep there counts as the card's: samples of
    the logits and of their gradient above all (4 MiB at most).
    """
    settings = ["strategy=full", "lora=null", "quantization=null", "training.max_steps=6", "checks={}"]
    with fake_card():
        probed = rehearsed(tmp_path / "probed", *settings, gpu=True)
    monkeypatch.setattr("tunecheck.probes.PROBES", ())
    with fake_card():
        bare = rehearsed(tmp_path / "bare", *settings, gpu=True)

    assert probed.main.finished, probed.main.end
    assert bare.main.finished, bare.main.end
    for name in ("first step", "steady"):
        with_them, alone = (max(p.peak_allocated_bytes for p in t.all(Phase) if p.name == name) for t in (probed, bare))
        assert with_them - alone <= 0.06 * alone, f"{name}: {with_them:,} bytes, without probes {alone:,}"


def test_pending_numbers_are_those_of_their_steps():
    """Read in a group, in order, at full fp32 precision."""
    logged = []
    with fake_card():
        pending = native.PendingSteps(type("Session", (), {"device": CUDA})(), logged.append)
        for step in range(12):
            pending.start()
            pending.pause()
            pending.resume()
            pending.finish(
                step=step,
                loss=torch.tensor(1 / (step + 3)),
                gradient_norm=torch.tensor(step / 7),
                learning_rate=0.1,
                supervised_tokens=1,
                tokens=2,
                applied=True,
            )
        assert len(logged) == 10
        pending.flush()

    assert [step.loss for step in logged] == [float(torch.tensor(1 / (step + 3))) for step in range(12)]
    assert [step.gradient_norm for step in logged] == [float(torch.tensor(step / 7)) for step in range(12)]


def test_segments_are_those_of_the_caching_allocator():
    """2 MiB for small tensors, 20 MiB for those below 10 MiB, multiples of 2 MiB above; freed blocks are used again."""
    segments = Segments()
    small = segments.take(512)
    assert segments.reserved_bytes == 2 * MIB
    segments.take(3 * MIB)
    assert segments.reserved_bytes == 22 * MIB
    large = segments.take(11 * MIB + 1)
    assert segments.reserved_bytes == 22 * MIB  # 17 of the 20 MiB are left and serve it
    segments.take(9 * MIB)
    assert segments.reserved_bytes == 42 * MIB
    segments.take(41 * MIB)
    assert segments.reserved_bytes == 84 * MIB
    segments.give(large)
    segments.give(small)
    segments.take(11 * MIB)
    assert segments.reserved_bytes == 84 * MIB
