"""The resolved configuration in a trace, typed. A section is built when read: a damaged one costs its checks alone."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, Generic, TypeVar, cast

from tunecheck.core.errors import MissingEvidence
from tunecheck.core.frozen import Frozen
from tunecheck.core.premises import Fact
from tunecheck.core.typed import MISFITS, build, build_field

S = TypeVar("S")


class ArchitectureSnapshot(Frozen):
    """The shapes of a model, by the names of transformers' config.json."""

    model_type: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    tie_word_embeddings: bool
    head_dim: int | None = None
    initializer_range: float = 0.02
    """Standard deviation of random weights; the default is transformers' own."""


class LoraSnapshot(Frozen):
    """The adapters."""

    dropout: float = 0.0
    adapter_dtype: str = "fp32"
    use_dora: bool = False
    use_rslora: bool = False
    unmatched: tuple[str, ...] = ()
    """Names in the adapters' configuration that no module of the model has."""


class QuantizationSnapshot(Frozen):
    """4-bit loading."""

    quant_type: str = "nf4"
    block_size: int = 64
    double_quant: bool = True


class TrainingSnapshot(Frozen):
    """The optimisation."""

    max_steps: int
    learning_rate: float
    micro_batch_size: int = 1
    gradient_accumulation_steps: int = 1
    lr_scheduler: str = "cosine"
    warmup_ratio: float = 0.0
    weight_decay: float = 0.0
    weight_decay_on: str | tuple[str, ...] = "all"
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    max_grad_norm: float | None = 1.0
    gradient_checkpointing: bool = False
    loss_chunk_tokens: int | None = None
    attention: str = "sdpa"
    seed: int = 0
    offload: str = "none"
    schedule_steps: int | None = None
    """Steps that the schedule is made for, where only the first ones of a training were listened to."""
    first_step: int = 0
    """Steps that were done before, by the training that is resumed."""
    resume_steps: int = 0
    """Steps of the checkpoint that is declared to be resumed from; 0 where none is."""
    resumed_rate: float | None = None
    """Rate that the checkpoint's optimizer brought, until the schedule's next step replaces it."""
    warmup_steps: int | None = None
    """Steps of the warm-up, where they are not given as a share."""
    use_cache: bool = False
    """Whether the model's configuration has a key-value cache filled in training, too."""

    @property
    def offloads_parameters(self) -> bool:
        return self.offload == "parameters"


