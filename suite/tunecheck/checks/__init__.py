"""The table of checks, in the order of a training. One file per subject; a key is its class name in snake case."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from tunecheck.checks.adapters import (
    AdapterAlgebra,
    AdaptersApplied,
    AdaptersStartNeutral,
    AdaptersStartRandom,
    DropoutVaries,
)
from tunecheck.checks.data import BatchesDiffer, HeldoutIsDisjoint, RowOrder, SupervisedTokens, TokensMatchTemplate
from tunecheck.checks.device import (
    AttentionAsAsked,
    CheckpointingAsAsked,
    DeviceAsAsked,
    DtypesAsAsked,
    HardwareHealthy,
    MatmulPrecision,
)
from tunecheck.checks.evaluation import EvaluationMode, EvaluationOracle, GenerationIsGreedy, PerplexityBelowVocabulary
from tunecheck.checks.expected import AsExpected
from tunecheck.checks.fallback import FallbackEqualsReference, FallbackInOrder, FallbackStartsFresh
from tunecheck.checks.forward import (
    FirstLossBelowUniform,
    ForwardDeterministic,
    ForwardMatchesArchitecture,
    RowsIsolated,
)
from tunecheck.checks.gradients import (
    AccumulationOracle,
    Finite,
    GradientMatchesLoss,
    GradientNormReported,
    GradientsCleared,
    LoraGradientSchedule,
    LossOracle,
    RecomputationEquals,
    WeightGradients,
)
from tunecheck.checks.handed import LossIsDivided, ScoresUnnormalised, StateFits, WorkersDiffer
from tunecheck.checks.learning import (
    CanaryLearned,
    HeldoutImproves,
    LossFalls,
    LossKeepsFalling,
    LossMoves,
    TextIsLanguage,
)
from tunecheck.checks.memory import (
    CardReturnsToBaseline,
    LiveTensorsFlat,
    MemoryFlat,
    MemoryOrder,
    MemoryReturned,
    VramCeiling,
)
from tunecheck.checks.model import (
    BaseMatchesFile,
    BaseUntouched,
    ChangedByStepsAlone,
    KernelAgrees,
    ParametersCounted,
    QuantizationAsAsked,
    StateInTraining,
    TrainableSet,
    WeightsInUse,
)
from tunecheck.checks.optimizer import (
    LearningRateTrace,
    OptimizerCoverage,
    StepsApplied,
    TrainableMoved,
    UpdatesMatchAdamw,
)
from tunecheck.checks.order import CallsInOrder
from tunecheck.checks.parallel import (
    DropoutDiffersByRank,
    RanksKeepPace,
    RanksReportAlike,
    ReplicasEqual,
    RowsTrainedOnce,
    SavedByOneRank,
    ShardsEven,
)
from tunecheck.checks.positions import PaddingUnlearned, TargetsUnread
from tunecheck.checks.rows import AnswersEnd, BatchAsDeclared, MaskAndPositions, PairsDiffer
from tunecheck.checks.saving import (
    AdapterReadsBack,
    AdapterRoundTrip,
    MergeKeepsFunction,
    RepeatEquals,
    RescaleEquals,
    ResumeEquals,
)
from tunecheck.checks.speed import ModelFlopsUtilization, SecondsReported, ThroughputSteady
from tunecheck.checks.watched import (
    EvaluationReported,
    ExportReadsBack,
    LabelsAsDeclared,
    LossLogged,
    RatesAsDeclared,
    ResumedAsDeclared,
    RowsComeOnce,
    RowsWhole,
)
from tunecheck.checks.writes import SavedAsTrained
from tunecheck.core.check import Check

CHECKS: dict[str, type[Check]] = {
    "hardware_healthy": HardwareHealthy,
    "device_as_asked": DeviceAsAsked,
    "fallback_in_order": FallbackInOrder,
    "fallback_starts_fresh": FallbackStartsFresh,
    "dtypes_as_asked": DtypesAsAsked,
    "attention_as_asked": AttentionAsAsked,
    "checkpointing_as_asked": CheckpointingAsAsked,
    "trainable_set": TrainableSet,
    "parameters_counted": ParametersCounted,
    "optimizer_coverage": OptimizerCoverage,
    "quantization_as_asked": QuantizationAsAsked,
    "base_matches_file": BaseMatchesFile,
    "state_fits": StateFits,
    "kernel_agrees": KernelAgrees,
    "matmul_precision": MatmulPrecision,
    "forward_deterministic": ForwardDeterministic,
    "forward_matches_architecture": ForwardMatchesArchitecture,
    "rows_isolated": RowsIsolated,
    "first_loss_below_uniform": FirstLossBelowUniform,
    "adapters_start_neutral": AdaptersStartNeutral,
    "adapters_start_random": AdaptersStartRandom,
    "adapter_algebra": AdapterAlgebra,
    "heldout_is_disjoint": HeldoutIsDisjoint,
    "tokens_match_template": TokensMatchTemplate,
    "supervised_tokens": SupervisedTokens,
    "batches_differ": BatchesDiffer,
    "row_order": RowOrder,
    "resumed_as_declared": ResumedAsDeclared,
    "rows_trained_once": RowsTrainedOnce,
    "mask_and_positions": MaskAndPositions,
    "labels_as_declared": LabelsAsDeclared,
    "batch_as_declared": BatchAsDeclared,
    "rows_come_once": RowsComeOnce,
    "workers_differ": WorkersDiffer,
    "rows_whole": RowsWhole,
    "answers_end": AnswersEnd,
    "pairs_differ": PairsDiffer,
    "padding_unlearned": PaddingUnlearned,
    "targets_unread": TargetsUnread,
    "as_expected": AsExpected,
    "dropout_varies": DropoutVaries,
    "dropout_differs_by_rank": DropoutDiffersByRank,
    "gradients_cleared": GradientsCleared,
    "calls_in_order": CallsInOrder,
    "state_in_training": StateInTraining,
    "scores_unnormalised": ScoresUnnormalised,
    "loss_is_divided": LossIsDivided,
    "loss_oracle": LossOracle,
    "loss_logged": LossLogged,
    "accumulation_oracle": AccumulationOracle,
    "weight_gradients": WeightGradients,
    "gradient_matches_loss": GradientMatchesLoss,
    "recomputation_equals": RecomputationEquals,
    "lora_gradient_schedule": LoraGradientSchedule,
    "replicas_equal": ReplicasEqual,
    "shards_even": ShardsEven,
    "gradient_norm_reported": GradientNormReported,
    "ranks_report_alike": RanksReportAlike,
    "rates_as_declared": RatesAsDeclared,
    "learning_rate_trace": LearningRateTrace,
    "steps_applied": StepsApplied,
    "loss_moves": LossMoves,
    "updates_match_adamw": UpdatesMatchAdamw,
    "finite": Finite,
    "trainable_moved": TrainableMoved,
    "base_untouched": BaseUntouched,
    "changed_by_steps_alone": ChangedByStepsAlone,
    "weights_in_use": WeightsInUse,
    "evaluation_oracle": EvaluationOracle,
    "evaluation_reported": EvaluationReported,
    "evaluation_mode": EvaluationMode,
    "perplexity_below_vocabulary": PerplexityBelowVocabulary,
    "adapters_applied": AdaptersApplied,
    "saved_by_one_rank": SavedByOneRank,
    "adapter_round_trip": AdapterRoundTrip,
    "adapter_reads_back": AdapterReadsBack,
    "merge_keeps_function": MergeKeepsFunction,
    "export_reads_back": ExportReadsBack,
    "saved_as_trained": SavedAsTrained,
    "live_tensors_flat": LiveTensorsFlat,
    "memory_flat": MemoryFlat,
    "vram_ceiling": VramCeiling,
    "memory_order": MemoryOrder,
    "seconds_reported": SecondsReported,
    "throughput_steady": ThroughputSteady,
    "ranks_keep_pace": RanksKeepPace,
    "model_flops_utilization": ModelFlopsUtilization,
    "memory_returned": MemoryReturned,
    "card_returns_to_baseline": CardReturnsToBaseline,
    "loss_falls": LossFalls,
    "loss_keeps_falling": LossKeepsFalling,
    "heldout_improves": HeldoutImproves,
    "generation_is_greedy": GenerationIsGreedy,
    "text_is_language": TextIsLanguage,
    "canary_learned": CanaryLearned,
    "fallback_equals_reference": FallbackEqualsReference,
    "repeat_equals": RepeatEquals,
    "resume_equals": ResumeEquals,
    "rescale_equals": RescaleEquals,
}
"""In the order of a training, so that the first failure of a report is the nearest to the cause."""


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
