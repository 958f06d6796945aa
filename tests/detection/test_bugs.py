"""The suite's worth: real bugs, injected into real runs, fail on the check that names them; a healthy run passes."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pickle
import re
import subprocess
import sys
import textwrap
from types import ModuleType

import pytest
import tiny

from benchmarks.detection.bugs import BUGS, COHORTS, NOT_SHOWN, Bug, of_cohort
from benchmarks.detection.bugs.bug import bug
from benchmarks.detection.command import main
from benchmarks.detection.trial import QUICK, Setup, Trial, try_run
from tunecheck.checks import CHECKS
from tunecheck.config import find_run, load_run
from tunecheck.core.finding import Status
from tunecheck.core.paths import project_folder

CATALOGUE = of_cohort("catalogue")
IDS = {
    "catalogue": (
        "B01 B02 B04 B05 B06 B07 B09 B10 B12 B14 B16 B17 B18 B22 B23 B25 B26 B28 B30 B31 B35 B36 B37 B39 "
        "B41 B43 B46 B48 B50 B51 B55 B56 B58 B61 B63 B64 B65 B67 B69 B71 B72 B76 B77 B79 B80 B82 B83 B84 "
        "B86 B87 B88 B89 B91 B92 B93 B96 B97 B100 B101 B103 B110 B112 B114 B115 B116 "
        + " ".join(f"X{number:02}" for number in (*range(1, 84), *range(90, 142)))
    ),
    "unseen": " ".join(f"U{number:02}" for number in range(1, 27)),
    "blind": " ".join(f"V{number:02}" for number in range(1, 41)),
    "blind-second": " ".join(f"V{number}" for number in range(41, 81)),
    "unseen-second": " ".join(f"W{number:02}" for number in range(1, 38)),
    "unseen-third": " ".join(f"Y{number:02}" for number in range(1, 57)),
    "unseen-fourth": " ".join(f"Z{number:02}" for number in range(1, 51)),
    "parallel": " ".join(f"D{number:02}" for number in range(1, 60)),
}
"""The ids of each cohort, frozen: results on disk name them, and a bug that vanishes would raise the score."""
COUNTS = {
    "catalogue": 200,
    "unseen": 26,
    "blind": 40,
    "blind-second": 40,
    "unseen-second": 37,
    "unseen-third": 56,
    "unseen-fourth": 50,
    "parallel": 59,
}
SHORT = ["training.max_steps=5", "training.micro_batch_size=1", "training.gradient_accumulation_steps=1"]
"""Real weights, as few steps as the probes need: one at rate 0, one before A has a gradient, three with. In precision
auto, as users get it: bf16 on a CPU with native bf16, else fp32; both must name the same bugs."""
TINY_BF16 = [*tiny.TRAINED, "training.precision=bf16"]
REAL_SETTINGS = {
    "B18": ["training.gradient_accumulation_steps=2"],
    "B26": ["training.micro_batch_size=2"],
    "X90": ["probes.generate=true"],
    "B63": [
        "evaluation.splits=[probe, heldout]",
        "checks.loss_falls.min_fall=0.001",
        "checks.heldout_improves.min_fall=0.001",
    ],
}
NAMED_ON_REAL_WEIGHTS = {
    "B23": {"first_loss_below_uniform"},
    "B63": {"loss_falls", "heldout_improves"},
    "X90": {"first_loss_below_uniform", "text_is_language"},
}
"""Checks about learning, which random weights leave unjudged."""
TRACES_ONLY = {
    "hardware_healthy": "a card",
    "card_returns_to_baseline": "a card",
    "fallback_in_order": "a card that runs out of memory; tests/runner/test_fallback_chain.py simulates one",
    "fallback_starts_fresh": "the same; trips there",
    "fallback_equals_reference": "the same; trips there",
    "vram_ceiling": "a card",
    "memory_order": "a card",
    "model_flops_utilization": "a card",
    "throughput_steady": "a card, or a machine of its own",
    "loss_keeps_falling": "a hundred steps on trained weights",
    "canary_learned": "many steps on trained weights",
    "ranks_keep_pace": "a processor that is slower than another",
    "as_expected": "an expectation that a person states; tests/listen/test_expectations.py does",
    "calls_in_order": "a loop of another's; tests/listen/test_scripts.py trips it",
}
"""Checks that no short run on a CPU can trip, and what it would take; synthetic traces do in test_checks*.py."""
ON_REAL_WEIGHTS = ["B01", "B05", "B06", "B12", "B18", "B22", "B23", "B26", "B46", "B63", "B72", "B76", "X90"]
UNQUANTIZED = {"B05", "B06", "B18", "B22", "B26", "B63", "B72"}
"""Those of rows, loss and optimizer, for which the base is the same in 4 bit and takes twice the time."""
MANY_STEPS = [*tiny.TRAINED, "training.max_steps=50", "training.gradient_accumulation_steps=1"]
"""As many as a trend needs."""


def trial(settings: list[str], bug: Bug | None = None) -> Trial:
    """Train the quick run with these settings, on the CPU in precision auto unless they say otherwise."""
    return try_run(QUICK, Setup(real=True, precision="auto"), [*settings, *(bug.settings if bug else ())], bug)


IN_BF16 = [
    "X07",
    "X61",
    "X78",
    "X117",
    "X120",
    "X135",
    "B10",
    "B56",
    "V01",
    "U03",
    "W08",
    "W12",
    "W25",
    "W28",
    "W34",
]
"""Bugs of each kind that is judged finer than bf16 rounds: in fp32 arithmetic, at the trainer's own logits, in the
averages' dtype, beside measured rounding, to the last bit."""


