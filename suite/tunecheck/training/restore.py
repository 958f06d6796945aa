"""Contexts that leave a model's modes and the random state as they found them, or have it compute in fp32 meanwhile."""

import inspect
import logging
import random
import sys
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import chain
from operator import is_
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from tunecheck.models.layer_names import base_of

MATMULS: Any = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
EXACT = {"none", "ieee"}


@contextmanager
def model_mode(model: Any, training: bool) -> Iterator[None]:
    """Run the block in train or eval mode, then give each module its own: one that a bug left in eval mode stays so."""
    with as_found(model):
        model.train(training)
        yield


@contextmanager
def as_found(model: Any) -> Iterator[None]:
    """Put back after the block what calls of the model leave behind: in buffers, and in attributes of its modules.

    Parameters, submodules and hooks lie in tables of their own, which stay as they are; so do the parameters' values.
    Their attributes are put back: bitsandbytes' 8-bit weights hand theirs to their layer in the first pass, and peft
    sets requires_grad in each adapter that it makes active.
    """
    holders = [held for module in model.modules() for held in (vars(module), module._buffers)]
    # flat: a dictionary of each of some thousand modules would have the garbage collector go through all objects
    names, values = [*chain.from_iterable(holders)], [*chain.from_iterable(map(dict.values, holders))]
    # of some 30,000 attributes four in five are torch's own tables, which only have to be the same objects afterwards
    its_own = [value for name, value in zip(names, values, strict=True) if name not in TABLES]
    kinds = dict(zip(map(type, its_own), its_own, strict=True))
    others = ModuleType, torch.Tensor, *CONTAINERS
    own = {kind for kind, v in kinds.items() if kind.__dictoffset__ and not callable(v) and not isinstance(v, others)}
    for value in {id(value): value for value in its_own if type(value) in own}.values():
        holders.append(vars(value))
        names += vars(value)
        values += vars(value).values()
        its_own += vars(value).values()
    for own_of in map(vars, model.parameters()):
        holders.append(own_of)
        names += own_of
        values += own_of.values()
    sizes = [*map(len, holders)]
    found = [value for value in its_own if type(value) in GENERATORS or type(value) is torch.Tensor]
    plain = [v for v in found if type(v) is torch.Tensor and v.layout is torch.strided and not v.requires_grad]
    # a state of the module's own, rather than activations to look at
    carried = [*model.buffers(), *(tensor for tensor in plain if tensor.numel() <= 2**20)]
    tensors = [(tensor, tensor.clone()) for tensor in carried]
    generators = [(value, GENERATORS[type(value)][0](value)) for value in found if type(value) in GENERATORS]
    contents = [(value, value.copy()) for value in its_own if type(value) in CONTAINERS]
    learn = {parameter: parameter.requires_grad for parameter in model.parameters()}
    try:
        yield
    finally:
        for parameter, learns in learn.items():
            if parameter.requires_grad is not learns:
                parameter.requires_grad = learns
        for tensor, value in tensors:
            if not torch.equal(tensor, value):  # a graph that holds it does not see that it is written to
                with torch.no_grad(), torch.autograd.grad_mode._unsafe_preserve_version_counter(tensor):
                    tensor.copy_(value)
        for generator, state in generators:
            GENERATORS[type(generator)][1](generator, state)
        end = 0
        for now, size in zip(holders, sizes, strict=True):
            begin, end = end, end + size
            if len(now) != size or not all(map(is_, now.values(), values[begin:end])):
                before = dict(zip(names[begin:end], values[begin:end], strict=True))
                now.update(before)
                for name in now.keys() - before.keys():
                    del now[name]
        for held, content in contents:
            held.clear()
            (held.update if isinstance(held, dict | set) else held.extend)(content)


REPACKS = "support_avx512bf16_for_cpu"
"""Attribute of bitsandbytes' layers: whether a forward pass in eval mode repacks their weights."""
CONTAINERS = {list, dict, set, deque, OrderedDict, defaultdict}
TABLES = frozenset(vars(torch.nn.Module()))
"""Attributes that every module has of torch's own: tables of its tensors, submodules and hooks."""


