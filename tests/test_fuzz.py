"""Whatever is typed or lies in a file: a message and a status of docs/cli.md's table, no traceback and no hang.

A fixed budget of examples, the same ones in every run; $TUNECHECK_FUZZ=50 makes it fifty times as large. hypothesis is
of the extra `dev`, and without it nothing here runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
from pathlib import Path
from unittest.mock import patch

import pytest

pytest.importorskip("hypothesis")

import traces
from fuzzing import TEXT, VALUES, mutated
from history_entries import KEY, entry
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sessions import session

from tunecheck.cli import main
from tunecheck.config.schema import Run, Training
from tunecheck.core import records
from tunecheck.core.errors import SuiteError
from tunecheck.core.trace import encode
from tunecheck.history.baseline import baseline_file
from tunecheck.history.store import Store, history_file
from tunecheck.results.stored import write_verdict
from tunecheck.training.data import read_rows

FACTOR = int(os.environ.get("TUNECHECK_FUZZ", "1"))
STATUSES = {0, 1, 2, 4, 5, 6, 7}
RUN = "quick/smollm2-135m-qlora"
BASELINE = {
    "schema": 1,
    "run": RUN,
    "key": dataclasses.asdict(KEY),
    "accepted_at": "2026-11-01",
    "versions": {"torch": "2.13.0"},
    "figures": {"probe_loss": {"median": 6.2, "deviation": 0.1, "sessions": 9}},
}
HEALTHY = traces.healthy()
LINES = [json.loads(encode(HEALTHY.header))] + [
    json.loads(encode(record))
    for attempt in HEALTHY.attempts
    for record in (attempt.start, *attempt.records, attempt.end)
]
ARCHITECTURE = ("head_dim", "attention_bias", "mlp_bias", "initializer_range", "num_attention_heads", "model_type")
KEYS = (
    *Run.model_fields,
    *(f"training.{key}" for key in Training.model_fields),
    *(f"model.architecture.{key}" for key in ARCHITECTURE),
    *("lora.r", "lora.target_modules", "data.canary", "model.sources", "checks.loss_falls", "evaluation.rows"),
    *("compare", ""),
)


def budget(examples: int):
    """So many examples, always the same, without a database of former ones."""
    return settings(
        max_examples=examples * FACTOR,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )


def command(*arguments: str) -> None:
    """Run the command; it has to end with a status of the table, and never with its last resort."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        try:
            status = main(list(arguments))
        except SystemExit as end:  # argparse's
            status = end.code
    assert status in STATUSES, (arguments, shown.getvalue())
    assert "an error of tunecheck itself" not in shown.getvalue(), (arguments, shown.getvalue())
    assert "Traceback" not in shown.getvalue(), (arguments, shown.getvalue())


def dumped(value) -> str:
    """The value as JSON, which YAML reads too."""
    return json.dumps(value)


@budget(120)
@given(st.sampled_from(KEYS), VALUES | TEXT)
@pytest.mark.slow
def test_any_value_of_any_key(key, value):
    """As --set has it: typed as JSON, or as it is."""
    command("show", RUN, "--set", f"{key}={value if isinstance(value, str) else dumped(value)}")


CONFIG = {
    "model": "smollm2-135m",
    "data": "rust-python-facts",
    "strategy": "qlora",
    "quantization": {"quant_type": "nf4", "double_quant": True},
    "lora": {"r": 8, "alpha": 16, "target_modules": ["q_proj", "v_proj"]},
    "training": {"max_steps": 10, "micro_batch_size": 2, "gradient_accumulation_steps": 2, "learning_rate": 2e-4},
    "evaluation": {"rows": 2, "batch_size": 1},
    "probes": {"oracle_steps": [-2, -1]},
    "checks": {"loss_falls": {"min_fall": 0.1}, "finite": "off"},
    "compare": {"lora": {}, "full": {"training.learning_rate": 1e-5}},
    "deadline": "10min",
}


@budget(50)
@given(mutated(CONFIG))
def test_any_configuration(stores, config):
    """A file of a run, or of several, with some of its parts replaced."""
    path = os.path.join(os.path.dirname(next(stores)), "fuzz", "quick")
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, "run.yaml"), "w", encoding="utf-8", errors="surrogatepass") as file:
        file.write(dumped(config))
    command("show", os.path.join(path, "run.yaml"))


@budget(25)
@given(st.binary(max_size=200) | TEXT.map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_as_a_configuration(stores, content):
    """Whatever lies there."""
    path = os.path.join(os.path.dirname(next(stores)), "fuzz", "quick")
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, "bytes.yaml"), "wb") as file:
        file.write(content)
    command("show", os.path.join(path, "bytes.yaml"))