@pytest.mark.parametrize("id", IN_BF16)
def test_a_bug_is_named_in_bf16_too(id):
    """What a check compares sets its limit, not the precision of the run."""
    assert {*trial(TINY_BF16, BUGS[id]).failed} & {*BUGS[id].caught_by}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(SHORT, id="real", marks=pytest.mark.slow),
        pytest.param(tiny.TRAINED, id="tiny"),
        pytest.param(TINY_BF16, id="bf16"),
        pytest.param(MANY_STEPS, id="many steps"),
    ],
)
def test_a_healthy_run_passes(settings):
    """No check fails; only what random weights rule out is unjudged."""
    found = trial(settings).findings

    assert [str(f) for f in found if f.status is Status.FAILED or (not f.passed and not f.expected)] == []
    assert len(found) >= 18


def test_unusual_settings_and_rows_pass(tmp_path):
    """All at once: one step at a tiny rate, a scale of 1/64, and answers that the model has never read the like of."""
    rows = [{"instruction": f"{number}? 🐍", "response": "🦀" * (1 + number % 2)} for number in range(8)]
    for split, held in (("train", rows[2:]), ("heldout", rows[:2])):
        lines = (json.dumps(row) + "\n" for row in held)
        (tmp_path / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    settings = [
        *TINY_BF16,
        *(f"data.{split}={tmp_path / split}.jsonl" for split in ("train", "heldout")),
        *("lora.r=64", "lora.alpha=1"),
        *("training.max_steps=1", "training.warmup_ratio=0", "training.learning_rate=1e-7"),
    ]

    assert [str(f) for f in trial(settings).findings if not f.passed and not f.expected] == []


@pytest.mark.parametrize("id", ON_REAL_WEIGHTS)
@pytest.mark.slow
def test_a_bug_in_a_real_run_is_named(id):
    """The checks that name the cause fail."""
    plain = ["strategy=lora", "quantization=null"] if id in UNQUANTIZED else []
    failed = trial([*SHORT, *plain, *REAL_SETTINGS.get(id, [])], BUGS[id]).failed

    assert {*failed} >= {*BUGS[id].caught_by, *NAMED_ON_REAL_WEIGHTS.get(id, ())}


def first_for_each_check() -> list[str]:
    """Return bugs that together trip every check that any bug trips. All of them are in the committed matrix."""
    tripped: set[str] = set()
    chosen = []
    for id, known in CATALOGUE.items():
        if not tripped >= {*known.caught_by}:
            tripped |= {*known.caught_by}
            chosen.append(id)
    return chosen


@pytest.mark.parametrize("id", first_for_each_check())
def test_a_bug_in_a_tiny_run_is_named(id):
    """The same on a random two-layer model."""
    assert {*trial(tiny.TRAINED, BUGS[id]).failed} >= {*BUGS[id].caught_by}


@pytest.mark.parametrize("id", ["U11", "U19", "U22", "V76", "V80"])
def test_a_bug_that_was_unseen_once_is_named_now(id):
    """The checks were made more general for it; the others of its cohort are in the committed results."""
    assert {*trial(tiny.TRAINED, BUGS[id]).failed} & {*BUGS[id].caught_by}


def test_every_check_is_tripped_by_a_bug():
    """In a real child process; a check that nothing trips would be trusted without reason."""
    tripped = {check for bug in CATALOGUE.values() for check in bug.caught_by}
    tripped |= {check for named in NAMED_ON_REAL_WEIGHTS.values() for check in named}
    tripped |= {*BUGS["U11"].caught_by, *BUGS["V80"].caught_by, *BUGS["W12"].caught_by}
    # one of them in tests/runner/test_ranks.py, the others in the committed results
    tripped |= {check for bug in of_cohort("parallel").values() for check in bug.caught_by}

    # those of trainings that are not ours are tripped by tests/listen
    ours = {
        name
        for name, check in CHECKS.items()
        if not check.features() & {"user_code", "unknown_rows", "evaluates", "resume_declared", "pairs"}
    }
    assert tripped | TRACES_ONLY.keys() == ours
    assert not tripped & TRACES_ONLY.keys()


def test_a_leak_of_4_kib_a_step_is_measured_on_the_cpu():
    """By the bytes of live tensors, where there is no allocator to query."""
    [found] = [f for f in trial(tiny.TRAINED, BUGS["X74"]).findings if f.check == "memory_flat"]

    [slope] = re.findall(r"live tensors: .* bytes from step .*, \+([\d,]+) a step", found.detail)
    assert int(slope.replace(",", "")) == pytest.approx(4096, rel=0.1)


@pytest.mark.parametrize("cohort", COHORTS)
def test_the_rows_of_a_cohort_are_complete(cohort):
    """Functions say what they do and are found by name in a child, checks exist, settings are a run's."""
    rows = of_cohort(cohort)
    for id, row in rows.items():
        assert len(row.mechanism) > 20, id
        assert list(inspect.signature(row.inject).parameters) == ["session"], id
        assert pickle.loads(pickle.dumps(row)) == row, id
        assert set(row.caught_by) <= CHECKS.keys(), id
        assert row.caught_by, id
        assert row.tier in ("quick", "convergence"), id
        assert bool(row.must_say) == (row.cohort.startswith("blind") or row.cohort == "unseen-fourth"), id
    for settings in {row.settings for row in rows.values()}:
        load_run(find_run(QUICK), [*tiny.TRAINED, *settings])


@pytest.mark.parametrize("cohort", COHORTS)
def test_no_bug_is_lost(cohort):
    """A bug that vanishes would raise the score; a new one is added to this list."""
    assert list(of_cohort(cohort)) == IDS[cohort].split()
    assert len(of_cohort(cohort)) == COUNTS[cohort]
    assert not NOT_SHOWN.keys() & BUGS.keys()


def test_every_function_of_a_session_is_a_bug():
    """One without a decorator would never be run, and one with two would count twice."""
    injected = [bug.inject for bug in BUGS.values()]
    modules = {sys.modules[inject.__module__] for inject in injected}
    public = {
        thing
        for module in modules
        for name, thing in vars(module).items()
        if inspect.isfunction(thing) and thing.__module__ == module.__name__ and not name.startswith("_")
    }

    assert len(injected) == len(set(injected))
    assert public == set(injected)
    assert len(modules) == len({bug.subject for bug in BUGS.values()}) >= 10


@pytest.mark.parametrize(("id", "cohort"), [("B12", "catalogue"), ("B999", "friends")])
def test_an_id_is_given_once_and_a_cohort_is_known(id, cohort):
    """A second row with the same id would hide the first."""
    with pytest.raises(ValueError, match="ids are unique, cohorts are catalogue, unseen"):
        bug(id, "another", caught_by="finite", cohort=cohort)


def names_of(code):
    """Return what this code imports of tunecheck, by the names that it gives it, or gives it again."""
    imported = [node for node in ast.walk(code) if isinstance(node, ast.ImportFrom)]
    names = {}
    for node in (each for each in imported if (each.module or "").startswith("tunecheck")):
        home = importlib.import_module(node.module)
        for alias in node.names:
            part = getattr(home, alias.name, None) or importlib.import_module(f"{node.module}.{alias.name}")
            names[alias.asname or alias.name] = part
    for node in ast.walk(code):
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Name) and node.value.id in names:
            names[node.target.id] = names[node.value.id]
    return names


