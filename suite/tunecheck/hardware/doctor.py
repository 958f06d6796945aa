"""Doctor: everything on this machine that prevents or distorts fine-tuning, each with its remedy."""

from __future__ import annotations

from collections.abc import Sequence

from tunecheck.config.cards import card_for
from tunecheck.hardware import Hardware, gpu_symptoms, host_symptoms, probe
from tunecheck.hardware.diagnosis import Diagnosis, Level, format_diagnoses, memory_size, ok
from tunecheck.hardware.torch_facts import torch_view

__all__ = ["DEFAULT_MODEL", "Diagnosis", "Level", "examine", "format_diagnoses"]

DEFAULT_MODEL = "smollm2-135m"
"""Name of the quick tier's model in configs/models."""


def examine(
    *, deep: bool = True, cached_models: Sequence[str] | None = None, default_model: str = DEFAULT_MODEL
) -> list[Diagnosis]:
    """Return all diagnoses, those without problems included. Needs no GPU.

    `deep` also queries torch, in a child process that takes some seconds, and the hub. `cached_models` are the names of
    the models whose weights are on this machine; None leaves them out.
    """
    hardware = probe()
    found = [*gpu_symptoms.driver(hardware), *gpu_symptoms.cards(hardware), *card_class(hardware)]
    if deep:
        torch = torch_view()
        found += [*gpu_symptoms.torch_agrees(hardware, torch), *gpu_symptoms.cudnn_attention(torch)]
        found += gpu_symptoms.bitsandbytes_fits(torch)
    found += [
        *host_symptoms.libraries(hardware),
        *host_symptoms.processor(hardware),
        *host_symptoms.disk(hardware),
        *host_symptoms.environment(hardware),
    ]
    if cached_models is not None:
        found += host_symptoms.weights(default_model, cached_models)
    if deep:
        found += host_symptoms.hub()
    return found


def card_class(hardware: Hardware) -> list[Diagnosis]:
    """Return which class of configs/cards suits this machine; nothing where a GPU does not report its memory."""
    sizes = [gpu.total_bytes for gpu in hardware.visible_gpus]
    if None in sizes:
        return []
    largest = max((size for size in sizes if size is not None), default=None)
    name = card_for(largest)
    why = "no GPU" if largest is None else f"the largest GPU has {memory_size(largest)}"
    return [ok("card class", f"{name}: {why}; train with its settings: `pytest -m quick --card {name}`")]
