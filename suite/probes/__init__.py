"""The table of probes, in the order in which they see each moment."""

from __future__ import annotations

from suite.probes.adapters import AdapterProbe
from suite.probes.call_order import CallOrderProbe
from suite.probes.census import CensusProbe
from suite.probes.continuity import ContinuityProbe
from suite.probes.data_audit import DataProbe
from suite.probes.dropout import DropoutProbe
from suite.probes.evaluation import EvaluationProbe
from suite.probes.fidelity import FidelityProbe
from suite.probes.forward_paths import ForwardProbe
from suite.probes.generation import GenerationProbe
from suite.probes.given_rows import GivenRowsProbe
from suite.probes.gradients import GradientProbe
from suite.probes.layer_gradients import LayerGradientProbe
from suite.probes.movement import MovementProbe
from suite.probes.oracle import OracleProbe
from suite.probes.own_loss import OwnLossProbe
from suite.probes.pace import PaceProbe
from suite.probes.positions import PositionProbe
from suite.probes.quantization import QuantizationProbe
from suite.probes.recomputation import RecomputationProbe
from suite.probes.replicas import ReplicaProbe
from suite.probes.resources import LiveTensorProbe
from suite.probes.resumed import ResumedProbe
from suite.probes.round_trip import RoundTripProbe
from suite.probes.shards import ShardProbe
from suite.probes.training_state import TrainingStateProbe
from suite.probes.updates import UpdateProbe
from suite.probes.weight_gradients import WeightGradientProbe
from suite.probes.weights_in_use import WeightsInUseProbe
from suite.training.events import Probe

PROBES: tuple[type[Probe], ...] = (
    MovementProbe,  # first: it must see the weights before any other probe has touched them
    ContinuityProbe,  # likewise
    ReplicaProbe,
    ShardProbe,
    PaceProbe,
    CensusProbe,
    FidelityProbe,
    QuantizationProbe,
    DataProbe,
    AdapterProbe,
    DropoutProbe,
    GenerationProbe,
    EvaluationProbe,
    OracleProbe,
    OwnLossProbe,  # before those that count forwards: the end of a backward pass goes through the table backwards
    WeightGradientProbe,  # after the oracle, whose forwards it must not take for the trainer's
    ForwardProbe,  # likewise
    TrainingStateProbe,  # likewise
    GradientProbe,
    UpdateProbe,
    LayerGradientProbe,
    RecomputationProbe,
    WeightsInUseProbe,
    LiveTensorProbe,
    ResumedProbe,
    RoundTripProbe,  # late: it adds a second adapter for a moment
    CallOrderProbe,  # last: the end of a backward pass goes through the table backwards, and others move gradients
)

_OWN_SESSIONS_ONLY = {GenerationProbe, EvaluationProbe, LayerGradientProbe, ResumedProbe}

WATCHED: tuple[type[Probe], ...] = (
    *(GivenRowsProbe if probe is DataProbe else probe for probe in PROBES if probe not in _OWN_SESSIONS_ONLY),
    PositionProbe,
)
"""Those that listen to a training of another's: all but what needs rows, evaluations or a session of its own."""

_TENSORS_ALONE = {
    *(MovementProbe, ContinuityProbe, CensusProbe, TrainingStateProbe, GradientProbe, UpdateProbe, LiveTensorProbe),
    *(ReplicaProbe, CallOrderProbe, PositionProbe),
}

ANY_OBJECTIVE: tuple[type[Probe], ...] = tuple(probe for probe in WATCHED if probe in _TENSORS_ALONE)
"""Those of them that need no forward pass of their own: for a training whose rows and loss are not known here."""