GENERATORS: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], object]]] = {
    random.Random: (random.Random.getstate, random.Random.setstate),
    torch.Generator: (torch.Generator.get_state, torch.Generator.set_state),
    np.random.RandomState: (np.random.RandomState.get_state, np.random.RandomState.set_state),
    np.random.Generator: (lambda own: own.bit_generator.state, lambda own, to: setattr(own.bit_generator, "state", to)),
}
"""Kinds of generators of random numbers, with what reads and what sets their state."""


@contextmanager
def kept_values(parameters: Sequence[torch.Tensor]) -> Iterator[None]:
    """Put the values of these tensors back after the block."""
    kept = [parameter.detach().clone() for parameter in parameters]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, kept, strict=True):
                parameter.copy_(value)


def own_gradients(parameters: Sequence[torch.Tensor]) -> AbstractContextManager[None]:
    """Begin the block with no gradients, and put those that the tensors held back after it."""
    return having((parameter, "grad", None) for parameter in parameters)


@contextmanager
def without_adapters(model: Any) -> Iterator[None]:
    """Switch peft's adapters off in the block. Those that were off stay off after it, and what was frozen stays frozen.

    peft's own context enables every layer when it ends, and changes merged ones, for which this raises RuntimeError.
    """
    layers = [module for module in model.modules() if hasattr(module, "_disable_adapters")]
    if merged := sum(bool(getattr(layer, "merged", False)) for layer in layers):
        raise RuntimeError(f"{merged} layers have their adapters merged: the base cannot be told from them")
    with as_found(model), nullcontext() if layers else model.disable_adapter():
        for layer in layers:
            layer.enable_adapters(False)
        yield


def dropouts(model: Any) -> Iterator[tuple[Any, str, float]]:
    """Yield module, attribute and share of everything that drops or jitters: torch's `p`, others by name."""
    for module in model.modules():
        for name, share in vars(module).items():
            if isinstance(share, float) and share > 0 and (name == "p" or "drop" in name or "jitter" in name):
                yield module, name, share


def uncached(model: Any, **given: Any) -> Any:
    """Return what the model gives for these inputs, without a key-value cache where it knows of one.

    A mask that hides nothing is left out where it knows of none; labels that it must have are the tokens.
    """
    accepted = inspect.signature(base_of(model).forward).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
    if takes_any or "use_cache" in accepted:
        given["use_cache"] = False
    mask = given.get("attention_mask")
    if not takes_any and "attention_mask" not in accepted and (mask is None or bool((mask == 1).all())):
        given.pop("attention_mask", None)
    if "labels" in accepted and accepted["labels"].default is inspect.Parameter.empty:
        given.setdefault("labels", given["input_ids"])
    out = model(**given)
    return SimpleNamespace(**out) if type(out) is dict else out  # transformers' outputs have names, too


def without_dropout(model: Any) -> AbstractContextManager[None]:
    """Drop nothing in the block, whatever the modes: the model's modes choose kernels and checkpointing, too."""
    return having((module, name, 0.0) for module, name, _ in dropouts(model))


@contextmanager
def having(attributes: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Give these attributes of objects these values in the block, and their own again after it."""
    kept = [(holder, name, value, getattr(holder, name)) for holder, name, value in attributes]
    try:
        for holder, name, value, _ in kept:
            setattr(holder, name, value)
        yield
    finally:
        for holder, name, _, own in kept:
            setattr(holder, name, own)


@contextmanager
def random_state(device: torch.device) -> Iterator[None]:
    """Put the random states back after the block: torch's of CPU and GPU, Python's and numpy's."""
    gpus: Any = torch.cuda  # a model may lie on several; a generator's state is the host's, and needs no context there
    used = range(gpus.device_count()) if device.type == "cuda" or gpus.is_initialized() else ()
    with torch.random.fork_rng(devices=used), ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())  # a model's forward may draw from these, too
        stack.callback(np.random.set_state, np.random.get_state())
        yield


@contextmanager
def uncast(kind: str) -> Iterator[None]:
    """Compute in the block as it is written: autograd's threads have a caller's autocast, and another dtype for it.

    torch.autocast would clear the casts of weights that it keeps.
    """
    casts = torch.is_autocast_enabled(kind)
    torch.set_autocast_enabled(kind, False)
    try:
        yield
    finally:
        torch.set_autocast_enabled(kind, casts)


