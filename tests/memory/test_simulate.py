"""The simulation against real tensors and against the CPU allocator's own count."""

from __future__ import annotations

import dataclasses
import warnings

import pytest
import torch
from simulations import CHECKPOINTING, FULL, rotary_frequencies, run_with, simulated
from torch.profiler import ProfilerActivity, profile

from tunecheck.memory import simulate as simulation
from tunecheck.memory.live import ACTIVATIONS, CUDA_ROUNDING_BYTES, LiveStorages, block_remainder, scratch_bytes
from tunecheck.memory.prediction import static_bytes

LORA = ["strategy=lora", "quantization=null"]
VARIANTS = {
    "qlora": [],
    "lora": LORA,
    "full": FULL,
    "checkpointing": [CHECKPOINTING],
    "one row": ["training.micro_batch_size=1"],
    "eager": ["training.attention=eager"],
    "bf16": ["training.precision=bf16"],
    "lean": ["profile=lean", "training.precision=bf16"],
    "16-bit adapters": ["lora.adapter_dtype=model", "training.precision=bf16"],
    "one level": ["quantization.double_quant=false"],
    "dora": ["lora.use_dora=true"],
    "lean dora": ["lora.use_dora=true", "profile=lean", "training.precision=bf16"],
    "freeze_lower": ["strategy=freeze_lower", *FULL[1:]],
    "full in bf16": [*FULL, "training.precision=bf16"],
}
SCALARS_BYTES = 128
"""Numbers that autograd makes below the dispatcher: the first gradient of a scalar loss, and the like."""
GENERATOR_STATE_BYTES = 5056
"""Checkpointing keeps the CPU generator's state for each layer: in the host's memory, on a card too."""


