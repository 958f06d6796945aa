"""The table of checks, in the order of a training. One file per subject; a key is its class name in snake case."""

from collections.abc import Collection, Mapping
from typing import Any

from tunecheck.checks import (
    adapters,
    data,
    device,
    evaluation,
    forward,
    gradients,
    habits,
    handed,
    learning,
    memory,
    model,
    optimizer,
    oracles,
    order,
    parallel,
    positions,
    rows,
    saving,
    speed,
    watched,
)
from tunecheck.core.check import NAMED, Check
from tunecheck.core.extensions import EXTENSION_CHECKS, extensions
from tunecheck.core.spelling import nearest

_SUBJECT_OF: dict[type[Check], str] = {
    device.HardwareHealthy: "machine",
    device.DeviceAsConfigured: "machine",
    memory.FallbackInOrder: "machine",
    memory.FallbackStartsFresh: "machine",
    device.DtypesAsConfigured: "machine",
    gradients.Fp16GradientsScaled: "machine",
    device.AttentionAsConfigured: "machine",
    device.CheckpointingAsConfigured: "machine",
    model.TrainableSet: "what learns",
    model.ParametersCounted: "what learns",
    optimizer.OptimizerCoverage: "what learns",
    model.QuantizationAsConfigured: "base",
    habits.UsualTensorsLearn: "base",
    model.BaseMatchesFile: "base",
    handed.StateDictKeysMatch: "base",
    model.KernelAgrees: "base",
    device.MatmulPrecision: "base",
    forward.ForwardDeterministic: "forward",
    forward.ForwardMatchesArchitecture: "forward",
    forward.RowsIsolated: "forward",
    forward.FirstLossBelowUniform: "forward",
    adapters.AdaptersStartNeutral: "adapters",
    adapters.AdaptersStartRandom: "adapters",
    adapters.AdapterAlgebra: "adapters",
    data.HeldoutIsDisjoint: "rows",
    data.TokensMatchTemplate: "rows",
    data.SupervisedTokens: "rows",
    data.BatchesDiffer: "rows",
    data.RowOrder: "rows",
    watched.ResumedAsConfigured: "rows",
    parallel.RowsTrainedOnce: "rows",
    parallel.EpochsShuffled: "rows",
    rows.MaskAndPositions: "rows",
    watched.LabelsAsConfigured: "rows",
    rows.BatchAsConfigured: "rows",
    watched.RowsComeOnce: "rows",
    habits.BatchesChange: "rows",
    handed.WorkersDiffer: "rows",
    watched.RowsWhole: "rows",
    rows.AnswersEnd: "rows",
    rows.WrittenAnswersEnd: "rows",
    rows.PairsDiffer: "rows",
    rows.BetterAnswersRaised: "rows",
    positions.NoLossOnPadding: "rows",
    positions.PaddingHidden: "rows",
    positions.RowsReachLoss: "rows",
    positions.NoTargetLeakage: "rows",
    watched.AsExpected: "rows",
    adapters.DropoutVaries: "forward",
    habits.RandomnessVaries: "forward",
    parallel.DropoutDiffersByRank: "forward",
    gradients.GradientsCleared: "gradients",
    order.CallsInOrder: "gradients",
    model.StateInTraining: "forward",
    handed.LossReceivesLogits: "loss",
    handed.LossNormalisedOverAccumulation: "loss",
    oracles.LossOracle: "loss",
    watched.LossLogged: "loss",
    oracles.AccumulationOracle: "loss",
    oracles.GradientsAveraged: "loss",
    gradients.WeightGradients: "gradients",
    gradients.GradientMatchesLoss: "gradients",
    gradients.RecomputationEquals: "gradients",
    gradients.LoraGradientSchedule: "gradients",
    parallel.ReplicasEqual: "gradients",
    parallel.ShardsEven: "gradients",
    gradients.GradientNormReported: "gradients",
    habits.ClippingLeavesGradients: "gradients",
    parallel.RanksReportAlike: "gradients",
    watched.RatesAsConfigured: "optimizer",
    optimizer.LearningRateTrace: "optimizer",
    habits.ScheduleEnds: "optimizer",
    optimizer.StepsApplied: "optimizer",
    learning.LossMoves: "optimizer",
    optimizer.UpdatesMatchAdamw: "optimizer",
    gradients.Finite: "optimizer",
    optimizer.TrainableMoved: "optimizer",
    model.BaseUntouched: "base",
    model.WeightsChangeOnlyInSteps: "base",
    model.WeightsInUse: "base",
    habits.EvaluationRowsUnseen: "evaluation",
    evaluation.EvaluationOracle: "evaluation",
    watched.EvaluationReported: "evaluation",
    evaluation.EvaluationMode: "evaluation",
    evaluation.PerplexityBelowVocabulary: "evaluation",
    adapters.AdaptersApplied: "adapters",
    parallel.SavedByOneRank: "saving",
    saving.AdapterRoundTrip: "saving",
    saving.AdapterReadsBack: "saving",
    saving.MergeKeepsFunction: "saving",
    watched.ExportReadsBack: "saving",
    saving.SavedAsTrained: "saving",
    habits.SettingsUsual: "learning",
    memory.LiveTensorsFlat: "memory",
    memory.MemoryFlat: "memory",
    memory.VramCeiling: "memory",
    memory.MemoryOrder: "memory",
    speed.SecondsReported: "speed",
    speed.ThroughputSteady: "speed",
    parallel.RanksKeepPace: "speed",
    speed.ModelFlopsUtilization: "speed",
    memory.MemoryReturned: "memory",
    memory.CardReturnsToBaseline: "memory",
    learning.LossFalls: "learning",
    learning.LossKeepsFalling: "learning",
    learning.HeldoutImproves: "learning",
    evaluation.GenerationIsGreedy: "learning",
    learning.TextIsLanguage: "learning",
    learning.CanaryLearned: "learning",
    memory.FallbackEqualsReference: "learning",
    saving.RepeatEquals: "repeats",
    saving.ResumeEquals: "repeats",
    saving.RescaleEquals: "repeats",
    **{check: subject for subject, check in extensions(EXTENSION_CHECKS)},
}
"""Check to its subject, in the order of a training: the first failure of a report is the nearest to the cause."""
CHECKS: dict[str, type[Check]] = {check.key(): check for check in _SUBJECT_OF}
SUBJECTS: dict[str, str] = {check.key(): subject for check, subject in _SUBJECT_OF.items()}
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
        if check.features() <= {*features, *([NAMED] if name in settings else [])} and settings.get(name) != "off"
    }


def problem_with(name: str, features: Collection[str]) -> str | None:
    """Return why this check does not apply to a run with these features, in a sentence; None when it does."""
    if name not in CHECKS:
        return f"no check is called {name!r}{nearest(name, CHECKS) or '; `tunecheck explain` lists all'}"
    if lacking := sorted(CHECKS[name].features() - {*features, NAMED}):
        return f"check {name!r} does not apply to this run: it has no {', '.join(lacking)}"
    return None