class _Muted:
    """A stream that drops what one thread writes."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._thread = stream, threading.get_ident()

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self._thread else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def unprinted() -> Iterator[None]:
    """Drop what this thread prints and logs in the block: the model's own code, called again. Others do as ever."""
    kept, own_thread = (sys.stdout, sys.stderr), threading.get_ident()
    sys.stdout, sys.stderr = muted = _Muted(sys.stdout), _Muted(sys.stderr)

    def of_another_thread(record: logging.LogRecord) -> bool:
        return record.thread != own_thread

    with ExitStack() as stack:
        for handler in (*logging.getLogger("transformers").handlers, *logging.root.handlers):
            handler.addFilter(of_another_thread)
            stack.callback(handler.removeFilter, of_another_thread)
        try:
            yield
        finally:
            if (sys.stdout, sys.stderr) == muted:  # else another thread has put something in their place
                sys.stdout, sys.stderr = kept


def without_repacking(model: Any) -> AbstractContextManager[None]:
    """In the block a forward pass in eval mode leaves 4-bit weights as they are.

    bitsandbytes 0.50 on CPUs with AVX512-BF16 repacks them for inference in the first one, and trains no adapter after.
    """
    return having((module, REPACKS, False) for module in model.modules() if getattr(module, REPACKS, False))


def adapted_layers(model: Any) -> dict[str, Any]:
    """Return the layers of `model` that hold an adapter, by name, without an import of peft, which takes 4 s."""
    peft: Any = sys.modules.get("peft.tuners.tuners_utils")
    if peft is None:
        return {}
    return {name: module for name, module in model.named_modules() if isinstance(module, peft.BaseTunerLayer)}


HALVES = (torch.bfloat16, torch.float16)
WIDENED_BYTES = 1 << 30
"""Largest part of a base that is computed with in fp32 for a moment: a 4-bit 7B model's embedding and head."""


@contextmanager
def in_fp32(model: Any) -> Iterator[dict[torch.Tensor, torch.Tensor]]:
    """Compute in fp32 in this context: stand-ins take the places of 16-bit tensors, 4-bit linears multiply in fp32.

    Yield the stand-in by tensor. The tensors themselves are left alone: one whose data has another dtype, were it for a
    moment, gets a new gradient accumulator, and DDP, which hooked the old one, averages its gradient no more.
    """
    wide: dict[torch.Tensor, torch.Tensor] = {}
    places = [place for module in model.modules() for place in (module._parameters, module._buffers)]
    kept = [(place, name, t) for place in places for name, t in place.items() if t is not None and t.dtype in HALVES]
    linears = [module for module in model.modules() if getattr(module, "compute_dtype", None) is not None]
    with having((linear, "compute_dtype", torch.float32) for linear in linears), ExitStack() as stack:
        for place, name, tensor in kept:
            if tensor not in wide:  # a tied one has several places
                wide[tensor] = data = tensor.detach().float()
                if isinstance(tensor, torch.nn.Parameter):
                    wide[tensor] = torch.nn.Parameter(data, tensor.requires_grad)
            stack.callback(place.update, {name: tensor})
            place[name] = wide[tensor]
        yield wide


def widened_bytes(model: Any) -> int:
    """Return the bytes that `in_fp32` takes while it lasts."""
    return sum(4 * each.numel() for each in chain(model.parameters(), model.buffers()) if each.dtype in HALVES)


_SCRIPTS: list[tuple[str, ...]] = []
"""How the script has products rounded, while ours are not."""


def products() -> tuple[str, ...]:
    """Return to what the script lets torch round products of fp32 matrices, on a card and on a CPU.

    "none" and "ieee" stand for no rounding. After newer names than `allow_tf32` are set, the older functions raise.
    """
    return _SCRIPTS[0] if _SCRIPTS else tuple(backend.fp32_precision for backend in MATMULS)


@contextmanager
def exact_products() -> Iterator[None]:
    """Have products of fp32 matrices keep all of their bits in the block, whatever the script allows."""
    before = products()
    if _SCRIPTS or not {*before} - EXACT:
        yield
        return
    with having((backend, "fp32_precision", "ieee") for backend in MATMULS), ExitStack() as stack:
        _SCRIPTS.append(before)
        stack.callback(_SCRIPTS.clear)
        yield
