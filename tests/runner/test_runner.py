"""Attempts in child processes: how they end is told apart, and nothing is left behind."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import weakref
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import injected
import psutil
import pytest
import tiny
import torch

from tunecheck import runner as runner_module
from tunecheck.config import find_run, load_run
from tunecheck.core.evidence import AttemptOutcome, Generation, Phase, ProbeFailed, RowShown, Step, Telemetry
from tunecheck.probes.evaluation import EvaluationProbe
from tunecheck.results import summarize
from tunecheck.runner import Runner
from tunecheck.runner.outcome import Outcome, carried_out
from tunecheck.training.events import Probe, Probes


def execute(folder, *settings, fault=None, **options):
    """The trace of the tiny quick run with these settings."""
    run = load_run(find_run("quick/smollm2-135m-qlora"), [*tiny.SETTINGS, *settings])
    faults = (getattr(injected, fault),) if fault else ()
    runner = Runner(folder=folder, environment={}, faults=faults, **{"gpu": False, **options})
    return runner.execute(run)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """The trace of a run with all its further attempts, for the tests that ask one thing of it each."""
    settings = ["probes.repeat_steps=4", "probes.resume_from=3", "probes.oracle_steps=[0,1,2,3]"]
    return execute(tmp_path_factory.mktemp("healthy"), *settings)


def test_the_trace_shows_the_first_rows(healthy):
    """As their data file has them, learned to their end token."""
    shown = healthy.all(RowShown)

    assert 1 <= len(shown) <= 4
    assert all(row.ended and row.longest == 512 for row in shown)
    for row in shown:
        context, learned = row.pieces[:2]
        assert (context.kind, learned.kind) == ("context", "learned")
        assert "### Instruction:" in context.text
        assert row.tokens == context.tokens + learned.tokens
        assert row.learned == learned.tokens


@pytest.mark.parametrize(
    ("fault", "outcome", "words"),
    [
        ("crash", "crashed", "SIGSEGV"),
        ("out_of_memory", "out_of_memory", "CUDA out of memory"),
        ("error", "failed", "ValueError: the shapes do not fit (tests/injected.py:"),
        ("disk_full", "failed", "the disk is full"),
    ],
)
def test_an_attempt_that_ends_badly_says_how(tmp_path, fault, outcome, words):
    """The outcome names the kind, the detail the cause; the steps before it would still be there."""
    trace = execute(tmp_path, fault=fault)

    assert trace.main.end.outcome == outcome
    assert words in trace.main.end.detail
    assert not trace.main.finished


def test_an_error_leaves_its_traceback_in_the_log(tmp_path):
    """A person sees where it happened without running again."""
    execute(tmp_path, fault="error")

    assert "in error" in (tmp_path / "quick-smollm2-135m-qlora.log").read_text()


def test_only_the_warning_about_an_optional_kernel_is_dropped(tmp_path):
    """On whatever CPU: tests/test_tiers.py sees bitsandbytes itself warn only where there is AVX512-BF16."""
    trace = execute(tmp_path, fault="two_warnings")
    log = (tmp_path / "quick-smollm2-135m-qlora.log").read_text()

    assert trace.main.finished
    assert "Failed to load another kernel" in log
    assert "gemm_4bit_forward" not in log


def test_an_empty_prompt_and_an_emoji_are_continued(tmp_path):
    """Nothing is a prompt too: it is continued from the start token."""
    trace = execute(tmp_path, "probes.prompts=['', '🦀']")

    assert trace.main.all(ProbeFailed) == []
    assert [(seen.prompt, seen.when) for seen in trace.all(Generation)] == [
        ("", "start"),
        ("🦀", "start"),
        ("", "end"),
        ("🦀", "end"),
    ]


def test_a_hang_is_ended_at_the_deadline_with_its_stacks(tmp_path):
    """The child is killed, the trace says where it hung."""
    trace = execute(tmp_path, "deadline=6s", fault="hang")

    assert trace.main.end.outcome == "hung"
    assert "6 s" in trace.main.end.detail
    assert "in hang" in (tmp_path / "quick-smollm2-135m-qlora.log").read_text()
    assert trace.main.end.seconds < 12
    assert not [child for child in psutil.Process().children(recursive=True) if "injected" in " ".join(child.cmdline())]


def test_missing_weights_are_an_attempt_that_could_not_begin(tmp_path):
    """Random weights that the run does not allow leave nothing to load."""
    trace = execute(tmp_path, "allow_random_weights=false")

    assert trace.main.end.outcome == "unavailable"
    assert "random" in trace.main.end.detail


def test_a_row_that_does_not_fit_is_a_wrong_configuration(tmp_path):
    """A message with place, key, rule and way out, which has travelled from the child; not a traceback."""
    trace = execute(tmp_path, "data.max_length=16")

    assert trace.main.end.outcome == "misconfigured"
    told = r"--set data.max_length=16: data.max_length: should be at least (\d+), the tokens of .*train.jsonl:\d+ \("
    longest = re.match(told, trace.main.end.detail)[1]
    assert trace.main.end.detail.endswith(f"raise the limit or shorten the row; --set data.max_length={longest}")
    assert summarize(trace, [], trace_file="", seconds=1.0).misconfigured


def test_a_vocabulary_below_the_byte_tokenizers_is_a_wrong_configuration(tmp_path):
    """Found in this process, before a child begins."""
    trace = execute(tmp_path, "model.architecture.vocab_size=200", "model.parameters=321152")

    assert trace.main.end.outcome == "misconfigured"
    assert "model.architecture.vocab_size: should be at least 259" in trace.main.end.detail


def test_a_number_of_parameters_that_is_not_the_architectures_is_a_wrong_configuration(tmp_path):
    """Before anything is fetched: with another count the weights would be taken for another model's."""
    trace = execute(tmp_path, "model.parameters=5")

    assert trace.main.end.outcome == "misconfigured"
    assert trace.main.end.detail == (
        "--set model.parameters=5: model.parameters: should be 361088, as model.architecture has it (got 5): "
        "correct one of them"
    )


