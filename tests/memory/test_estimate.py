"""`tunecheck estimate`: cached, explained, and replaced by a measurement as soon as there is one."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
from estimates import ANSWER, CARD, QUICK, quick
from rich.console import Console
from tiny_models import as_python

from tunecheck.cli import main
from tunecheck.config import find_run, load_run, run_sources
from tunecheck.core.errors import SuiteError
from tunecheck.core.paths import project_folder
from tunecheck.memory import Need, measured_peaks, need_of, predict
from tunecheck.memory.constants import CARD_CLASSES_GB, CUBLAS_WORKSPACE, CUDA_CONTEXT
from tunecheck.memory.prediction import Prediction, cached_prediction
from tunecheck.memory.table import changes_of, fit_words, print_prediction, print_savings
from tunecheck.results import VERDICT_SCHEMA


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch, tmp_path):
    """No prediction and no report of this machine is seen, nor what a real GPU measured."""
    monkeypatch.setenv("TUNECHECK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TUNECHECK_REPORTS", str(tmp_path / "reports"))
    monkeypatch.setattr("tunecheck.memory.evidence_folder", lambda: tmp_path / "reports" / "evidence")


@pytest.fixture
def answering(monkeypatch, tmp_path):
    """A child that answers at once; returns how often it was asked."""
    asked = tmp_path / "asked"
    as_python(monkeypatch, tmp_path, f"cat > /dev/null; echo >> {asked}; echo '{json.dumps(ANSWER)}'")
    return lambda: len(asked.read_text()) if asked.exists() else 0


# The real thing.


@pytest.mark.slow
def test_a_child_simulates_a_run_of_any_shape():
    """From the configuration to cards, torch left out of this process."""
    settings = [word for setting in tiny.SETTINGS for word in ("--set", setting)]
    command = f"import sys; from tunecheck.cli import main; main({['estimate', QUICK, '--json', *settings]!r})"
    code = f"{command}; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=project_folder(), capture_output=True, text=True, check=True
    )

    text, torch_was_imported = done.stdout.rstrip().rsplit("\n", 1)
    answer = json.loads(text)
    assert torch_was_imported == "False"
    assert "simulating two steps without weights" in done.stderr
    assert 0 < answer["phases"]["first step"] < answer["phases"]["steady"] == answer["tensor_bytes"]
    assert answer["allocator_bytes"] - answer["tensor_bytes"] == CUBLAS_WORKSPACE.bytes
    assert answer["fits_gb"] == {str(size): True for size in CARD_CLASSES_GB}
    assert answer["simulation"]["peak_operation"].startswith("aten.")


# The cache.


def test_a_prediction_is_simulated_once(answering):
    """The second one is read, and says the same."""
    first = predict(quick())

    assert predict(quick()) == first == cached_prediction(quick())
    assert answering() == 1


@pytest.mark.parametrize("setting", ["data.max_length=64", "training.micro_batch_size=1", "lora.r=4"])
def test_another_run_is_simulated_anew(answering, setting):
    """Whatever changes the training changes the fingerprint."""
    predict(quick())
    predict(quick(setting))

    assert answering() == 2


def test_other_versions_are_simulated_anew(answering, monkeypatch):
    """A newer library may keep other tensors."""
    from tunecheck.memory import prediction

    predict(quick())
    monkeypatch.setattr(prediction, "_conditions", lambda: "other")
    predict(quick())

    assert answering() == 2


def test_a_damaged_record_is_simulated_anew(answering, tmp_path):
    """It is no prediction, and no reason to stop."""
    predict(quick())
    (record,) = (tmp_path / "cache" / "predictions").iterdir()
    record.write_text('{"predicted_at": "2026')
    predict(quick())

    assert answering() == 2


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            "echo 'RuntimeError: no such kernel' >&2; exit 1",
            "with status 1 and without an answer: RuntimeError: no such kernel",
        ),
        ("exit 3", "ended with status 3 and without an answer"),
    ],
    ids=["message", "silence"],
)
def test_a_child_that_fails_is_a_message(monkeypatch, tmp_path, script, words):
    """With its last words and the way out."""
    as_python(monkeypatch, tmp_path, f"cat > /dev/null; {script}")
    with pytest.raises(SuiteError) as caught:
        predict(quick())

    assert words in str(caught.value)
    assert "What to do: `tunecheck doctor`" in str(caught.value)


def test_a_child_that_hangs_is_a_message(monkeypatch, tmp_path):
    """It is ended."""
    from tunecheck.memory import prediction

    as_python(monkeypatch, tmp_path, "exec sleep 60")
    monkeypatch.setattr(prediction, "SIMULATE_SECONDS", 0.2)
    with pytest.raises(SuiteError, match=r"could not be simulated: the simulation did not answer within 0\.2 s"):
        predict(quick())


# What a run needs.


def test_without_anything_known_a_run_needs_what_it_states():
    """Or nobody knows."""
    assert need_of(quick(), gpu_name=CARD) is None
    assert need_of(quick("vram=3GiB"), gpu_name=CARD) == Need(bytes=3 * 2**30, known="stated by the run")


def test_a_prediction_is_the_need_of_a_run_that_states_none(answering):
    """The process's bytes, with the day; what the YAML states is not overruled by it."""
    predicted = predict(quick())
    predict(quick("vram=3GiB"))

    assert need_of(quick("vram=3GiB"), gpu_name=CARD) == Need(bytes=3 * 2**30, known="stated by the run")
    need = need_of(quick(), gpu_name=CARD)

    assert need == Need(
        bytes=3 * 10**9 + CUBLAS_WORKSPACE.bytes + CUDA_CONTEXT.bytes, known=f"predicted {predicted.predicted_at}"
    )


