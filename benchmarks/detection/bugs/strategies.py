"""Strategies that train another set of tensors than they say: what the first such systems reported as success."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.detection.bugs.parts import layers

if TYPE_CHECKING:
    from suite.training.session import Session


def layers_matched_by_substring(session: Session) -> None:
    """The lower half is frozen by names that contain "layers.0", "layers.1", ...: "layers.10" contains one of them."""
    lower = [f"layers.{number}" for number in range(len(layers(session)) // 2)]
    for name, parameter in session.model.named_parameters():
        parameter.requires_grad_(not any(part in name for part in lower))


def layer_count_written_down(session: Session) -> None:
    """The last two layers are taken to be numbers 10 and 11, of a model with more layers than twelve."""
    for number, layer in enumerate(layers(session)):
        layer.requires_grad_(number in (10, 11))
