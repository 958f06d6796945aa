"""The run in a trace, typed: what the configuration says, and what damaged headers lack."""

from __future__ import annotations

import dataclasses

import pytest
from traces import RUN, healthy

from tunecheck.config import load_run, run_sources
from tunecheck.core import snapshot
from tunecheck.core.errors import MissingEvidence
from tunecheck.core.snapshot import RunSnapshot, changed

SETTINGS = healthy().settings
WATCHED_ALONE = {
    "unmatched",
    "schedule_steps",
    "first_step",
    "warmup_steps",
    "use_cache",
    "resume_steps",
    "resumed_rate",
}
"""Fields of trainings that are not ours, which no configuration has."""
SECTIONS = {
    "training": snapshot.TrainingSnapshot,
    "lora": snapshot.LoraSnapshot,
    "quantization": snapshot.QuantizationSnapshot,
}
FLAT = ("evaluated", "evaluated_at", "repeat_steps", "resume_from", "rescale_to", "processes", "parameters")
"""Keys of other sections, each by itself."""


def test_it_says_what_the_configuration_says() -> None:
    """Every field of every section, lists as tuples."""
    run = RunSnapshot(SETTINGS)

    for name, kind in SECTIONS.items():
        given, section = SETTINGS[name], getattr(run, name)
        for field in dataclasses.fields(kind):
            if field.name in WATCHED_ALONE:
                continue
            value = given[field.name]
            assert getattr(section, field.name) == (tuple(value) if isinstance(value, list) else value)
    assert (run.architecture.num_hidden_layers, run.layers, run.model) == (2, 2, RUN.model.name)
    assert (run.evaluated, run.evaluated_at) == (tuple(RUN.evaluation.splits), tuple(RUN.evaluation.at))
    assert (run.repeat_steps, run.resume_from) == (RUN.probes.repeat_steps, RUN.probes.resume_from)
    assert (run.rescale_to, run.processes) == (tuple(RUN.probes.rescale_to), RUN.processes)
    assert (run.id, run.tier, run.name) == (RUN.id, RUN.tier, RUN.name)
    assert (run.features, dict(run.checks)) == (RUN.features, RUN.checks)
    assert (run.device, run.fallback, run.strategy) == (RUN.device, tuple(RUN.fallback), RUN.strategy)
    assert run.rows_per_step == 4


@pytest.mark.parametrize("source", run_sources(), ids=lambda source: source.name)
def test_defaults_are_those_of_the_configuration(source) -> None:
    """A key that a header lacks has the default that every run has."""
    run = load_run(source)
    written = RunSnapshot({**run.model_dump(mode="json"), "features": sorted(run.features)})
    short = run.model_dump(mode="json", exclude_defaults=True, exclude_unset=True)
    sparse = RunSnapshot({**short, "features": sorted(run.features)})

    for name in ("training", "lora", "quantization", *FLAT, "device", "fallback", "entry"):
        assert getattr(sparse, name) == getattr(written, name)


def test_keys_of_newer_versions_are_left_alone() -> None:
    """They are no business of today's checks."""
    newer = changed(SETTINGS, {"training.from_the_future": 3})

    assert RunSnapshot(newer).training == RunSnapshot(SETTINGS).training


def test_what_a_damaged_header_lacks_is_missing_evidence() -> None:
    """By its dotted key; the other sections can be read."""
    training = {key: value for key, value in SETTINGS["training"].items() if key != "max_steps"}
    run = RunSnapshot({**SETTINGS, "training": training, "model": None, "lora": None})

    with pytest.raises(MissingEvidence, match=r"lacks training\.max_steps"):
        _ = run.training
    with pytest.raises(MissingEvidence, match="lacks model"):
        _ = run.model
    with pytest.raises(MissingEvidence, match="lacks tier"):
        _ = RunSnapshot({}).tier
    assert run.lora is None
    assert run.repeat_steps == RunSnapshot(SETTINGS).repeat_steps


def test_it_is_frozen() -> None:
    """A check that changed a setting would change what the next one judges."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunSnapshot(SETTINGS).training.max_steps = 1  # type: ignore[misc]


def test_changes_leave_the_settings_as_they_are() -> None:
    """Dotted paths and whole sections."""
    made = changed(SETTINGS, {"training.offload": "parameters", "lora": None})

    assert (made["training"]["offload"], made["lora"]) == ("parameters", None)
    assert SETTINGS["training"]["offload"] == "none"
    assert SETTINGS["lora"] is not None