def write_verdict(folder, run, **changed):
    """A session's verdict with one measured run."""
    row = {
        "fingerprint": run.fingerprint,
        "peak_bytes": 10**9,
        "peak_kind": "allocator",
        "outcome": "pass",
        "device": f"cuda:0 {CARD}",
        **changed,
    }
    started_at = row.pop("started_at", "2026-12-01T10:00:00+00:00")
    folder.mkdir(parents=True)
    verdict = {"schema": VERDICT_SCHEMA, "started_at": started_at, "runs": [row]}
    (folder / "verdict.json").write_text(json.dumps(verdict))


def test_a_measurement_goes_before_a_prediction(answering, tmp_path):
    """The newest one of this run on such a card, and the CUDA context."""
    predict(quick())
    write_verdict(tmp_path / "reports" / "one", quick())
    write_verdict(tmp_path / "reports" / "two", quick(), peak_bytes=2 * 10**9, started_at="2026-12-02T10:00:00+00:00")

    expected = Need(bytes=2 * 10**9 + CUDA_CONTEXT.bytes, known="measured 2026-12-02")
    assert need_of(quick(), gpu_name=CARD) == expected
    assert need_of(quick(), gpu_name="NVIDIA T4").known.startswith("predicted ")
    assert need_of(quick(), gpu_name=None).known.startswith("predicted ")


def test_an_estimate_tells_what_was_measured_first(answering, tmp_path, capsys):
    """On each card, and how far the prediction is from it."""
    write_verdict(tmp_path / "reports" / "one", quick(), peak_bytes=2 * 10**9)
    assert main(["estimate", QUICK]) == 0
    first = " ".join(capsys.readouterr().out.split())
    assert first.startswith(f"{QUICK}: measured 2026-12-01 on {CARD}: 1.86 GiB of tensors; the prediction is +"), first
    assert main(["estimate", QUICK, "--json"]) == 0
    [peak] = json.loads(capsys.readouterr().out)["measured"]
    assert peak == {"card": CARD, "allocator_bytes": 2 * 10**9, "measured_at": "2026-12-01"}


