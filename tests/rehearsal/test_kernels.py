"""Kernels as a card has them: by rows, by capability, with another order of sums, with noise, with NaN."""

from __future__ import annotations

import math
from types import SimpleNamespace

import injected
import pytest
import tiny
import torch
from rehearsing import failed, rehearsed

from tunecheck import assets as models
from tunecheck.assets.build import pair_tokenizer
from tunecheck.config import find_run, load_run
from tunecheck.probes.fidelity import QuantizationProbe, token_counts
from tunecheck.probes.reference.backward import HALF_TILES, negative_score_errors
from tunecheck.training import load, native
from tunecheck.training.data import Batches
from tunecheck.training.load import apply_workarounds

FUSED_ROWS = 32
"""Up to which bitsandbytes 0.50 uses a fused 4-bit kernel for most shapes; above it unpacks and multiplies."""


@pytest.fixture
def session():
    """The tiny quick run on the CPU, in fp32."""
    run = load_run(find_run("quick/smollm2-135m-qlora"), tiny.SETTINGS)
    found = models.resolve(run.model, allow_random=True)
    return native.build(run, found.path, torch.device("cpu"))


def kernel_error(session, above):
    """What the probe measures where 4-bit linears return this above FUSED_ROWS rows."""
    import bitsandbytes

    forward, written = bitsandbytes.nn.Linear4bit.forward, []

    def by_rows(module, x):
        out = forward(module, x)
        return above(out) if x.numel() // x.shape[-1] > FUSED_ROWS else out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bitsandbytes.nn.Linear4bit, "forward", by_rows)
        QuantizationProbe(written.append).start(session)
    return written[0]


def test_the_4_bit_kernel_is_probed_at_the_rows_that_the_run_has(session):
    """A kernel that is wrong only for many rows is found, at a count of tokens that the run multiplies by."""
    wrong = kernel_error(session, lambda out: out * 1.1)
    right = kernel_error(session, lambda out: out * (1 + 2**-22))

    assert wrong.kernel_error == pytest.approx(0.1, rel=1e-3)
    tokens = int(wrong.kernel_error_at.rpartition(", ")[2].split()[0])
    assert tokens > FUSED_ROWS
    assert right.kernel_error < 1e-5


CARDS = {"80": (108, 8, 0), "86": (84, 8, 6), "89": (128, 8, 9), "90": (132, 9, 0), "120": (170, 12, 0)}
"""Multiprocessors and compute capability of an A100, A10, 4090, H100 and RTX 5090."""


def dispatch(monkeypatch, properties):
    """bitsandbytes' own choice of the fused kernel, by tokens, rows and columns, on a card with these properties."""
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", None, raising=False)  # read when it is imported
    from bitsandbytes.backends.cuda import ops

    monkeypatch.setattr(ops, "_gpu_dispatch_props", lambda device: properties)
    chosen = ops._gemm_4bit_use_custom_cuda.__wrapped__
    return lambda tokens, rows, columns: chosen(0, torch.bfloat16, tokens, rows, columns)


@pytest.mark.parametrize("properties", CARDS.values(), ids=CARDS)
@pytest.mark.parametrize("name", ["memory/tinyllama-1.1b-qlora", "memory/smollm2-135m-lean", "full/llama-7b-qlora"])
def test_the_probe_uses_the_kernels_that_the_steps_use(monkeypatch, name, properties):
    """bitsandbytes chooses by rows, shape and card: each choice that a step meets, the probe meets."""
    fuses = dispatch(monkeypatch, properties)
    shorter = [
        "training.max_steps=20",
        "evaluation.at=[]",
        "probes.oracle_steps=[0]",
        "probes.resume_from=null",
        "checks={}",
    ]
    run = load_run(find_run(name), shorter)
    run = run.model_copy(update={"data": run.data.model_copy(update={"hub": None})})
    batches = Batches(run, pair_tokenizer(2048), torch.device("cpu"))
    probed = token_counts(SimpleNamespace(run=run, batches=batches))
    trained = [batch.input_ids.numel() for step in range(20) for batch in batches.window(step)]
    shape = run.model.architecture
    wide, narrow = shape.hidden_size, shape.hidden_size * shape.num_key_value_heads // shape.num_attention_heads
    shapes = [(wide, wide), (narrow, wide), (shape.intermediate_size, wide), (wide, shape.intermediate_size)]

    for rows, columns in shapes:
        met, seen = ({fuses(tokens, rows, columns) for tokens in counts} for counts in (trained, probed))
        assert met <= seen, (rows, columns)


def test_fixed_rows_do_not_meet_every_kernel(monkeypatch):
    """One and seventeen rows, which the probe took before, miss the kernel of LLaMA-7B's steps on an H100."""
    fuses = dispatch(monkeypatch, CARDS["90"])

    assert [fuses(tokens, 11008, 4096) for tokens in (1, 17, 512)] == [True, True, False]


