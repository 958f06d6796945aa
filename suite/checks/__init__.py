"""The table of checks. One file a check; the file's name is the key and the class name in snake case."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from suite.check import Check
from suite.checks.accumulation_oracle import AccumulationOracle
from suite.checks.adapter_algebra import AdapterAlgebra
from suite.checks.adapter_reads_back import AdapterReadsBack
from suite.checks.adapter_round_trip import AdapterRoundTrip
from suite.checks.adapters_applied import AdaptersApplied
from suite.checks.adapters_start_neutral import AdaptersStartNeutral
from suite.checks.adapters_start_random import AdaptersStartRandom
from suite.checks.attention_as_asked import AttentionAsAsked
from suite.checks.base_matches_file import BaseMatchesFile
from suite.checks.base_untouched import BaseUntouched
from suite.checks.batches_differ import BatchesDiffer
from suite.checks.canary_learned import CanaryLearned
from suite.checks.card_returns_to_baseline import CardReturnsToBaseline
from suite.checks.checkpointing_as_asked import CheckpointingAsAsked
from suite.checks.device_as_asked import DeviceAsAsked
from suite.checks.dropout_varies import DropoutVaries
from suite.checks.dtypes_as_asked import DtypesAsAsked
from suite.checks.evaluation_mode import EvaluationMode
from suite.checks.evaluation_oracle import EvaluationOracle
from suite.checks.fallback_equals_reference import FallbackEqualsReference
from suite.checks.fallback_in_order import FallbackInOrder
from suite.checks.fallback_starts_fresh import FallbackStartsFresh
from suite.checks.finite import Finite
from suite.checks.first_loss_below_uniform import FirstLossBelowUniform
from suite.checks.forward_deterministic import ForwardDeterministic
from suite.checks.forward_matches_architecture import ForwardMatchesArchitecture
from suite.checks.generation_is_greedy import GenerationIsGreedy
from suite.checks.gradient_matches_loss import GradientMatchesLoss
from suite.checks.gradient_norm_reported import GradientNormReported
from suite.checks.hardware_healthy import HardwareHealthy
from suite.checks.heldout_improves import HeldoutImproves
from suite.checks.heldout_is_disjoint import HeldoutIsDisjoint
from suite.checks.kernel_agrees import KernelAgrees
from suite.checks.learning_rate_trace import LearningRateTrace
from suite.checks.live_tensors_flat import LiveTensorsFlat
from suite.checks.lora_gradient_schedule import LoraGradientSchedule
from suite.checks.loss_falls import LossFalls
from suite.checks.loss_keeps_falling import LossKeepsFalling
from suite.checks.loss_oracle import LossOracle
from suite.checks.matmul_precision import MatmulPrecision
from suite.checks.memory_flat import MemoryFlat
from suite.checks.memory_order import MemoryOrder
from suite.checks.memory_returned import MemoryReturned
from suite.checks.merge_keeps_function import MergeKeepsFunction
from suite.checks.model_flops_utilization import ModelFlopsUtilization
from suite.checks.optimizer_coverage import OptimizerCoverage
from suite.checks.parameters_counted import ParametersCounted
from suite.checks.perplexity_below_vocabulary import PerplexityBelowVocabulary
from suite.checks.quantization_as_asked import QuantizationAsAsked
from suite.checks.recomputation_equals import RecomputationEquals
from suite.checks.repeat_equals import RepeatEquals
from suite.checks.resume_equals import ResumeEquals
from suite.checks.row_order import RowOrder
from suite.checks.rows_isolated import RowsIsolated
from suite.checks.seconds_reported import SecondsReported
from suite.checks.steps_applied import StepsApplied
from suite.checks.supervised_tokens import SupervisedTokens
from suite.checks.text_is_language import TextIsLanguage
from suite.checks.throughput_steady import ThroughputSteady
from suite.checks.tokens_match_template import TokensMatchTemplate
from suite.checks.trainable_moved import TrainableMoved
from suite.checks.trainable_set import TrainableSet
from suite.checks.updates_match_adamw import UpdatesMatchAdamw
from suite.checks.vram_ceiling import VramCeiling
from suite.checks.weights_in_use import WeightsInUse

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
    "dropout_varies": DropoutVaries,
    "loss_oracle": LossOracle,
    "accumulation_oracle": AccumulationOracle,
    "gradient_matches_loss": GradientMatchesLoss,
    "recomputation_equals": RecomputationEquals,
    "lora_gradient_schedule": LoraGradientSchedule,
    "gradient_norm_reported": GradientNormReported,
    "learning_rate_trace": LearningRateTrace,
    "steps_applied": StepsApplied,
    "updates_match_adamw": UpdatesMatchAdamw,
    "finite": Finite,
    "trainable_moved": TrainableMoved,
    "base_untouched": BaseUntouched,
    "weights_in_use": WeightsInUse,
    "evaluation_oracle": EvaluationOracle,
    "evaluation_mode": EvaluationMode,
    "perplexity_below_vocabulary": PerplexityBelowVocabulary,
    "adapters_applied": AdaptersApplied,
    "adapter_round_trip": AdapterRoundTrip,
    "adapter_reads_back": AdapterReadsBack,
    "merge_keeps_function": MergeKeepsFunction,
    "live_tensors_flat": LiveTensorsFlat,
    "memory_flat": MemoryFlat,
    "vram_ceiling": VramCeiling,
    "memory_order": MemoryOrder,
    "seconds_reported": SecondsReported,
    "throughput_steady": ThroughputSteady,
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
}
"""In the order of a training: a report's first failure is then the nearest to the cause."""


def asked_of(features: Collection[str], settings: Mapping[str, Any]) -> dict[str, Check]:
    """Every check that applies to a run with these features, with its limits, in the table's order.

    `settings` maps a check to its limits, or to "off". Raises ValueError for a check that does not exist or
    that the run has no evidence for.
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
    """Why this check cannot be asked of a run with these features, as a sentence; None when it can."""
    if name not in CHECKS:
        close = difflib.get_close_matches(name, CHECKS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return f"no check is called {name!r}: {hint}known checks: {', '.join(sorted(CHECKS))}"
    if lacking := sorted(CHECKS[name].applies_to - set(features)):
        return f"check {name!r} cannot be asked of this run: it lacks {', '.join(lacking)}"
    return None