def test_a_comparison_of_memory_needs_what_its_yaml_states(tmp_path):
    """A verdict tells the peak of the run as asked, and its largest variant takes more than twice that."""
    run = load_run(find_run("memory/smollm2-135m-order"))
    write_verdict(tmp_path / "reports" / "one", run, peak_bytes=10**9)
    assert need_of(run, gpu_name=CARD) == Need(bytes=run.vram, known="stated by the run")


@pytest.mark.parametrize(
    ("words", "refused"),
    [([QUICK, "--all"], QUICK), (["--savings"], "--savings"), (["--all", "--fallback"], "--fallback")],
)
def test_what_only_one_run_can_be_asked_is_refused_for_all(capsys, words, refused):
    """Not silently left out."""
    assert main(["estimate", *words]) == 4
    assert f"{refused}: needs a single run; name one, and remove --all" in capsys.readouterr().err


def test_another_trainers_run_is_told_to_be_predicted_as_the_native_one(capsys, answering):
    """And is not offered what that trainer refuses."""
    asked = ["trainer=transformers", "evaluation.batch_size=2"]
    assert (
        main(["estimate", QUICK, "--savings", "--fallback", *(word for key in asked for word in ("--set", key))]) == 0
    )
    told = capsys.readouterr()
    assert "predicted for the native trainer; transformers is not simulated" in told.err
    assert "gradient_checkpointing" in told.out
    changed = told.out.partition("Not tried")[0]
    assert not any(word in changed for word in ("loss_chunk_tokens", "profile=lean", "offload"))


def test_a_run_in_two_processes_is_told_to_be_predicted_as_one(capsys, answering):
    """On each of its GPUs; what their exchange takes is not simulated."""
    assert main(["estimate", "extended/smollm2-135m-parallel"]) == 0
    assert "The run takes 2 GPUs, of which each is predicted to hold what one process" in capsys.readouterr().out


@pytest.mark.parametrize(
    "changed",
    [{"peak_kind": "resident"}, {"outcome": "error"}, {"fingerprint": "other"}, {"device": "cpu"}],
    ids=lambda changed: next(iter(changed)),
)
def test_what_was_not_measured_on_a_card_does_not_count(tmp_path, changed):
    """Nor what crashed, nor another run."""
    write_verdict(tmp_path / "reports" / "one", quick(), **changed)
    assert CARD not in measured_peaks(quick().fingerprint)


@pytest.mark.parametrize("text", ["", "[]", '{"runs": [{}], "started_at": "2026"}', '{"runs": 3, "started_at": ""}'])
def test_a_file_that_is_no_verdict_is_passed_over(tmp_path, text):
    """It proves nothing."""
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "verdict.json").write_text(text)
    assert CARD not in measured_peaks(quick().fingerprint)


def test_a_card_of_its_class_holds_less_than_its_name_says():
    """A GB counts 1e9 bytes, a card has GiB."""
    fits = [Prediction.fits.fget(SimpleNamespace(process_bytes=size))[6] for size in (6 * 10**9, 6 * 2**30)]
    assert fits == [True, False]


# The command.


def test_estimate_tells_kinds_phases_and_cards(capsys, answering):
    """And whose measurements they are."""
    assert main(["estimate", QUICK]) == 0

    printed = " ".join(capsys.readouterr().out.split())
    assert "quantised weights 54,998,520" in printed
    assert "activations and loss 1.86 GiB" in printed
    assert "steady 2.79 GiB" in printed
    assert "fits GPUs of 6 GB and more" in printed
    assert "CUDA context: 751 MiB, measured on another GPU" in printed


def test_estimate_of_all_runs_is_one_table(capsys, answering):
    """With --all as without a name."""
    assert main(["estimate", "--all"]) == 0
    table = capsys.readouterr().out
    assert main(["estimate"]) == 0

    assert capsys.readouterr().out == table
    assert all(source.name in table for source in run_sources())


