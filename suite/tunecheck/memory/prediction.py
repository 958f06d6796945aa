"""Predicted GPU memory of a run: arithmetic for what stays, a simulation for what comes and goes. No torch here."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import Any

from tunecheck.config.schema import Run
from tunecheck.core.check import grouped
from tunecheck.core.errors import SuiteError
from tunecheck.core.files import read_json, write_whole
from tunecheck.core.frozen import Frozen
from tunecheck.core.helper import HelperFailed, ask
from tunecheck.core.log import log
from tunecheck.core.paths import cache_folder
from tunecheck.memory.constants import CARD_CLASSES_GB, CardShare, share_of
from tunecheck.models.layer_names import layer_of
from tunecheck.models.shapes import is_layer_linear, packed_bytes, tensor_shapes
from tunecheck.strategies import trained_shapes

SIMULATE_SECONDS = 600.0
"""Timeout of a simulation, which takes 5 to 20 s on two cores."""

_LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes")
ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


class StaticBytes(Frozen):
    """Exact bytes of the tensors by kind, between two steps, with gradients; an allocator rounds each of them up."""

    quantised_weights: int
    """Packed 4-bit weights with both levels of statistics and their tables."""
    other_weights: int
    """Every other weight in its real dtype: fp32 for all where base weights are trained."""
    adapters: int
    gradients: int
    """One per trained tensor, in its dtype."""
    optimizer: int
    """AdamW: two moments per trained tensor in its dtype, and a 4-byte step count."""
    on_host: int = 0
    """All of the above where `training.offload: parameters` keeps it on the CPU; then none of it is on the GPU."""

    @property
    def weights(self) -> int:
        """Return the bytes after loading, before adapters."""
        return self.quantised_weights + self.other_weights

    @property
    def total(self) -> int:
        return self.weights + self.adapters + self.gradients + self.optimizer


class Simulation(Frozen):
    """Allocator bytes of one training, each tensor rounded up as on a GPU."""

    loaded_bytes: int
    """The model and its adapters, before the first step."""
    first_step_bytes: int
    """Peak of the first micro-batch: no optimizer state yet."""
    steady_bytes: int
    """Peak of a later micro-batch."""
    evaluation_bytes: int
    remainder_bytes: int
    """What the allocator's blocks hold beyond their tensors at the steady peak."""
    between_steps: dict[str, int]
    at_peak: dict[str, int]
    peak_operation: str


class Prediction(Frozen):
    """Predicted GPU memory of a run; nothing in it is measured, except constants in `share` that say so."""

    run: str
    fingerprint: str
    precision: str
    predicted_at: str
    """UTC date, ISO 8601."""
    static: StaticBytes
    load_bytes: int
    """Peak while loading: the weights, and the largest of them once more before it is quantised. Offloaded weights pass
    through the GPU a layer at a time, the largest once more."""
    simulation: Simulation
    share: CardShare

    @property
    def phases(self) -> dict[str, int]:
        """Return the peak bytes of the tensors by phase."""
        simulated = self.simulation
        return {
            "load": self.load_bytes,
            "first step": simulated.first_step_bytes,
            "steady": simulated.steady_bytes,
            "evaluation": simulated.evaluation_bytes,
        }

    @property
    def tensor_bytes(self) -> int:
        return max(self.phases.values())

    @property
    def allocator_bytes(self) -> int:
        """Return the expected torch.cuda.max_memory_allocated: tensors' blocks and the workspaces of cuBLAS."""
        return self.tensor_bytes + self.simulation.remainder_bytes + self.share.cublas_workspace.bytes

    @property
    def process_bytes(self) -> int:
        """Return the GPU memory of the process, without fragmentation."""
        return self.allocator_bytes + self.share.cuda_context.bytes

    @property
    def fits(self) -> dict[int, bool]:
        return {size: self.process_bytes <= size * 10**9 for size in CARD_CLASSES_GB}

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON values, the derived numbers included."""
        return {
            **{key: value for key, value in dataclasses.asdict(self).items() if key != "share"},
            "phases": self.phases,
            "constants": dataclasses.asdict(self.share),
            "tensor_bytes": self.tensor_bytes,
            "allocator_bytes": self.allocator_bytes,
            "process_bytes": self.process_bytes,
            "fits_gb": {str(size): fits for size, fits in self.fits.items()},
        }


def assumed_precision(run: Run) -> str:
    """Return bf16, fp16 or fp32. auto counts as bf16, which it is from compute capability 8.0 on; fp16 is as large."""
    return "bf16" if run.training.precision == "auto" else run.training.precision


def static_bytes(run: Run) -> StaticBytes:
    """Return the run's bytes by kind. Raises Unsupported for an unknown architecture or target module."""
    shapes = tensor_shapes(run.model.architecture)
    element_bytes = 4 if run.trains_base else ELEMENT_BYTES[assumed_precision(run)]
    packed = {name for name, shape in shapes.items() if run.quantization and is_layer_linear(name, shape)}
    double_quant = bool(run.quantization and run.quantization.double_quant)
    trained = trained_shapes(run, shapes)
    # Trained tensors are fp32, except adapters in the model's own dtype.
    trained_bytes = sum(map(prod, trained)) * (element_bytes if run.lora and run.lora.adapter_dtype == "model" else 4)
    there = StaticBytes(
        quantised_weights=sum(packed_bytes(prod(shapes[name]), double_quant) for name in packed),
        other_weights=element_bytes * sum(prod(shape) for name, shape in shapes.items() if name not in packed),
        adapters=trained_bytes if run.lora else 0,
        gradients=trained_bytes,
        optimizer=2 * trained_bytes + 4 * len(trained),
    )
    if run.training.offload != "parameters":
        return there
    return StaticBytes(quantised_weights=0, other_weights=0, adapters=0, gradients=0, optimizer=0, on_host=there.total)