@pytest.fixture(autouse=True)
def _quiet_libraries():
    """peft looks at a name that transformers deprecates, here as in a training."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*", category=FutureWarning)
        yield


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.slow
def test_fake_tensors_live_as_real_ones_do(settings):
    """Every number of the simulation, to the byte, with weights and arithmetic on the CPU."""
    real = simulation.simulate(run_with(*settings), rounding_bytes=1, fake=False)

    assert real == simulated(*settings, rounding_bytes=1)


@pytest.mark.parametrize(
    ("settings", "unseen_bytes"),
    [
        (LORA, 0),
        ([*LORA, CHECKPOINTING], 2 * GENERATOR_STATE_BYTES),
        ([*LORA, "training.precision=bf16"], 0),
        (FULL, 0),
    ],
    ids=["lora", "checkpointing", "bf16", "full"],
)
def test_the_peak_is_that_of_the_real_allocator(settings, unseen_bytes):
    """torch's own CPU allocator, watched by its profiler, reaches the simulated peaks in both steps.

    Eager attention, since the fused kernel of the CPU takes scratch memory that a card's does not.
    """
    settings = [*settings, "training.gradient_accumulation_steps=1", "training.attention=eager"]
    expected = simulated(*settings, rounding_bytes=1)

    first, steady = allocated_peaks(run_with(*settings))

    assert first - unseen_bytes == pytest.approx(expected.first_step_bytes, abs=SCALARS_BYTES)
    assert steady - unseen_bytes == pytest.approx(expected.steady_bytes, abs=SCALARS_BYTES)


def allocated_peaks(run):
    """Peaks of the CPU allocator in two real steps."""
    marker_bytes = 4 * 7777
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        session = simulation.build(run)
        batch = simulation._batch(run.training.micro_batch_size, run)
        for _ in range(2):
            torch.empty(7777)
            simulation._step(session, LiveStorages(), batch, keep_gradients=False)
        del session, batch
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    marks = [place for place, change in enumerate(changes) if change == marker_bytes]
    totals = [sum(changes[: place + 1]) for place in range(len(changes))]
    return max(totals[marks[0] + 1 : marks[1]]), max(totals[marks[1] + 1 :])


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_what_stays_is_what_arithmetic_says(settings):
    """Between two steps, unrounded: the exact static bytes by kind, and two buffers of rotary frequencies."""
    run = run_with(*settings)
    static = dataclasses.asdict(static_bytes(run))
    rotary_bytes = 2 * 4 * rotary_frequencies(run.model.architecture)

    expected = {**static, "other_weights": static["other_weights"] + rotary_bytes, "gradients": 0}
    found = simulated(*settings, rounding_bytes=1).between_steps
    assert found == {kind: size for kind, size in expected.items() if size}


def test_lean_needs_less_than_plain():
    """And each of its settings by itself, in the order that one expects."""
    peaks = {name: simulated(*settings, rounding_bytes=1).steady_bytes for name, settings in VARIANTS.items()}

    assert peaks["lean"] < peaks["bf16"] < peaks["qlora"] < peaks["lora"] < peaks["full"]
    assert peaks["checkpointing"] < peaks["qlora"]
    assert peaks["one row"] < peaks["qlora"]


def test_gradients_of_a_window_stay_until_its_end():
    """A later micro-batch finds those of the one before."""
    alone, window = (simulated(f"training.gradient_accumulation_steps={count}", rounding_bytes=1) for count in (1, 2))

    gradients = static_bytes(run_with()).gradients
    assert window.steady_bytes - alone.steady_bytes == gradients
    assert window.at_peak["gradients"] == gradients


def test_a_storage_counts_once_rounded_and_until_it_dies():
    """Views share it; kinds are told apart; the peak stays when it is gone."""
    with LiveStorages() as live:
        kept = torch.ones(100)
        live.hold([kept.view(10, 10)], "adapters")
        live.start_phase()
        lost = torch.ones(200) + 1
        del lost

    assert live.by_kind() == {"adapters": CUDA_ROUNDING_BYTES}
    assert live.peak_bytes == CUDA_ROUNDING_BYTES + 2 * 1024
    assert live.peak_by_kind == {"adapters": CUDA_ROUNDING_BYTES, ACTIVATIONS: 2 * 1024}
    assert live.peak_operation == "aten.add.Tensor"


MIB = 2**20


@pytest.mark.parametrize(
    ("size", "left"),
    [(21.5, 0.5), (11, 1), (10.5, 0), (12, 0), (9.5, 0)],
    ids=["of a segment", "at most", "split off", "whole", "shares a segment"],
)
def test_the_block_of_a_large_tensor_may_be_larger(size, left):
    """Up to 1 MiB is not split off: the allocator counts it as allocated, and the tensor has not asked for it."""
    assert block_remainder(int(size * MIB)) == left * MIB
    with LiveStorages() as live:
        kept = torch.empty(int(size * MIB), dtype=torch.uint8)
        live.start_phase()
        torch.empty(1)
        assert (live.peak_remainder_bytes, live.peak_bytes) == (left * MIB, size * MIB + CUDA_ROUNDING_BYTES)
        del kept
    assert live.remainder_bytes == 0


def test_doubly_quantised_scales_are_unpacked_beside_the_weight():
    """In fp32, without and with their offset."""
    import bitsandbytes  # noqa: F401 - registers the operation

    product, activation = torch.ops.bitsandbytes.gemm_4bit.default, torch.zeros(8, 64, dtype=torch.bfloat16)
    given = (activation, torch.zeros(128 * 64 // 2, 1), (128, 64), torch.zeros(1))
    weight_bytes = 128 * 64 * 2
    assert scratch_bytes(product, given, {}) == weight_bytes
    assert scratch_bytes(product, given, {"absmax_8bit": torch.zeros(128)}) == weight_bytes + 2 * 4 * 128


@pytest.mark.parametrize(("dtype", "masked"), [(torch.bfloat16, False), (torch.bfloat16, True), (torch.float32, False)])
def test_a_deterministic_flash_attention_keeps_a_gradient_for_each_split(dtype, masked):
    """132 multiprocessors share two heads: 66 sums in fp32, rounded up to 128 rows of 32; other kernels have none."""
    peaks = []
    for deterministic in (False, True):
        query = torch.zeros(1, 2, 100, 24, dtype=dtype, requires_grad=True)
        mask = torch.ones(100, 100, dtype=torch.bool) if masked else None
        out = torch.nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)
        with LiveStorages(deterministic=deterministic) as live:
            out.backward(torch.ones_like(out))
        peaks.append(live.peak_bytes)

    assert peaks[1] - peaks[0] == (0 if masked or dtype == torch.float32 else 4 * 65 * 2 * 128 * 32)


def test_flash_attention_is_simulated_without_its_package():
    """It keeps what torch's own flash kernel keeps."""
    assert simulated("training.attention=flash_attention_2") == simulated()


def test_a_single_row_that_the_run_pads_counts_with_its_mask():
    """With a mask attention takes another kernel, which needs more."""
    alone = ["training.micro_batch_size=1", "training.gradient_accumulation_steps=1"]
    padded = simulated(*alone, "data.pad_to_sequence_len=true")

    assert padded.steady_bytes > simulated(*alone).steady_bytes
