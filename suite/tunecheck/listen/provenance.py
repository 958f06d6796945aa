"""Where a model's tensors and rates come from: loads, earlier trainings, LoRA+. Imports nothing of its own."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from tunecheck.core.check import grouped
from tunecheck.core.evidence import StateLoaded


@dataclass(slots=True, eq=False)
class Load:
    """A state dict that was loaded into a module."""

    into: str
    offered: int
    taken: int
    fits: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Name of a tensor that none was loaded into, to that of one which would fit, and the digest of its values."""
    values: frozenset[str] = frozenset()
    """Digests of all that was offered, where nothing of it was taken."""


_LOADS: WeakKeyDictionary[Any, Load] = WeakKeyDictionary()


def loading(module: Any, state_dict: Mapping[str, Any], *_: Any, **__: Any) -> Callable[[Any], None] | None:
    """A state dict is about to be loaded into this module. Return what notes what was taken of it."""
    if not state_dict and next(module.parameters(), None) is None:
        return None

    def loaded(result: Any) -> None:
        unexpected, missing = set(getattr(result, "unexpected_keys", ())), getattr(result, "missing_keys", ())
        load = Load(type(module).__name__, len(state_dict), len(state_dict) - len(unexpected & state_dict.keys()))
        if unexpected:
            tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            pairs = _fitting(unexpected, [name for name in missing if name in tensors])
            fits = {n: other for n, other in pairs if getattr(state_dict[other], "shape", None) == tensors[n].shape}
            # whoever loads a part of one on purpose does not leave out as much that would fit
            if not load.taken or len(fits) >= 0.5 * load.offered:
                load.fits = {name: (other, _value(state_dict[other])) for name, other in fits.items()}
            if not load.taken:
                load.values = frozenset(_value(tensor) for tensor in state_dict.values() if hasattr(tensor, "shape"))
        _LOADS[module] = load

    return loaded


def loads_of(model: Any) -> Iterator[StateLoaded]:
    """Yield the last load into each part of the model, with tensors that fit but were left out and never copied."""
    for module in model.modules():
        if module not in _LOADS:
            continue
        load, tensors = _LOADS.pop(module), {}
        if load.fits or load.values:
            tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        if load.values and load.values & {_value(tensor) for tensor in tensors.values()}:
            load.taken = len(load.values)
        left = {n: other for n, (other, value) in load.fits.items() if n in tensors and _value(tensors[n]) != value}
        misnamed = tuple(f"{other} (the model has {name})" for name, other in left.items())
        yield StateLoaded(into=load.into, offered=load.offered, taken=load.taken, misnamed=misnamed)


def _fitting(offered: set[str], missing: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each missing name with an offered one that differs by a prefix, or by one part: an adapter's name."""
    by_end = grouped((".".join(name.split(".")[-2:]), name) for name in offered)
    shortened = {rest: name for name in offered for rest in _less_one_part(name)}
    for name in missing:
        within = next((rest for rest in _less_one_part(name) if rest in offered), shortened.get(name))
        alike = by_end.get(".".join(name.split(".")[-2:]), ())
        around = (other for other in alike if name.endswith(f".{other}") or other.endswith(f".{name}"))
        if (found := within or next(around, None)) is not None:
            yield name, found


def _less_one_part(name: str) -> Iterator[str]:
    """Yield the name without each of its parts but the last."""
    parts = name.split(".")
    yield from (".".join([*parts[:at], *parts[at + 1 :]]) for at in range(len(parts) - 1))


def _value(tensor: Any) -> str:
    from tunecheck.probes.reference.measures import value_of

    return value_of(tensor.detach())


_CONFIGS: WeakValueDictionary[tuple[str, int], Any] = WeakValueDictionary()
"""Configurations of transformers by what each was read from; not every one has a hash."""


def configuring(_: type, pretrained_model_name_or_path: Any, *__: Any, **___: Any) -> Callable[[Any], None]:
    """A configuration is about to be read. Return what notes from where, which its class alone leaves out of it."""

    def read(result: Any) -> None:
        config = result[0] if isinstance(result, tuple) else result
        _CONFIGS[str(pretrained_model_name_or_path), id(config)] = config

    return read


def read_from(config: Any) -> str:
    """Return the folder or the hub's name that this configuration was read from; "" where it is not known."""
    read = (name for (name, _), held in _CONFIGS.items() if held is config)
    return getattr(config, "_name_or_path", "") or next(read, "")


Declared = dict[str, tuple[float, str]]
"""Tensor to its rate and the argument that declares it."""
LOADED: WeakSet[Any] = WeakSet()
"""Models whose adapters were loaded, so that they are trained already."""
_TRAINED: WeakSet[Any] = WeakSet()
"""Modules whose own tensors were to learn in a training of this process."""
DECLARED: WeakKeyDictionary[Any, Declared] = WeakKeyDictionary()
"""Optimizers whose rates were declared when they were made."""


def lora_plus(
    model: Any, *_: Any, lr: float, loraplus_lr_ratio: float, loraplus_lr_embedding: float = 1e-6, **__: Any
) -> Callable[[Any], None]:
    """Return what records the rates of LoRA+ (arXiv 2402.12354), by which B trains at a multiple of A's rate."""

    def made(optimizer: Any) -> None:
        declared: Declared = {}
        for name, parameter in model.named_parameters():
            if ".lora_embedding_" in name:
                declared[name] = loraplus_lr_embedding, "loraplus_lr_embedding"
            elif ".lora_B." in name and parameter.ndim > 1:
                declared[name] = lr * loraplus_lr_ratio, "lr x loraplus_lr_ratio"
            elif ".lora_A." in name:
                declared[name] = lr, "lr"
        DECLARED[optimizer] = declared

    return made


def adapter_loading(model: Any, *_: Any, **__: Any) -> Callable[[Any], None]:
    """peft's load_adapter is called. Return what notes that this model's adapters are no fresh ones."""
    return lambda _: LOADED.add(model)


def training_begins(model: Any) -> None:
    """A training of this model begins."""
    from tunecheck.training.tensors import own_parameters  # brings torch

    _TRAINED.update(m for m in model.modules() if any(tensor.requires_grad for tensor in own_parameters(m)))


def merging(tuner: Any, *_: Any, **__: Any) -> None:
    """A tuner of peft merges its adapters into their base: those of a training of this process, or of a file."""
    from tunecheck.training.restore import adapted_layers  # brings torch

    _TRAINED.update(getattr(layer, "base_layer", layer) for layer in adapted_layers(tuner).values())


UNLOADED: WeakSet[Any] = WeakSet()
"""Models whose adapters were taken off without a merge."""


def unloading(tuner: Any, *_: Any, **__: Any) -> None:
    """A tuner of peft takes its adapters off their base."""
    UNLOADED.add(tuner.model)


def trained_before(model: Any, *, adapters: bool) -> bool:
    """Return whether adapters of this model, or any other of its tensors, learned in a training before."""
    names = (name for name, module in model.named_modules() if module in _TRAINED)
    return any((".lora_" in name or ".modules_to_save" in name) is adapters for name in names)