def test_estimate_as_json_of_all_runs(capsys, answering):
    """A list."""
    assert main(["estimate", "--all", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(run_sources())


def test_savings_are_simulated_where_they_are_asked_for(capsys, answering):
    """One simulation for each setting."""
    assert main(["estimate", QUICK, "--savings", "--json"]) == 0

    savings = json.loads(capsys.readouterr().out)["savings"]
    assert "training.gradient_checkpointing=true" in savings
    assert answering() == 1 + len(savings)
    assert main(["estimate", QUICK, "--savings"]) == 0
    assert "profile=lean" in capsys.readouterr().out
    nothing_left = ["profile=lean", "training.micro_batch_size=1", "training.offload=activations"]
    assert main(["estimate", QUICK, "--savings", *(word for key in nothing_left for word in ("--set", key))]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        "No setting is left to try. Not tried, because the run has them or they do not apply: profile=lean, " in printed
    )


def test_the_fallback_steps_are_predicted_where_they_are_asked_for(capsys, answering):
    """Each one that trains on the GPU, whether or not the run names it."""
    assert main(["estimate", QUICK, "--fallback", "--json"]) == 0

    assert list(json.loads(capsys.readouterr().out)["fallback"]) == ["as configured", "lean", "offload"]
    assert answering() == 3
    assert main(["estimate", QUICK, "--fallback"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"fallback +weights +allocator +process +GPU", printed)
    assert re.search(r"offload +107 MiB +2\.86 GiB +3\.59 GiB +6 GB", printed)


def test_offloaded_bytes_are_the_hosts(capsys, answering):
    """Nothing stays on the card; loading brings the largest group there, its largest weight twice."""
    full = ["strategy=full", "quantization=null", "lora=null", "training.offload=parameters"]
    assert main(["estimate", QUICK, "--json", *(word for key in full for word in ("--set", key))]) == 0

    answer = json.loads(capsys.readouterr().out)
    table_bytes, norm_bytes, moments = 4 * 49152 * 576, 4 * 576, 4 * 134_515_008
    tensors = 272  # 30 layers of 9, the table and the last norm: each has a count of steps
    assert answer["load_bytes"] == 2 * table_bytes + norm_bytes
    assert answer["static"] == {
        **dict.fromkeys(("quantised_weights", "other_weights", "adapters", "gradients", "optimizer"), 0),
        "on_host": 4 * moments + 4 * tensors,
    }
    assert main(["estimate", QUICK, *(word for key in full for word in ("--set", key))]) == 0
    assert "in the host's memory: 2 GiB of weights, gradients and optimizer" in capsys.readouterr().out


def test_savings_that_save_nothing_are_told_as_tried(capsys):
    """With the number of them, and what was not tried."""
    before = prediction_of_nothing(allocator_bytes=100)
    after = {"profile=lean": before, "a=b": prediction_of_nothing(allocator_bytes=101)}
    print_savings(before, after, ["c=d"], Console())

    printed = " ".join(capsys.readouterr().out.split())
    assert "None of the 2 settings tried saves memory. Not tried, because" in printed
    assert printed.endswith("c=d.")

    print_savings(before, {"a=b": prediction_of_nothing(allocator_bytes=99)}, ["c=d"], Console())
    assert "None of" not in capsys.readouterr().out


def prediction_of_nothing(*, allocator_bytes):
    """As much of a prediction as the table of savings reads."""
    return SimpleNamespace(allocator_bytes=allocator_bytes)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            [],
            [
                "profile=lean",
                "training.gradient_checkpointing=true",
                "training.micro_batch_size=1",
                "training.offload=activations",
            ],
        ),
        (["profile=lean"], ["training.micro_batch_size=1"]),
        (["quantization.double_quant=false"], ["quantization.double_quant=true"]),
        (["strategy=lora", "quantization=null"], ["strategy=qlora quantization={}"]),
        (
            ["strategy=full", "quantization=null", "lora=null"],
            ["strategy=qlora quantization={} lora={target_modules: [q_proj, v_proj]}", "training.offload=parameters"],
        ),
    ],
    ids=["plain", "lean", "one level", "lora", "full"],
)
def test_changes_can_be_made(settings, expected):
    """What is proposed is valid and not what the run does already."""
    changes = [change for change, useful in changes_of(quick(*settings)).items() if useful]

    assert set(expected) <= {" ".join(change) for change in changes}
    assert quick().fingerprint not in {quick(*settings, *change).fingerprint for change in changes if not settings}


