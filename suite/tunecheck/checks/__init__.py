"""The table of checks, in the order of a training. One file per subject; a key is its class name in snake case."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from tunecheck.checks import (
    adapters,
    data,
    device,
    evaluation,
    fallback,
    forward,
    gradients,
    habits,
    handed,
    learning,
    memory,
    model,
    optimizer,
    order,
    parallel,
    positions,
    rows,
    saving,
    speed,
    watched,
)
from tunecheck.core.check import Check
from tunecheck.core.extensions import EXTENSION_CHECKS, extensions

_TABLE: tuple[tuple[str, tuple[type[Check], ...]], ...] = (
    (
        "machine",
        (
            device.HardwareHealthy,
            device.DeviceAsConfigured,
            fallback.FallbackInOrder,
            fallback.FallbackStartsFresh,
            device.DtypesAsConfigured,
            device.AttentionAsConfigured,
            device.CheckpointingAsConfigured,
        ),
    ),
    (
        "what learns",
        (
            model.TrainableSet,
            model.ParametersCounted,
            optimizer.OptimizerCoverage,
        ),
    ),
    (
        "base",
        (
            model.QuantizationAsConfigured,
            model.BaseMatchesFile,
            handed.StateDictKeysMatch,
            model.KernelAgrees,
            device.MatmulPrecision,
        ),
    ),
    (
        "forward",
        (
            forward.ForwardDeterministic,
            forward.ForwardMatchesArchitecture,
            forward.RowsIsolated,
            forward.FirstLossBelowUniform,
        ),
    ),
    (
        "adapters",
        (
            adapters.AdaptersStartNeutral,
            adapters.AdaptersStartRandom,
            adapters.AdapterAlgebra,
        ),
    ),
    (
        "rows",
        (
            data.HeldoutIsDisjoint,
            data.TokensMatchTemplate,
            data.SupervisedTokens,
            data.BatchesDiffer,
            data.RowOrder,
            watched.ResumedAsConfigured,
            parallel.RowsTrainedOnce,
            parallel.EpochsShuffled,
            rows.MaskAndPositions,
            watched.LabelsAsConfigured,
            rows.BatchAsConfigured,
            watched.RowsComeOnce,
            habits.BatchesChange,
            handed.WorkersDiffer,
            watched.RowsWhole,
            rows.AnswersEnd,
            rows.PairsDiffer,
            positions.NoLossOnPadding,
            positions.NoTargetLeakage,
            watched.AsExpected,
        ),
    ),
    (
        "forward",
        (
            adapters.DropoutVaries,
            habits.RandomnessVaries,
            parallel.DropoutDiffersByRank,
        ),
    ),
    (
        "gradients",
        (
            gradients.GradientsCleared,
            order.CallsInOrder,
        ),
    ),
    ("forward", (model.StateInTraining,)),
    (
        "loss",
        (
            handed.LossReceivesLogits,
            handed.LossNormalisedOverAccumulation,
            gradients.LossOracle,
            watched.LossLogged,
            gradients.AccumulationOracle,
            gradients.GradientsAveraged,
        ),
    ),
    (
        "gradients",
        (
            gradients.WeightGradients,
            gradients.GradientMatchesLoss,
            gradients.RecomputationEquals,
            gradients.LoraGradientSchedule,
            parallel.ReplicasEqual,
            parallel.ShardsEven,
            gradients.GradientNormReported,
            habits.ClippingLeavesGradients,
            parallel.RanksReportAlike,
        ),
    ),
    (
        "optimizer",
        (
            watched.RatesAsConfigured,
            optimizer.LearningRateTrace,
            habits.ScheduleEnds,
            optimizer.StepsApplied,
            learning.LossMoves,
            optimizer.UpdatesMatchAdamw,
            gradients.Finite,
            optimizer.TrainableMoved,
        ),
    ),
    (
        "base",
        (
            model.BaseUntouched,
            model.WeightsChangeOnlyInSteps,
            model.WeightsInUse,
        ),
    ),
    (
        "evaluation",
        (
            habits.EvaluationRowsUnseen,
            evaluation.EvaluationOracle,
            watched.EvaluationReported,
            evaluation.EvaluationMode,
            evaluation.PerplexityBelowVocabulary,
        ),
    ),
    ("adapters", (adapters.AdaptersApplied,)),
    (
        "saving",
        (
            parallel.SavedByOneRank,
            saving.AdapterRoundTrip,
            saving.AdapterReadsBack,
            saving.MergeKeepsFunction,
            watched.ExportReadsBack,
            saving.SavedAsTrained,
        ),
    ),
    (
        "memory",
        (
            memory.LiveTensorsFlat,
            memory.MemoryFlat,
            memory.VramCeiling,
            memory.MemoryOrder,
        ),
    ),
    (
        "speed",
        (
            speed.SecondsReported,
            speed.ThroughputSteady,
            parallel.RanksKeepPace,
            speed.ModelFlopsUtilization,
        ),
    ),
    (
        "memory",
        (
            memory.MemoryReturned,
            memory.CardReturnsToBaseline,
        ),
    ),
    (
        "learning",
        (
            learning.LossFalls,
            learning.LossKeepsFalling,
            learning.HeldoutImproves,
        ),
    ),
    (
        "learning",
        (
            evaluation.GenerationIsGreedy,
            learning.TextIsLanguage,
            learning.CanaryLearned,
            fallback.FallbackEqualsReference,
        ),
    ),
    (
        "repeats",
        (
            saving.RepeatEquals,
            saving.ResumeEquals,
            saving.RescaleEquals,
        ),
    ),
)
"""Subject to checks, in the order of a training, so that the first failure of a report is the nearest to the cause."""
_ALL = [*((subject, check) for subject, checks in _TABLE for check in checks), *extensions(EXTENSION_CHECKS)]
CHECKS: dict[str, type[Check]] = {check.key(): check for _, check in _ALL}
SUBJECTS: dict[str, str] = {check.key(): subject for subject, check in _ALL}
"""Check to what it is about, in the words of a verdict."""


def asked_of(features: Collection[str], settings: Mapping[str, Any]) -> dict[str, Check]:
    """Return every check that applies to a run with these features, with its limits, in the table's order.

    `settings` maps a check to its limits, or to "off". Raises ValueError for a check that does not exist or does not
    apply to the run.
    """
    problems = [problem for name in settings if (problem := problem_with(name, features))]
    if problems:
        raise ValueError("; ".join(problems))
    return {
        name: check(**(settings.get(name) or {}))
        for name, check in CHECKS.items()
        if check.applies_to <= set(features) and settings.get(name) != "off" and (name in settings or not check.opt_in)
    }


def problem_with(name: str, features: Collection[str]) -> str | None:
    """Return why this check does not apply to a run with these features, in a sentence; None when it does."""
    if name not in CHECKS:
        close = difflib.get_close_matches(name, CHECKS, n=1)
        known = f"did you mean {close[0]!r}?" if close else f"known checks: {', '.join(sorted(CHECKS))}"
        return f"no check is called {name!r}: {known}"
    if lacking := sorted(CHECKS[name].applies_to - set(features)):
        return f"check {name!r} does not apply to this run: it has no {', '.join(lacking)}"
    return None
