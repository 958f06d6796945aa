"""The records a trace is made of: what was measured, never what it means. The checks decide that.

Plain frozen data, no tensors. A new probe adds its record to the file of its subject; `RECORDS` is derived from the
subclasses. Names carry units; `_error` is a relative error unless the name says otherwise.
"""

from __future__ import annotations

from suite.core.evidence.attempts import (
    AttemptCause,
    AttemptEnd,
    AttemptOutcome,
    AttemptPurpose,
    AttemptReason,
    AttemptStart,
    MemoryVariant,
    RunHeader,
    from_schema_3,
    outcome_words,
)
from suite.core.evidence.card import CardProcess, DeviceSample, Health, Telemetry
from suite.core.evidence.data import DataSplit, Window
from suite.core.evidence.evaluation import (
    Evaluation,
    EvaluationAudit,
    Generation,
    Merged,
    ReadBack,
    Resumed,
    RoundTrip,
    TrainerState,
)
from suite.core.evidence.parallel import Replica, Saved
from suite.core.evidence.record import Record
from suite.core.evidence.resources import (
    TRAINING_PHASES,
    LiveTensors,
    Phase,
    ProbeFailed,
    ProbeTimes,
    Released,
    StepTimes,
)
from suite.core.evidence.setup import (
    AdapterDropout,
    AdapterStart,
    BaseFidelity,
    Beginning,
    Census,
    Dataset,
    ForwardPaths,
    ForwardReference,
    Quantization,
    Setup,
    Weights,
)
from suite.core.evidence.training import (
    AdapterEffect,
    CallOrder,
    Continuity,
    CurrentWeights,
    Gradients,
    LayerCalls,
    LayerGradients,
    Movement,
    Oracle,
    OwnLoss,
    Recomputation,
    Step,
    Trained,
    TrainingState,
    Update,
    WeightGradient,
)
from suite.core.evidence.watched import EvaluationSeen, Logged, NotJudged, Rates, RowsGiven, UserCode

__all__ = [
    "RECORDS",
    "TRAINING_PHASES",
    "AdapterDropout",
    "AdapterEffect",
    "AdapterStart",
    "AttemptCause",
    "AttemptEnd",
    "AttemptOutcome",
    "AttemptPurpose",
    "AttemptReason",
    "AttemptStart",
    "BaseFidelity",
    "Beginning",
    "CallOrder",
    "CardProcess",
    "Census",
    "Continuity",
    "CurrentWeights",
    "DataSplit",
    "Dataset",
    "DeviceSample",
    "Evaluation",
    "EvaluationAudit",
    "EvaluationSeen",
    "ForwardPaths",
    "ForwardReference",
    "Generation",
    "Gradients",
    "Health",
    "LayerCalls",
    "LayerGradients",
    "LiveTensors",
    "Logged",
    "MemoryVariant",
    "Merged",
    "Movement",
    "NotJudged",
    "Oracle",
    "OwnLoss",
    "Phase",
    "ProbeFailed",
    "ProbeTimes",
    "Quantization",
    "Rates",
    "ReadBack",
    "Recomputation",
    "Record",
    "Released",
    "Replica",
    "Resumed",
    "RoundTrip",
    "RowsGiven",
    "RunHeader",
    "Saved",
    "Setup",
    "Step",
    "StepTimes",
    "Telemetry",
    "Trained",
    "TrainerState",
    "TrainingState",
    "Update",
    "UserCode",
    "WeightGradient",
    "Weights",
    "Window",
    "from_schema_3",
    "outcome_words",
]

RECORDS: dict[str, type[Record]] = {kind.__name__: kind for kind in Record.__subclasses__()}
"""Every kind of record by its name in the file."""