@pytest.mark.parametrize(
    ("error", "device", "outcome", "words"),
    [
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
            "cuda",
            "out_of_memory",
            "CUB",
        ),
        (RuntimeError("CUDA driver error: out of memory"), "cuda", "out_of_memory", "CUDA driver error"),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
            "cuda",
            "out_of_memory",
            "NOT_INITIALIZED",
        ),
        (RuntimeError("CUDA error: out of memory\nmore"), "cuda", "out_of_memory", "CUDA error: out of memory"),
        (RuntimeError("NCCL error: Cuda failure 2 'out of memory'"), "cuda", "out_of_memory", "NCCL error"),
        (MemoryError(), "cpu", "out_of_memory", "the host is out of memory"),
        (MemoryError("pin"), "cuda", "failed", "the host is out of memory, not the GPU: pin; a training on the CPU"),
        (RuntimeError("DefaultCPUAllocator: can't allocate"), "cuda", "failed", "not the GPU: DefaultCPUAllocator"),
        (ValueError("CUDA error: out of memory"), "cuda", "failed", "ValueError"),
    ],
)
def test_whose_memory_ran_out_is_told_apart(error, device, outcome, words):
    """Only the GPU's is a reason for a fallback; on the CPU the host's is the run's own."""

    def work():
        raise error

    found, detail, _ = carried_out(work, device)

    assert found == outcome
    assert words in detail


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("CUDA error: an illegal memory access was encountered", "GPU error"),
        ("CUDA error: unspecified launch failure", "GPU error"),
        ("CUDA error: device-side assert triggered", "error"),
        ("CUDA error: invalid device ordinal", "error"),
        ("unknown error", "error"),
    ],
)
def test_an_error_that_the_gpu_can_cause_is_told_from_the_programs(words, cause):
    """An index out of bounds, which a kernel asserts, is the program's own."""

    def work():
        raise RuntimeError(words)

    assert carried_out(work, "cuda").cause == cause


def test_of_an_error_of_nccl_its_last_line_is_kept():
    """The first one says that something failed, and no more."""

    def work():
        raise RuntimeError(
            "NCCL error in: /pytorch/NCCLUtils.cpp:93, unhandled system error (run with NCCL_DEBUG=INFO)\n"
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed.\n"
            "Last error:\nError while creating shared memory segment /dev/shm/nccl-x (size 9637888), error: No space"
        )

    detail = carried_out(work, "cuda").detail

    assert detail.startswith("RuntimeError: NCCL error in: ")
    assert "Last error: Error while creating shared memory segment /dev/shm/nccl-x" in detail