def predict(run: Run, *, card: str | None = None, capability: str | None = None) -> Prediction:
    """Return the prediction for a GPU of this name and capability ("8.9"), cached or simulated. Raises SuiteError."""
    static_bytes(run)  # raises Unsupported before a child is started
    if (known := cached_prediction(run, card=card, capability=capability)) is not None:
        log.debug(f"{run.name}: predicted on {known.predicted_at}, in {_cache_file(run)}")
        return known
    log.info(f"{run.name}: simulating two steps without weights (about 10 s)")
    record = {"predicted_at": f"{datetime.now(UTC):%Y-%m-%d}", "simulation": _simulate(run)}
    try:
        write_whole(_cache_file(run), json.dumps(record))
    except SuiteError as error:
        remedy = "set TUNECHECK_CACHE to a writable folder"
        log.warning(f"{run.name}: the prediction cannot be cached: {error.__cause__}; {remedy}")
    return _prediction(run, record, card, capability)


def cached_prediction(run: Run, *, card: str | None = None, capability: str | None = None) -> Prediction | None:
    """Return the run's prediction for a GPU of this name where it is cached for these versions; else None."""
    try:
        return _prediction(run, read_json(_cache_file(run)), card, capability)
    except (OSError, ValueError, KeyError, TypeError):  # what cannot be read, or is no record, is simulated anew
        return None


def _prediction(run: Run, record: Mapping[str, Any], card: str | None, capability: str | None) -> Prediction:
    static = static_bytes(run)
    return Prediction(
        run=run.name,
        fingerprint=run.fingerprint,
        precision=assumed_precision(run),
        predicted_at=record["predicted_at"],
        static=static,
        load_bytes=_load_bytes(run, static),
        simulation=Simulation(**record["simulation"]),
        share=share_of(card, deterministic=run.training.deterministic, capability=capability),
    )


def _load_bytes(run: Run, static: StaticBytes) -> int:
    """Return Prediction.load_bytes: the largest linear is in its loading dtype beside what was quantised before."""
    shapes = tensor_shapes(run.model.architecture)
    if run.training.offload == "parameters":
        groups = grouped((layer_of(name), ELEMENT_BYTES["fp32"] * prod(shape)) for name, shape in shapes.items())
        return max(sum(sizes) + max(sizes) for sizes in groups.values())
    if run.quantization is None:
        return static.weights
    layers = [prod(shape) for name, shape in shapes.items() if layer_of(name) is not None]
    return static.weights + max(layers) * ELEMENT_BYTES[assumed_precision(run)]


def _simulate(run: Run) -> dict[str, Any]:
    try:
        return ask(
            "tunecheck.memory.simulate:simulated",
            run.model_dump_json(),
            about="the simulation",
            timeout_seconds=SIMULATE_SECONDS,
            # no GPU, no network, and without the compiler that bitsandbytes would import
            environment={"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1"},
        )
    except HelperFailed as error:
        raise SuiteError(
            f"{run.name}: the training could not be simulated: {error}. What to do: `tunecheck doctor` shows the "
            "libraries; `tunecheck list --needs` shows the need that the run states."
        ) from None


def _cache_file(run: Run) -> Path:
    return cache_folder() / "predictions" / f"{run.fingerprint}-{_conditions()}.json"


@lru_cache(maxsize=1)
def _conditions() -> str:
    """Return a digest of what a simulation depends on besides the run: library versions and the trainer's code."""
    parts = [f"{name} {version(name)}" for name in _LIBRARIES]
    own_code = ("memory", "models", "strategies", "training")
    sources = sorted(path for package in own_code for path in Path(__file__).parents[1].glob(f"{package}/*.py"))
    content = b"".join(path.read_bytes() for path in sources)
    return hashlib.sha256("\n".join(parts).encode() + content).hexdigest()[:12]