def test_a_canary_keeps_its_second_row():
    """One row would be all canary."""
    run = load_run(find_run("convergence/smollm2-135m-qlora"))
    assert not any("training.micro_batch_size=1" in change for change, useful in changes_of(run).items() if useful)
    three = load_run(find_run("convergence/smollm2-135m-qlora"), ["training.micro_batch_size=3"])
    assert changes_of(three)["training.micro_batch_size=2",]


def test_a_run_that_fits_nowhere_is_said_so(monkeypatch, tmp_path):
    """With its size."""
    as_python(monkeypatch, tmp_path, f"cat > /dev/null; echo '{json.dumps({**ANSWER, 'steady_bytes': 10**12})}'")
    assert fit_words(predict(quick())) == "932 GiB in all: fits no GPU up to 80 GB"


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal(answering, width):
    """No line is longer."""
    console = Console(width=width, record=True, file=io.StringIO())
    print_prediction(predict(quick()), console)
    assert max(map(len, console.export_text().splitlines())) <= width


@pytest.mark.parametrize(
    ("arguments", "words"),
    [([QUICK, "--set", "lora.rank=8"], "unknown key"), (["quick/smollm"], "no run is called")],
    ids=["setting", "run"],
)
def test_a_wrong_request_is_a_message_and_status_4(capsys, arguments, words):
    """As everywhere."""
    assert main(["estimate", *arguments]) == 4
    assert words in capsys.readouterr().err


def test_an_unknown_architecture_is_a_message(capsys):
    """Before any child is started."""
    assert main(["estimate", QUICK, "--set", "model.architecture.model_type=gemma"]) == 4
    assert "model_type is 'gemma'" in capsys.readouterr().err


# The committed table.


def test_the_committed_table_is_what_the_script_writes():
    """Put together again from its own numbers; all of them are within 5 % of the reference."""
    script = load_script()
    committed = (project_folder() / "docs" / "memory.md").read_text(encoding="utf-8")

    rows = [
        script.Row(name, setting, int(reference), round(float(masked) * 1e6), round(float(trained) * 1e6))
        for name, setting, reference, masked, trained in re.findall(
            r"^\| (.+?) \| (default|lean\S*) \| (\d+) \| ([\d.]+) \| \S+ % \| ([\d.]+) \| \S+ % \|$", committed, re.M
        )
    ]

    assert [(row.name, row.setting) for row in rows] == [(n, s) for n in script.PEAKS for s in script.SETTINGS]
    assert without_versions(script.document(rows) + "\n") == without_versions(committed)
    assert all(abs(script.error(row.masked, row.reference_mb)) < 5 for row in rows)


def load_script():
    """scripts/memory-table.py as a module."""
    path = Path(project_folder() / "scripts" / "memory-table.py")
    spec = importlib.util.spec_from_file_location("memory_table", path)
    module = sys.modules["memory_table"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_versions(document):
    """The document but for the versions it was written with."""
    return re.sub(r"^Simulated with .*$", "", document, flags=re.M)


def test_a_cache_that_cannot_be_written_costs_no_prediction(answering, monkeypatch, tmp_path, said):
    """It is made, and that it is not kept is said."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("TUNECHECK_CACHE", str(tmp_path / "file"))
    assert predict(quick()).tensor_bytes > 0
    assert "Not a directory" in said[-1]
    assert said[-1].endswith("set TUNECHECK_CACHE to a writable folder")
