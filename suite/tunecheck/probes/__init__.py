"""The table of probes, in the order in which they see each moment."""

from tunecheck.core.evidence import Record
from tunecheck.core.extensions import EXTENSION_PROBES, extensions
from tunecheck.probes.adapters import AdapterProbe, DropoutProbe
from tunecheck.probes.call_order import CallOrderProbe
from tunecheck.probes.cut_off import CutOffProbe
from tunecheck.probes.data_audit import DataProbe
from tunecheck.probes.evaluation import EvaluationProbe, GenerationProbe
from tunecheck.probes.fidelity import FidelityProbe, QuantizationProbe
from tunecheck.probes.forward_paths import ForwardProbe, WeightsInUseProbe
from tunecheck.probes.given_rows import GivenRowsProbe
from tunecheck.probes.gradients import GradientProbe, LayerGradientProbe, RecomputationProbe, WeightGradientProbe
from tunecheck.probes.inputs import StepInputsProbe
from tunecheck.probes.movement import ContinuityProbe, MovementProbe
from tunecheck.probes.oracle import OracleProbe, OwnLossProbe
from tunecheck.probes.positions import PositionProbe
from tunecheck.probes.preferences import PreferenceProbe
from tunecheck.probes.ranks import PaceProbe, ReplicaProbe, ShardProbe
from tunecheck.probes.resources import LiveTensorProbe
from tunecheck.probes.round_trip import ResumedProbe, RoundTripProbe
from tunecheck.probes.shown_rows import ShownRowsProbe
from tunecheck.probes.training_state import CensusProbe, OtherModelsProbe, TrainingStateProbe
from tunecheck.probes.updates import UpdateProbe
from tunecheck.training.events import Probe

EXTENSIONS: tuple[type[Probe[Record]], ...] = tuple(probe for _, probe in extensions(EXTENSION_PROBES))

PROBES: tuple[type[Probe[Record]], ...] = (
    MovementProbe,  # first: it must see the weights before any other probe has touched them
    ContinuityProbe,  # likewise
    ReplicaProbe,
    ShardProbe,
    PaceProbe,
    CensusProbe,
    FidelityProbe,
    QuantizationProbe,
    DataProbe,
    ShownRowsProbe,
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
    *EXTENSIONS,
    CallOrderProbe,  # last: the end of a backward pass goes through the table backwards, and others move gradients
)

_OWN_SESSIONS_ONLY = {GenerationProbe, EvaluationProbe, LayerGradientProbe, ResumedProbe}

WATCHED: tuple[type[Probe[Record]], ...] = (
    *(GivenRowsProbe if probe is DataProbe else probe for probe in PROBES if probe not in _OWN_SESSIONS_ONLY),
    PositionProbe,
    PreferenceProbe,
    StepInputsProbe,
    CutOffProbe,
    OtherModelsProbe,
)
"""Those that listen to a training of another's: all but what needs rows, evaluations or a session of its own."""

_TENSORS_ALONE = {
    *(MovementProbe, ContinuityProbe, CensusProbe, TrainingStateProbe, GradientProbe, UpdateProbe, LiveTensorProbe),
    *(ReplicaProbe, CallOrderProbe, PositionProbe, PreferenceProbe),
    *(StepInputsProbe, CutOffProbe, OtherModelsProbe),
    *EXTENSIONS,
}

ANY_OBJECTIVE: tuple[type[Probe[Record]], ...] = tuple(probe for probe in WATCHED if probe in _TENSORS_ALONE)
"""Those of them that need no forward pass of their own: for a training whose rows and loss are not known here."""
