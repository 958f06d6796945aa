"""The numbers that a training's own objects were given, of kinds that have a usual range. Imports torch."""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from math import sqrt
from statistics import median_low
from typing import Any

import torch

from tunecheck.core.evidence import Setting, SettingsGiven
from tunecheck.listen.adapters import configs_of, is_lora
from tunecheck.listen.declared import weights_folder
from tunecheck.listen.trained_model import prepends
from tunecheck.probes.reference.measures import living
from tunecheck.runner.setup import optimizer_kind
from tunecheck.training.restore import dropouts

ADAM = re.compile(r"(Paged)?AdamW?(8bit|32bit)?( of .*)?")
"""Optimizers whose rate is the size of a step: Prodigy's and Adafactor's have another meaning."""
Given = tuple[str, Any, str]
"""Kind, value and place of a number."""


def settings_of(
    model: Any, optimizers: Iterable[Any], arguments: Any = None, rate: float | None = None
) -> SettingsGiven:
    """Return what these were given; `arguments` are a Trainer's, `rate` is the one that they declare, if any."""
    found = [*_of_model(model), *_of_arguments(arguments)]
    pretrained = not prepends(model) and any(weights_folder(module) for module in model.modules())
    for optimizer in optimizers:
        found += [*_of_groups(optimizer, rate, pretrained), *_of_depth(model, optimizer)]
        found += _of_decay(model, optimizer) if arguments is None else ()  # a library's list of names is its own
    each = dict.fromkeys((kind, float(value), where) for kind, value, where in found)
    return SettingsGiven(settings=tuple(Setting(kind=kind, value=value, where=where) for kind, value, where in each))


def _of_model(model: Any) -> Iterator[Given]:
    for config in filter(is_lora, configs_of(model).values()):
        by, root = (sqrt(config.r), "sqrt(r)") if config.use_rslora else (config.r, "r")
        yield "lora_scale", config.lora_alpha / by, f"LoraConfig's lora_alpha / {root}"
    for module, name, share in dropouts(model):
        if "dropout" in (where := f"{type(module).__name__}.{name}").lower():  # the p of a distance is its norm's
            yield "dropout", share, where


def _of_groups(optimizer: Any, rate: float | None, pretrained: bool) -> Iterator[Given]:
    name, adam = type(optimizer).__name__, ADAM.fullmatch(optimizer_kind(optimizer)) is not None
    for group in optimizer.param_groups if adam or type(optimizer) is torch.optim.SGD else ():
        for key, kind in {"weight_decay": "weight_decay", "momentum": "momentum", "eps": "adam_epsilon"}.items():
            if group.get(key) is not None:
                yield kind, group[key], f"{name}'s {key}"
        if adam:
            for number, beta in enumerate(group.get("betas", ()), start=1):
                yield f"adam_beta{number}", beta, f"{name}'s beta{number}"
        # the present rate, not a loop's initial one, which may be 1 as the factor of a schedule
        if adam and pretrained:
            yield "adam_rate", group["lr"] if rate is None else rate, f"{name}'s rate for pretrained weights"


def _of_depth(model: Any, optimizer: Any) -> Iterator[Given]:
    """Yield the first layers' rate over the last ones', where rates rise or fall with depth, one for each layer."""
    # timm's and MAE's schedules keep a group's share of the rate, which may be 0 at first
    scales = [(group.get("lr_scale", group["lr"]), group["params"]) for group in optimizer.param_groups]
    rates = {id(p): float(scale) for scale, parameters in scales if scale is not None for p in parameters}
    in_order = [rate for rate, _ in groupby(rates[id(p)] for p in model.parameters() if id(p) in rates)]
    # a head's, a body's and an embedding's are three
    if len(in_order) >= 4 and in_order[-1] and sorted(in_order) in (in_order, in_order[::-1]):
        where = f"{type(optimizer).__name__}'s rate of the first layers over that of the last ones"
        yield "rates_by_depth", in_order[0] / in_order[-1], where


def _of_decay(model: Any, optimizer: Any) -> Iterator[Given]:
    """Yield the decay of most norms' weights where that of all biases is 0."""
    decays = {id(p): group.get("weight_decay") or 0.0 for group in optimizer.param_groups for p in group["params"]}
    norms, biases = list[float](), list[float]()
    for module in model.modules():
        weight, bias = (module._parameters.get(name) for name in ("weight", "bias"))
        if weight is not None and id(weight) in decays and weight.ndim == 1 and "norm" in type(module).__name__.lower():
            norms.append(decays[id(weight)])
        elif weight is not None and bias is not None and id(bias) in decays:
            biases.append(decays[id(bias)])
    if biases and not any(biases):
        where = f"{type(optimizer).__name__}'s weight_decay of norms, not of biases,"
        yield "norm_decay", median_low(norms or [0.0]), where


def _of_arguments(arguments: Any) -> Iterator[Given]:
    """Yield what a Trainer's arguments say; without any the smoothing of each cross entropy that a loop has made."""
    for loss in () if arguments else living(torch.nn.CrossEntropyLoss):
        if loss.label_smoothing:
            yield "label_smoothing", loss.label_smoothing, "CrossEntropyLoss.label_smoothing"
    kind = type(arguments)
    for name, of in {"label_smoothing_factor": "label_smoothing", "neftune_noise_alpha": "neftune_noise_alpha"}.items():
        if value := getattr(arguments, name, None):
            yield of, value, f"{kind.__name__}.{name}"
    of_trl = any(base.__module__.startswith("trl.") for base in kind.__mro__)
    if of_trl and isinstance(beta := getattr(arguments, "beta", None), float | int):
        losses = given if isinstance(given := getattr(arguments, "loss_type", None), list | tuple) else [given]
        yield "simpo_beta" if "simpo" in losses else "preference_beta", beta, f"{kind.__name__}.beta"