def test_an_error_inside_of_a_library_is_placed_at_the_call():
    """The line of the trainer, not that of the library."""

    def work():
        json.loads("{")

    line = work.__code__.co_firstlineno + 1
    found, detail, _ = carried_out(work, "cpu")

    assert found == "failed"
    assert detail.startswith("JSONDecodeError: ")
    assert detail.endswith(f"(runner/test_runner.py:{line})")


def test_an_evaluation_that_runs_out_of_memory_ends_the_attempt(monkeypatch):
    """The run itself asks for evaluations, so the fallback chain must see their out-of-memory error."""
    monkeypatch.setattr(EvaluationProbe, "evaluate", lambda *_: _run_out())

    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        Probes((EvaluationProbe,), lambda *records: None).evaluate(
            SimpleNamespace(device=torch.device("cpu"), seen_whole=nullcontext), 0
        )


def test_a_probe_that_runs_out_of_memory_is_recorded_and_its_memory_returned(monkeypatch):
    """The training can go on: what the probe's frames held is free, and the allocator's cache is returned."""
    held, emptied, written = [], [], []

    class Greedy(Probe):
        emits = (Step,)

        def end(self, session):
            large = torch.zeros(8)
            held.append(weakref.ref(large))
            _run_out()

    monkeypatch.setattr("tunecheck.training.restore.random_state", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(held[0]() is None))

    Probes((Greedy,), written.append).end(SimpleNamespace(device=torch.device("cuda", 0), seen_whole=nullcontext))

    (failure,) = (record for record in written if isinstance(record, ProbeFailed))
    assert failure.error.startswith("OutOfMemoryError: CUDA out of memory")
    assert emptied == [True]


def _run_out():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


def test_a_library_that_exits_for_lack_of_memory_is_an_out_of_memory_error(tmp_path):
    """bitsandbytes' native library prints one line and ends the process with status 1."""
    trace = execute(tmp_path, fault="exit_for_lack_of_memory")

    assert trace.main.end.outcome == "out_of_memory"
    assert trace.main.end.detail == "Error out of memory at line 410 in file /src/csrc/ops.cu"


def test_any_other_exit_is_a_crash(tmp_path):
    """Status 1 alone says nothing."""
    trace = execute(tmp_path, fault="exit_without_a_word")

    assert trace.main.end.outcome == "crashed"
    assert "ended with status 1" in trace.main.end.detail


def out_of_memory_on_the_gpu(monkeypatch):
    """Make attempts on the GPU run out of memory; those on the CPU are real."""
    real = runner_module.run_child

    def run_child(request, **options):
        if request.device == "cuda":
            return Outcome(AttemptOutcome.OUT_OF_MEMORY, "CUDA out of memory")
        return real(request, **{**options, "gpu": False})

    monkeypatch.setattr(runner_module, "run_child", run_child)


def test_out_of_memory_falls_back_to_the_cpu_with_the_same_losses(tmp_path, monkeypatch, healthy, said):
    """A fresh process, both attempts in the trace, losses equal to a run that began on the CPU."""
    out_of_memory_on_the_gpu(monkeypatch)

    trace = execute(tmp_path, "device=auto", "fallback=cpu", gpu=True)

    assert [(a.start.device, a.end.outcome) for a in trace.attempts] == [
        ("cuda:0", "out_of_memory"),
        ("cpu", "finished"),
    ]
    assert trace.main.start.explanation == "out of memory on the GPU: CUDA out of memory"
    assert any("again in a fresh process on the CPU" in line for line in said)
    assert [s.loss for s in trace.steps] == [s.loss for s in healthy.steps]


def test_an_attempt_on_a_gpu_is_metered_and_one_on_the_cpu_is_not(tmp_path, monkeypatch):
    """The meter gets the child's process id, and what it saw stands before the attempt's end."""
    told = []

    class Meter:
        def __init__(self, card, folder):
            told.append(card)

        def watch(self, process_id):
            told.append(process_id)

        def stop(self):
            return [Telemetry(uuid="GPU-1", complete=False, problem="made up")]

    def run_child(request, *, started, **options):
        started(4242)
        return Outcome(AttemptOutcome.OUT_OF_MEMORY, "CUDA out of memory")

    monkeypatch.setattr(runner_module, "Meter", Meter)
    monkeypatch.setattr(runner_module, "run_child", run_child)

    trace = execute(tmp_path, "device=auto", "fallback=cpu", gpu=True, cards=("GPU-1",))

    assert told == ["GPU-1", 4242]
    assert [[type(record).__name__ for record in attempt.records] for attempt in trace.attempts] == [["Telemetry"], []]


