"""Strategies that train other tensors than they name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.detection.bugs.bug import bug
from benchmarks.detection.bugs.parts import RANDOM_WEIGHTS, layers

if TYPE_CHECKING:
    from tunecheck.training.session import Session


@bug(
    "X91",
    "Layers matched by a substring of their names",
    caught_by=("trainable_set", "parameters_counted"),
    settings=(
        "strategy=freeze_lower",
        "lora=null",
        "quantization=null",
        "model.architecture.num_hidden_layers=14",
        "model.parameters=2133632",
        *RANDOM_WEIGHTS,
    ),
)
def layers_matched_by_substring(session: Session) -> None:
    """Freeze the lower half by names that contain "layers.0", "layers.1", ...: "layers.10" contains one of them."""
    lower = [f"layers.{number}" for number in range(len(layers(session)) // 2)]
    for name, parameter in session.model.named_parameters():
        parameter.requires_grad_(not any(part in name for part in lower))


@bug(
    "X92",
    "The number of layers written down",
    caught_by=("trainable_set", "optimizer_coverage"),
    settings=(
        "strategy=adapter_layers",
        "lora=null",
        "quantization=null",
        "model.architecture.num_hidden_layers=14",
        "model.parameters=2133632",
        *RANDOM_WEIGHTS,
    ),
)
def layer_count_written_down(session: Session) -> None:
    """Train layers 10 and 11 as "the last two" of a model with more than twelve layers."""
    for number, layer in enumerate(layers(session)):
        layer.requires_grad_(number in (10, 11))