def test_a_bug_changes_what_is_there():
    """A name that nobody uses any more would be set to no effect, and its bug be named by no check."""
    unknown = set()
    for function in {each.inject for each in BUGS.values()}:
        code = ast.parse(textwrap.dedent(inspect.getsource(function)))
        names = names_of(code)
        for node in ast.walk(code):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
                held = names[node.value.id]
                if isinstance(held, type | ModuleType) and not hasattr(held, node.attr):
                    unknown.add(f"{function.__name__}: {node.value.id}.{node.attr}")
    assert unknown == set()


def test_the_catalogue_is_read_without_torch():
    """Listing it takes a moment."""
    code = "import sys, benchmarks.detection.command; print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=project_folder()
    )

    assert result.stdout.strip() == "False"


def test_the_catalogue_can_be_listed(capsys):
    """For a person by subject, and for a program."""
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    assert main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)

    assert "adapters: " in text
    assert "B12: LoRA scales by alpha, not alpha/r (quick: adapter_algebra)" in text
    assert f"not shown: {len(NOT_SHOWN)}" in text
    assert [row["id"] for row in listed["bugs"]] == list(CATALOGUE)
    assert listed["not_shown"] == NOT_SHOWN
    assert "X120: Dropout does not scale (quick with lora.dropout=0.1: dropout_varies)" in text
    assert all(row["does"] and row["subject"] for row in listed["bugs"])
    assert main(["list", "--of", "unseen"]) == 0
    assert "U01" in capsys.readouterr().out


def test_a_bug_can_be_run_beside_a_healthy_run(capsys):
    """The output names the check, and the status says whether it was the expected one."""
    assert main(["run", "X46"]) == 0
    text = capsys.readouterr().out

    assert "healthy: nothing failed" in text
    assert "broken: learning_rate_trace" in text
    assert "first: learning_rate_trace: step " in text
    assert "named, expected learning_rate_trace" in text


def test_a_bug_that_does_not_exist_is_a_usage_error(capsys):
    """The message says how to list those that do."""
    assert main(["run", "B999"]) == 4
    assert "no bug is called 'B999': `python -m benchmarks.detection list` lists them" in capsys.readouterr().err