@budget(60)
@given(st.integers(0, len(LINES) - 1).flatmap(lambda at: st.tuples(st.just(at), mutated(LINES[at]))))
@pytest.mark.slow
def test_any_trace(stores, change):
    """One record of a healthy trace with some of its parts replaced: to judge, and in a session's folder."""
    at, record = change
    folder = next(stores).parent / "fuzz-trace"
    folder.mkdir(exist_ok=True)
    lines = [*LINES[:at], record, *LINES[at + 1 :]]
    trace = folder / "trace.jsonl"
    trace.write_text("".join(dumped(line) + "\n" for line in lines))
    for words in (["judge", trace], ["explain", trace], ["compare", trace, trace], ["page", folder]):
        command(*map(str, words))
    command("rows", str(trace))


@budget(30)
@given(st.data())
def test_any_verdict(stores, data):
    """A verdict with some of its parts replaced: what the page and the table of fallback steps read."""
    folder = next(stores).parent / "fuzz-verdict"
    folder.mkdir(exist_ok=True)
    whole = folder / "whole.json"
    if not whole.exists():
        write_verdict(session(folder, HEALTHY), folder).rename(whole)
        (folder / "run-0.jsonl").unlink()
    payload = data.draw(mutated(json.loads(whole.read_text())))
    (folder / "verdict.json").write_text(dumped(payload))
    command("page", str(folder))


@budget(40)
@given(mutated(BASELINE))
def test_any_baseline(stores, held):
    """An accepted baseline with some of its parts replaced: shown, and what a session is held against."""
    folder = next(stores).parent / "baselines"
    path = baseline_file(folder, RUN, KEY.device)
    folder.mkdir(exist_ok=True)
    path.write_text(dumped(held))
    Store(history_file()).add([dataclasses.replace(entry(1), run=RUN)])
    with patch.dict(os.environ, {"TUNECHECK_BASELINES": str(folder)}):
        command("baseline", "show")
        command("baseline", "diff", RUN)


ROW = {"instruction": "What is 2 + 2?", "response": "4"}


@budget(80)
@given(mutated([ROW, ROW]) | VALUES)
def test_any_rows(stores, rows):
    """They are rows, or an error with file and line."""
    path = next(stores).parent / "rows.jsonl"
    lines = rows if isinstance(rows, list) else [rows]
    path.write_text("".join(dumped(row) + "\n" for row in lines))
    for reader in (lambda: read_rows(path, "train"), lambda: records.read_records(path, *records.TEXT)):
        with contextlib.suppress(SuiteError):
            reader()


WORDS = (
    "list",
    "show",
    "run",
    "judge",
    "rows",
    "page",
    "history",
    "baseline",
    "fallback-table",
    "doctor",
    "estimate",
    "strategies",
    RUN,
    "--json",
    "--set",
    "--tier",
    "--vram-cap",
    "--card",
    "-k",
    "-n",
    "quick",
    "--help",
    "--version",
    "--needs",
    "--rebuild",
)


@budget(80)
@given(st.lists(st.sampled_from(WORDS) | TEXT, max_size=4))
def test_any_command_line(words):
    """Nothing is trained and nothing is fetched: pytest and what measures the machine are left out."""
    with (
        patch("tunecheck.cli.run._run", lambda options: 0),
        patch("tunecheck.cli.runs._estimate", lambda options: 0),
        patch("tunecheck.cli.runs._needs", lambda runs, cap: None),
        patch("tunecheck.cli.runs._doctor", lambda options: 0),
    ):
        command(*[word.replace("\x00", "") for word in words])


OWN = {
    "models/mine.yaml": {"parameters": 1, "architecture": {"model_type": "llama", "vocab_size": 512}, "sources": [{}]},
    "data/mine.yaml": {"train": "mine/train.jsonl", "heldout": "mine/heldout.jsonl", "hub": {"id": "a"}, "canary": {}},
    "cards/mine.yaml": {"at_least": "40GiB", "run": {"strategy": "full", "lora": None, "training": {"max_steps": 3}}},
    "quick/mine.yaml": {**CONFIG, "model": "mine", "data": "mine", "tier": "quick"},
}


@budget(60)
@given(st.sampled_from(sorted(OWN)).flatmap(lambda name: st.tuples(st.just(name), mutated(OWN[name]))))
@pytest.mark.slow
def test_any_file_of_ones_own(stores, change):
    """A model, a data set, a card class or a run of a user's folder, with some of its parts replaced."""
    folder = Path(next(stores)).parent / "own"
    for name, held in {**OWN, change[0]: change[1]}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dumped(held))
    with patch.dict(os.environ, {"TUNECHECK_CONFIGS": str(folder)}):
        command("show", "quick/mine", "--card", "mine")
        command("show", RUN, "--card", "mine")
        command("list")
