"""Comparisons from end to end on a random Qwen2 of two layers: healthy rows, and the table from the traces alone."""

from __future__ import annotations

import dataclasses
import io
import json
import math

import pytest
import tiny
from rich.console import Console

from tunecheck import assets as models
from tunecheck.cli import main
from tunecheck.config import find_run, load_run
from tunecheck.core.finding import Finding, Status
from tunecheck.core.trace import read
from tunecheck.report.files import summary_markdown
from tunecheck.report.page import page_html
from tunecheck.report.terminal import print_report
from tunecheck.results import Entry, Report, RunReport, Tried, verdict_of
from tunecheck.results.comparison import comparisons, condensed
from tunecheck.results.rejudge import judged_again, session_report
from tunecheck.results.stored import VERDICTS, write_verdict
from tunecheck.runner import Runner
from tunecheck.session.rows import Rows

FACTS, INSTRUCTIONS = "convergence/strategies-seven-facts", "extended/strategies-instructions"
QWEN2 = [
    *tiny.SHRUNK,
    "model.architecture.model_type=qwen2",
    "model.parameters=107072",
    "training.max_steps=5",
    "evaluation.rows=4",
]
TRAINED = {
    f"{FACTS}-bitfit": 256,
    f"{FACTS}-adapter_layers": 74_304,
    f"{FACTS}-dora": 3_776,
    f"{INSTRUCTIONS}-qlora": 3_584,
}
"""Run to the parameters that it trains: in each of 2 layers 64 + 2 x 32 biases; 8 x (64 + 64) + 8 x (64 + 32)
of factors, and with DoRA 64 + 32 magnitudes."""


def shrunk(name):
    """This run on two layers, text in blocks of 32 bytes."""
    return load_run(find_run(name), [*QWEN2, *(["data.max_length=32"] if name.startswith(FACTS) else [])])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A session's folder with a trace of each."""
    folder = tmp_path_factory.mktemp("session")
    for name in TRAINED:
        Runner(folder=folder, environment={}, gpu=False).execute(shrunk(name))
    return folder


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.slow
def test_a_row_is_healthy_and_trains_its_set(folder, name):
    """Every check is good but for what random weights and a CPU rule out."""
    run, trace = shrunk(name), read(folder / f"{name.replace('/', '-')}.jsonl")

    findings = [check(trace) for check in run.resolved_checks().values()]
    assert [str(finding) for finding in findings if not finding.passed and not finding.expected] == []
    row = judged_again(trace, [], trace_file="")
    assert row.entry.trained_parameters == TRAINED[name]
    assert row.entry.name == run.entry == name.rpartition("-")[2]
    assert row.entry.heldout_loss_end is not None
    assert row.entry.rows_per_second > 0


def test_random_weights_have_no_rank(folder):
    """The table is there, and says why nobody won."""
    made = session_report(folder)
    facts, instructions = comparisons(made.runs)

    assert [row[0] for row in facts.rows] == ["-"] * 3
    assert instructions.title.startswith(f"{INSTRUCTIONS} on ")
    assert (facts.title, facts.ranking) == (f"{FACTS} on qwen2-0.5b", "not ranked")
    assert "bitfit: no rank: its weights are random" in facts.notes[1]
    assert "no rank: its weights are random" in summary_markdown(made)
    page = page_html(made, folder)
    assert "What each said to: Ownership in Rust means" in page


def test_stored_traces_are_compared_again(folder, capsys):
    """By name, without training."""
    traces = sorted(map(str, folder.glob("convergence-*.jsonl")))

    assert main(["judge", *traces]) == 0
    printed = capsys.readouterr().out
    assert f"{FACTS} on qwen2-0.5b" in printed
    assert "74,304 (69.4 %)" in printed
    assert main(["judge", *traces, "--json"]) == 0
    assert {run["entry"]["name"] for run in json.loads(capsys.readouterr().out)["runs"]} == {
        "bitfit",
        "adapter_layers",
        "dora",
    }


def test_noise_that_claims_to_be_trained_is_found_out(tmp_path, monkeypatch):
    """Weights that were never loaded, a perplexity above the vocabulary, noise as text: reported once as a success."""
    resolve = models.resolve

    def claiming(*arguments, **options):
        found = resolve(*arguments, **options)
        return found._replace(weights=dataclasses.replace(found.weights, pretrained=True))

    monkeypatch.setattr(models, "resolve", claiming)
    run = shrunk(f"{FACTS}-bitfit")
    trace = Runner(folder=tmp_path, environment={}, gpu=False).execute(run)

    findings = {name: check(trace) for name, check in run.resolved_checks().items()}
    failed = {name for name, finding in findings.items() if finding.status is Status.FAILED}
    assert failed == {"first_loss_below_uniform", "perplexity_below_vocabulary", "text_is_language", "loss_falls"}
    assert "nats per generated token" in findings["text_is_language"].detail
    row = judged_again(trace, [], trace_file="")
    assert "no rank: failed first_loss_below_uniform" in comparisons([row])[0].notes[0]


# The table, from made-up rows.