def test_the_phases_of_a_run_are_told_apart(healthy):
    """Every step lies in one of them; where the device has no allocator its figures are None."""
    phases = healthy.all(Phase)

    assert [p.name for p in phases] == ["load", "evaluation", "first step", "steady", "save", "steady", "evaluation"]
    assert all(p.seconds > 0 and p.process_bytes and p.peak_allocated_bytes is None for p in phases)
    assert [p.started_at for p in phases] == sorted(p.started_at for p in phases)


def test_the_card_and_its_cap_are_in_the_trace_of_the_attempt_on_it(tmp_path, monkeypatch):
    """The attempt on the CPU after it has neither, and no card is shown to it."""
    asked = []
    out_of_memory_on_the_gpu(monkeypatch)
    fake = runner_module.run_child
    monkeypatch.setattr(
        runner_module, "run_child", lambda request, **options: asked.append(request) or fake(request, **options)
    )

    trace = execute(tmp_path, "device=auto", "fallback=cpu", gpu=True, cards=("GPU-1",), vram_cap_bytes=2**33)

    assert [(a.start.card, a.start.vram_cap_bytes) for a in trace.attempts] == [("GPU-1", 2**33), (None, None)]
    assert [(request.cards, request.vram_cap_bytes) for request in asked] == [(("GPU-1",), 2**33), ((), None)]
    row = summarize(trace, [], trace_file="", seconds=0.0)
    assert [attempt.device for attempt in row.attempts] == ["cuda:0 (capped at 8.0 GiB)", "cpu"]
    assert row.retries == ["ran out of memory on cuda:0 (capped at 8.0 GiB), repeated on cpu"]


def test_without_a_fallback_out_of_memory_is_the_end(tmp_path, monkeypatch):
    """Nothing is tried in secret."""
    out_of_memory_on_the_gpu(monkeypatch)

    trace = execute(tmp_path, "device=auto", "fallback=none", gpu=True)

    assert [attempt.end.outcome for attempt in trace.attempts] == ["out_of_memory"]


def test_a_gpu_that_torch_does_not_see_is_an_error_not_a_slow_pass(tmp_path):
    """NVML shows a card, torch has none: the run does not go to the CPU by itself."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")

    trace = execute(tmp_path, "device=cuda", gpu=True)

    assert trace.main.end.outcome == "failed"
    assert "torch sees no GPU" in trace.main.end.detail


def test_repeat_and_resume_are_attempts_of_their_own(healthy):
    """Fresh processes, whose steps stay apart from the main attempt's."""
    assert [attempt.start.purpose for attempt in healthy.attempts] == ["train", "repeat", "resume"]
    assert [step.step for step in healthy.steps] == [0, 1, 2, 3, 4]
    assert [step.step for step in healthy.last("repeat").all(Step)] == [0, 1, 2, 3]
    assert [step.step for step in healthy.last("resume").all(Step)] == [3, 4]


def test_probes_do_not_change_the_training(healthy):
    """The repeat trains without a single probe and has the same losses to the last bit."""
    repeat = healthy.last("repeat").all(Step)

    assert len(repeat) == 4
    assert [s.loss for s in repeat] == [s.loss for s in healthy.steps[:4]]
    assert [s.gradient_norm for s in repeat] == [s.gradient_norm for s in healthy.steps[:4]]


def test_a_fresh_child_is_quick(tmp_path, healthy):
    """The fork server has the libraries: a second tiny run needs no imports."""
    started = time.monotonic()
    execute(tmp_path)

    assert time.monotonic() - started < 20


def test_a_script_without_a_main_guard_is_told_so(tmp_path: Path) -> None:
    """Its children import it, train again and end: that is said, instead of a traceback about a log."""
    script = tmp_path / "train.py"
    script.write_text(
        "from pathlib import Path\n"
        "from types import SimpleNamespace\n"
        "from tunecheck.runner.process import run_child\n"
        "run = SimpleNamespace(parallel=None, deadline=60)\n"
        "end = run_child(SimpleNamespace(run=run, trace=Path('trace.jsonl')), gpu=True, progress=print)\n"
        "print(end.outcome, end.detail)\n"
    )
    told = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("crashed ended with status 1 before its first line; a script that trains must do so")