def by_rows(linear):
    """A product whose sum over K is taken in parts, their number by the number of rows: another kernel for each."""

    def split(x, weight, bias=None):
        parts = 1 + (x.numel() // x.shape[-1]) % 3
        pieces = [linear(a, b) for a, b in zip(x.chunk(parts, dim=-1), weight.chunk(parts, dim=-1), strict=True)]
        total = sum(pieces[1:], pieces[0])
        return total if bias is None else total + bias

    return split


def test_sums_in_another_order_for_each_number_of_rows_are_healthy(tmp_path, monkeypatch):
    """cuBLAS splits K by shape: the same product is not the same bits in another batch."""
    monkeypatch.setattr(torch.nn.functional, "linear", by_rows(torch.nn.functional.linear))

    assert failed(rehearsed(tmp_path)) == set()


def test_noise_in_attentions_gradients_is_found_by_repeating_alone(tmp_path):
    """One unit in the last place, other bits in each process, as atomic additions give them."""
    settings = ["probes.repeat_steps=8", "training.max_steps=8", "training.learning_rate=1e-2"]
    trace = rehearsed(tmp_path, *settings, faults=(injected.noisy_attention_gradients,))

    assert failed(trace, *settings) == {"repeat_equals"}


# cuDNN attention.


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_right_attention_is_right_for_strongly_negative_scores(dtype):
    """Its output and the gradients of queries, keys and values."""
    errors = negative_score_errors(64, dtype, torch.device("cpu"))

    assert len(errors) == 4 * len(HALF_TILES)
    assert set(errors.values()) == {0.0}


def cudnn_like(q, k, v, attn_mask=None, **others):
    """As cuDNN's kernel in torch 2.11 to 2.13 on compute capability 9.0: the queries' gradient overflows."""
    out = SDPA(q, k, v, attn_mask=attn_mask, **others)
    tokens = q.shape[-2]
    k = k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
    lowest = torch.logsumexp((q @ k.mT).float() / math.sqrt(q.shape[-1]), dim=-1).min()
    if attn_mask is not None and tokens % 128 == 64 and lowest < -88.7 and q.requires_grad:
        q.register_hook(lambda gradient: gradient * torch.nan)
    return out


SDPA = torch.nn.functional.scaled_dot_product_attention


def test_an_attention_whose_gradients_overflow_is_found(tmp_path, monkeypatch):
    """The forward pass is right, and no shipped row has the length."""
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", cudnn_like)

    assert "forward_matches_architecture" in failed(rehearsed(tmp_path))


FULL = ["strategy=full", "lora=null", "quantization=null", "checks={}"]


@pytest.mark.parametrize(
    ("capability", "settings", "precision"),
    [
        ((8, 0), [], "bf16"),
        ((7, 5), [], "fp16"),
        ((7, 0), FULL, "fp16"),
        ((7, 5), ["training.precision=fp32"], "fp32"),
        ((7, 5), [*FULL, "training.offload=parameters"], "fp32"),
        ((7, 5), ["lora.adapter_dtype=model"], "fp32"),
        ((7, 5), ["trainer=transformers", "evaluation.batch_size=2"], "fp32"),
        ((6, 1), [], "fp32"),
    ],
)
def test_auto_is_what_the_card_computes_fast(monkeypatch, capability, settings, precision):
    """bf16 from 8.0 on; before, fp16 where there are tensor cores for it and gradients can be scaled."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    run = load_run(find_run("quick/smollm2-135m-qlora"), settings)

    assert load.resolve_precision(run, torch.device("cuda", 0)) == precision


@pytest.mark.parametrize(
    ("capability", "settings", "enabled", "told"),
    [
        ((9, 0), [], False, True),
        ((9, 0), ["training.cudnn_attention=true"], True, False),
        ((9, 0), ["training.deterministic=true"], False, False),
        ((8, 0), [], True, False),
        ((8, 0), ["training.cudnn_attention=false"], False, False),
        ((8, 0), ["training.deterministic=true"], False, False),
    ],
)
def test_cudnn_attention_is_switched_off_where_it_gives_nan(monkeypatch, capability, settings, enabled, told):
    """And said to be, unless the run asks for it itself."""
    run = load_run(find_run("quick/smollm2-135m-qlora"), settings)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch, "__version__", "2.13.0")  # which has the bug
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        sentences = load._choose_kernels(run, torch.device("cuda", 0))
        assert torch.backends.cuda.cudnn_sdp_enabled() is enabled
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)

    assert bool(sentences) is told
    assert all("196678" in sentence for sentence in sentences)


def test_tf32_of_the_environment_is_switched_off_and_said(session):
    """NVIDIA's images set TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, with which no limit of fp32 can hold."""
    torch.set_float32_matmul_precision("high")
    try:
        sentences = apply_workarounds(session.model, session.device, session.run)
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision("highest")

    assert ["TF32" in sentence for sentence in sentences] == [True]


def test_deterministic_is_strict(tmp_path):
    """With warn_only attention's backward pass keeps its nondeterministic kernels."""
    from tunecheck.runner import child

    try:
        child._be_deterministic()
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = True