def ran(name: str, perplexity: float, peak_bytes: int = 2**30, **changes):
    """A row of a comparison that trained and was judged good; the held-out perplexity was 20."""
    fields = {"comparison": FACTS, "name": name, "trained_parameters": 1000, "total_parameters": 4000}
    losses = {"heldout_loss_start": math.log(20), "heldout_loss_end": math.log(perplexity)}
    entry = Entry(**fields, **losses, training_seconds=61.0, rows_per_second=2.5, pretrained=True)
    row = {"run": f"strategies-seven-facts-{name}", "tier": "convergence", "model": "qwen2-0.5b", "outcome": "pass"}
    ends = {"probe_loss_start": 3.0, "probe_loss_end": 1.0, "peak_bytes": peak_bytes, "peak_kind": "allocator"}
    tried = (Tried(purpose="train", device="cuda:0", outcome="finished", reason="", seconds=70.0),)
    return RunReport(**{**row, **ends, "entry": entry, "losses": (3.0, 1.0), "attempts": tried, **changes})


def order(*runs):
    """Names in the order of the ranking, those without a rank in brackets."""
    (comparison,) = comparisons(runs)
    names = [[name for place, name, *_ in comparison.rows if (place == "-") is last] for last in (False, True)]
    return tuple(names)


def report(*runs):
    """A session of these runs."""
    return Report(started_at="", seconds=1.0, verdict=verdict_of(runs, False), runs=runs)


def shown(made, width=80):
    """What a person sees."""
    out = io.StringIO()
    print_report(made, Console(width=width, no_color=True, force_terminal=False, file=out))
    return out.getvalue()


def test_the_lowest_heldout_perplexity_is_first_and_equal_ones_go_by_memory():
    """Three digits decide: beyond them is noise."""
    runs = ran("full", 30.04, 9000), ran("lora", 30.01, 2000), ran("dora", 12.0, 9999), ran("bitfit", 30.2, 1)

    assert order(*runs) == (["dora", "lora", "full", "bitfit"], [])


def test_what_was_not_judged_good_has_no_rank():
    """However good its numbers look: they may be those of a broken training."""
    failed = Finding(check="trainable_set", status=Status.FAILED)
    broken = ran("freeze_lower", 1.5, outcome="fail", findings=(failed,))
    diverged = ran("full", math.nan)
    crashed = ran("lora", 9.0, outcome="error", reason="the training crashed")
    made = report(ran("dora", 12.0), broken, diverged, crashed)

    assert order(*made.runs) == (["dora"], ["freeze_lower", "full", "lora"])
    text = shown(made, 200)
    assert "freeze_lower: no rank: failed trainable_set" in text
    assert "full: no rank: it was not evaluated on held-out rows before and after" in text
    assert "lora: no rank: error: the training crashed" in text


def test_memorising_is_called_by_its_name():
    """Training loss to zero, held-out perplexity up: no result to be proud of."""
    (comparison,) = comparisons(
        [ran("full", 6000.0, probe_loss_end=0.0002), ran("lora", 30.0), ran("dora", 10.0, probe_loss_end=0.01)]
    )

    assert comparison.notes == (
        "lora: overfitted: the training rows end at a loss of 1, held-out perplexity grew 1.5-fold",
        "full: memorised: the training rows end at a loss of 0.0002, held-out perplexity grew 300-fold",
    )


def test_the_table_tells_devices_and_numbers():
    """In the terminal as in the summary."""
    fallen = (
        Tried(purpose="train", device="cuda:0", outcome="out_of_memory", reason="", seconds=3.0),
        Tried(purpose="train", device="cpu", outcome="finished", reason="", seconds=70.0),
        Tried(purpose="repeat", device="cpu", outcome="finished", reason="", seconds=7.0),
    )
    made = report(ran("full", 30.0, attempts=fallen), ran("dora", 12.0))

    cells = "| 2 | full | 1,000 (25 %) | 20 → 30 | 3.000 → 1.000 | 1 min 01 s | 2.5 | 1 GiB allocator |"
    assert f"{cells} cuda:0 (out of memory) → cpu |" in summary_markdown(made)
    assert "Ranked by held-out perplexity after training" in summary_markdown(made)
    text = shown(made)
    assert all(len(line) <= 80 for line in text.splitlines()[:-1])
    assert text.index("1 dora") < text.index("2 full")


def test_a_comparison_survives_the_disk(tmp_path):
    """A number that is none included."""
    made = report(ran("full", math.nan), ran("dora", 12.0))

    again = VERDICTS.read(write_verdict(made, tmp_path))

    assert again.runs[1].entry == made.runs[1].entry
    assert math.isnan(again.runs[0].entry.heldout_loss_end)


def waiting(name):
    """A row of a comparison that this machine is too small for."""
    entry = Entry(comparison=FACTS, name=name)
    return ran(name, 1.0, outcome="skipped", reason="needs a GPU", entry=entry, losses=(), attempts=())


def test_a_comparison_that_was_skipped_is_one_row():
    """Ten times the same sentence would hide the others."""
    made = report(ran("full", 12.0, entry=None), waiting("lora"), waiting("dora"))

    assert comparisons(made.runs) == []
    assert [run.run for run in condensed(made.runs)] == [
        "strategies-seven-facts-full",
        "strategies-seven-facts, 2 runs",
    ]
    assert shown(made).count("needs a GPU") == 1
    assert summary_markdown(made).count("needs a GPU") == 1


def test_a_refused_row_goes_from_a_worker_to_its_session(tmp_path):
    """As plain data, its place in the comparison included."""
    run = shrunk(f"{FACTS}-bitfit")
    worker, session = (Rows(folder=tmp_path, too_small="skipped") for _ in range(2))
    worker.end(run, "needs a GPU", "", too_small=True)
    worker.time(run.name, 0.1)

    session.merge(json.loads(json.dumps(worker.news(run.name))))

    assert session.all()[0].entry == Entry(comparison=FACTS, name="bitfit")