class _Key(Generic[S]):
    """A setting: its type, its value where the header has none, or null, and its path where that is not its name."""

    def __init__(self, kind: Any, *default: S, path: str = "") -> None:
        self._kind, self._default, self.path = kind, default, path
        # a section is looked at when it is read: a damaged one costs only the checks that need it
        self.required = Any if is_dataclass(kind) else kind | None if default else kind

    def __set_name__(self, owner: type, name: str) -> None:
        self.path = self.path or name

    def __get__(self, run: "RunSnapshot", owner: type | None = None) -> S:
        """Return the run's value. Raises MissingEvidence for a key without a default that is not there, or is wrong."""
        given: Any = run.settings
        for key in self.path.split("."):
            given = (given or {}).get(key)
        if given is None and self._default:
            return self._default[0]
        needed = [one.name for one in fields(self._kind) if one.default is MISSING] if is_dataclass(self._kind) else []
        if lacking := [self.path] if given is None else [f"{self.path}.{name}" for name in needed if name not in given]:
            raise MissingEvidence(f"the header of the trace lacks {', '.join(lacking)}")
        try:
            return cast(S, build(self._kind, given, partial=True))
        except MISFITS as error:
            raise MissingEvidence(f"the header of the trace has another {self.path}: {error}") from None


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """The run of a trace."""

    settings: Mapping[str, Any]

    id = _Key[str](str)
    """The run's id: the file name of its configuration."""
    tier = _Key[str](str)
    comparison = _Key(str, "")
    """Tier and file of the comparison that the run is a row of; empty for a run by itself."""
    entry = _Key(str, "")
    turn = _Key(int, 0)
    """Turn of a benchmark, from 1; 0 in a comparison of runs, and for a run by itself."""
    strategy = _Key[str](str)
    device = _Key(str, "auto")
    fallback = _Key[tuple[str, ...]](tuple[str, ...], ())
    features = _Key[frozenset[str]](frozenset[str])
    """What the run does, in the words by which checks say what they apply to."""
    masked = _Key(str, "")
    """What the training declares to be supervised: completion, assistant, or empty where it declares nothing."""
    smoothing = _Key(float, 0.0)
    """Label smoothing that a watched training declares; 0 for none."""
    added = _Key[int | None](int, None)
    """Elements of the adapters, where a watched training is expected to have others learn; None elsewhere."""
    rests = _Key[tuple[str, ...]](tuple[str, ...], ())
    """Tensors of the adapters that a watched training is expected to freeze."""
    longest = _Key[int | None](int, None)
    """Tokens that a row is declared to have at most."""
    rows_per_micro_batch = _Key[int | None](int, None)
    """Rows that a watched training declares for each micro-batch; None where it declares none."""
    expected = _Key[Mapping[str, Any]](dict[str, Any], {})
    """What a person expects beside what the training declares, by key."""
    premises = _Key[Mapping[str, Fact]](dict[str, Fact], {})
    """Premise to what is known about it, see suite/tunecheck/core/premises.py; {} in a run of the suite's own."""
    ignore = _Key[Mapping[str, str]](dict[str, str], {})
    """Check to the user's reason why what it finds is meant."""
    strict = _Key(bool, False)
    """Whether a suspicion fails a watched training."""
    checks = _Key[Mapping[str, Any]](dict[str, dict[str, Any] | str])
    """Limits by check, or "off"."""

    model = _Key[str](str, path="model.name")
    parameters = _Key[int | None](int, None, path="model.parameters")
    """All parameters of the base, a tied tensor counted once."""
    architecture = _Key[ArchitectureSnapshot](ArchitectureSnapshot, path="model.architecture")
    layers = _Key(int, 0, path="model.architecture.num_hidden_layers")
    """Layers of the decoder; 0 where they are not known, as in a class of the script's own."""
    training = _Key[TrainingSnapshot](TrainingSnapshot)
    lora = _Key[LoraSnapshot | None](LoraSnapshot, None)
    quantization = _Key[QuantizationSnapshot | None](QuantizationSnapshot, None)
    evaluated = _Key[tuple[str, ...]](tuple[str, ...], ("probe",), path="evaluation.splits")
    evaluated_at = _Key[tuple[int, ...]](tuple[int, ...], (), path="evaluation.at")
    """Steps before which to evaluate, besides start and end."""
    repeat_steps = _Key(int, 0, path="probes.repeat_steps")
    resume_from = _Key[int | None](int, None, path="probes.resume_from")
    rescale_to = _Key[tuple[int, ...]](tuple[int, ...], (), path="probes.rescale_to")
    processes = _Key(int, 1, path="parallel.processes")

    @property
    def name(self) -> str:
        return f"{self.tier}/{self.id}"

    @property
    def rows_per_step(self) -> int:
        """Sequences per optimizer step, those of all processes."""
        training = self.training
        return training.micro_batch_size * training.gradient_accumulation_steps * self.processes


def require_settings(settings: Mapping[str, Any]) -> None:
    """Require that each key that is read again has its type, where it is there. Raises one of typed.MISFITS."""
    keys = [key for key in vars(RunSnapshot).values() if isinstance(key, _Key)]
    hints = {key.path.partition(".")[0]: dict[str, Any] | None if "." in key.path else key.required for key in keys}
    for name, hint in {**hints, "model": dict[str, Any], "training": dict[str, Any]}.items():
        if name in settings:
            build_field(name, hint, settings[name])


def changed(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of these nested settings in which each dotted path of the changes has its value."""
    result = dict(settings)
    for path, value in changes.items():
        section, _, key = path.rpartition(".")
        result[section or key] = {**result[section], key: value} if section else value
    return result
