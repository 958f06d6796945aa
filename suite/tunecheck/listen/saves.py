"""What a script writes, merges and saves of a model that it trained. Imports torch; in the watched process only.

Tensors are known by their values, since libraries rename them.
"""

import os
import re
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from traceback import walk_stack
from typing import Any
from weakref import WeakKeyDictionary, ref

import psutil
import torch
from torch.nn import Module

from tunecheck.core.evidence import FileWritten, Merged, ReadBack, Record, StateLoaded, Written
from tunecheck.listen.options import rank_and_processes
from tunecheck.listen.provenance import UNLOADED
from tunecheck.listen.trained_model import Parts, anchor_of
from tunecheck.models.layer_names import as_written, base_of
from tunecheck.probes.reference.forwards import logits_of
from tunecheck.probes.reference.four_bit import is_packed
from tunecheck.probes.reference.measures import living, relative_difference, sample, value_of
from tunecheck.training.events import probing
from tunecheck.training.hooks import nothing
from tunecheck.training.restore import adapted_layers, random_state, unprinted, without_adapters, without_repacking

_TRAINED: "WeakKeyDictionary[Any, _Trained]" = WeakKeyDictionary()
"""What lives as long as the script holds a model to what that one was."""
_EARLY: deque[tuple[str, frozenset[str]]] = deque(maxlen=8)
"""The last files that were written before any training, and the values in each."""
_OF_ALL: list["_Trained"] = []
"""Of every model that was trained, also of those that are gone."""
_FILES: set[str] = set()
"""The first ones that this process wrote, where it is one of several."""
_TELL_FILE: list[Callable[[FileWritten], None]] = []


def watch(model: Any, tell: Callable[[Written | FileWritten | StateLoaded], None]) -> None:
    """Call `tell` with what is written of this model: each rank tells its files, rank 0 alone what is in them."""
    rank, processes = rank_and_processes()
    if processes > 1:
        _TELL_FILE[:] = [tell]
    if rank == 0 and not any(hasattr(p, "to_local") for p in model.parameters() if p.requires_grad):
        _TRAINED[anchor_of(model)] = _Trained(model, tell)


def trained(model: Any) -> None:
    """The steps that are listened to are done: note what of this model has moved by now."""
    if (held := _TRAINED.get(anchor_of(model))) is not None:
        live = held.present()
        held.moved = {n for n, value in held.before.items() if n in live and value_of(live[n]) != value}


def reloading(module: Any, state_dict: Mapping[str, Any], *_: Any, **__: Any) -> None:
    """A state dict is to be loaded: tell where it holds only the module's own memory, which has learnt with it."""
    for trained in list(_TRAINED.values()):
        held = {id(p): name for name, p in trained.learnt.items()}
        pairs = [(p, state_dict[name]) for name, p in module.named_parameters() if name in state_dict]
        own = {held[id(p)]: p for p, given in pairs if id(p) in held and given.data_ptr() == p.data_ptr()}
        whole = own and len(own) == sum(id(p) in held for p, _ in pairs)
        if whole and not trained.reloaded and any(value_of(p) != trained.before[name] for name, p in own.items()):
            trained.reloaded, kind = True, type(module).__name__
            trained.tell(StateLoaded(into=kind, offered=len(state_dict), taken=len(own), misnamed=(), itself=True))


def script_ends() -> None:
    """The script has come to its end: tell what its files, all of them together, lack of the trained models."""
    while _OF_ALL:
        _OF_ALL.pop(0).script_ends()


def written(thing: Any, path: Any = None) -> None:
    """This is about to be written to a file: tensors by name, what holds them, or anything else."""
    if probing():
        return
    file = os.path.realpath(path) if isinstance(path, str | os.PathLike) else ""
    held = dict(tensors_of(thing)) if _TRAINED or file else {}
    if _TELL_FILE and held and file not in ("", *_FILES) and len(_FILES) < 64 and not file.startswith("/dev/"):
        _FILES.add(file)
        _TELL_FILE[0](FileWritten(path=file))
    if held and not _TRAINED:
        _EARLY.append((file, frozenset(map(value_of, held.values()))))
    elif held or (isinstance(thing, Mapping) and not thing):
        for model, trained in list(_TRAINED.items()):
            trained.written(model, held, file)


class _Trained:
    """What a model that learns was before its training."""

    def __init__(self, model: Any, tell: Callable[[Written | StateLoaded], None]) -> None:
        self.tell = tell
        pieces = [*model.named_children()] if isinstance(model, Parts) else [("", model)]
        self._parts = [(name, ref(part)) for name, part in pieces]
        learns = {name: p for name, p in model.named_parameters() if p.requires_grad}
        under = {id(p) for layer in adapted_layers(model).values() for p in layer.parameters()}
        shapes = {p.shape for p in learns.values()}
        frozen = [p for p in model.parameters() if not p.requires_grad and not _is_constant(sample(p))]
        values = {p: value_of(p) for p in frozen}
        self._base = {value for p, value in values.items() if p.ndim > 1 and (not under or id(p) in under)}
        """Weights under adapters, which merging changes; else all frozen matrices."""
        self._resting = {value for p, value in values.items() if p.shape in shapes}
        """Frozen tensors of a trained one's shape: of another adapter, say."""
        self.before = {name: value_of(p) for name, p in learns.items()}
        self._telling = {name for name, p in learns.items() if not _is_constant(sample(p))}
        """Tensors that no other is likely to equal: those that begin at 0 or 1 are not."""
        # a classifier, or what scores: a projection has more outputs
        self._scoring = {name for name, p in learns.items() if p.ndim == 2 and len(p) <= 16}
        self._told: Counter[tuple[bool, ...]] = Counter()
        self.moved = set[str]()
        """What had moved when the steps that are listened to were done."""
        self.reloaded = False
        """Whether its own tensors were loaded into it."""
        self._files = set[str]()
        own, parts = {*map(id, model.parameters())}, (vars(each).get("_parameters", {}) for each in living(Module))
        held = (p for part in parts for p in part.values() if p is not None and not hasattr(p, "to_local"))
        others = {id(p): p for p in held if p.ndim > 1 and not p.is_meta}
        beside = {value_of(p) for address, p in others.items() if address not in own}
        self._beside = beside - {*self.before.values()}  # of a copy of the start nobody can tell whose file it is in
        """Matrices of other models, before the training."""
        self._known = {*values.values(), *self.before.values(), *self._beside}
        self._kept, self._others, self._strange = set[str](), set[str](), False
        """Trained tensors that any file held, matrices of others, and whether any held values that nobody knows."""
        start = {self.before[name] for name in self._telling}
        # a file with the model as it was before its training, until the script itself writes another
        self._first = next((file for file, values in reversed(_EARLY) if start and start <= values), "")
        _OF_ALL.append(self)

    def present(self) -> dict[str, torch.nn.Parameter]:
        """Return the model's parameters by name, of what the script still holds of it."""
        parts = ((name, held) for name, part in self._parts if (held := part()) is not None)
        return {f"{part}.{name}".lstrip("."): p for part, held in parts for name, p in held.named_parameters()}

    @property
    def learnt(self) -> dict[str, torch.nn.Parameter]:
        """Return those that were to learn, as they are by now."""
        return {name: p for name, p in self.present().items() if name in self.before}

    def script_ends(self) -> None:
        """Tell where what the script wrote of the model is not what it has learned."""
        moved = [name for name in self.before if name in self.moved]
        lost, kept = [name for name in moved if name not in self._kept], len(self._kept)
        seen = Written(own=False, tensors=0, trained=kept, earlier=(), other=len(self._others))
        if self._first and moved and os.path.exists(self._first):
            self.tell(replace(seen, earlier=(*sorted(self._telling),), first=True))
        elif lost and (kept or self._others) and not self._strange:
            scoring = not self._scoring.isdisjoint(lost)
            within = len(of_kept := _layers(self._kept)) > 1 and of_kept <= _layers(lost)
            self.tell(replace(seen, lost=(*lost,), leading=lost[0] == moved[0], scoring=scoring, within=within))

    def written(self, model: Any, held: Mapping[str, torch.Tensor], file: str = "") -> None:
        """Record what of the trained tensors is in these, if any of them has moved by now."""
        now = self.learnt
        values = {name: value_of(p) for name, p in now.items()}
        moved = {name for name, value in values.items() if value != self.before[name]}
        # as an average that is never updated leaves a model into which it is copied for a save
        returned = {name for name in (self.moved & self._telling) - moved if name in now} if not moved else set()
        shapes = {now[name].shape for name in moved | returned}
        given = {name: value_of(tensor) for name, tensor in held.items()}
        digests = dict(zip(given.values(), held.values(), strict=True))
        found = {value for value, tensor in digests.items() if tensor.shape in shapes}
        matrices = {value for value, tensor in digests.items() if tensor.ndim > 1}
        self._kept |= {name for name in moved if values[name] in found}
        self._others |= matrices & self._beside
        self._strange |= not matrices <= self._known | {*values.values()}
        of_others = {v for each in _TRAINED.values() if each is not self for v in map(value_of, each.learnt.values())}
        # an adapter that rests beside the trained one, as a reference, may be what that was
        present = {value_of(p) for p in self.present().values() if p.shape in shapes}
        distinct = moved & self._telling
        by_value = {values[name]: name for name in distinct}
        wrong = ((name, by_value.get(given[name])) for name in sorted(moved & given.keys()))
        lost = {name for name in distinct if values[name] not in found}
        starts = bool(distinct) and all(self.before[name] in found - present for name in distinct)
        # the best checkpoint may be the first one
        earlier = {name for name in lost if self.before[name] in found - present and not (starts and self._first)}
        earlier |= {name for name in returned if values[name] in found}
        of_base = len(self._base & digests.keys()) if not found and not (now and not moved) else 0
        ends = [tensor for name, tensor in held.items() if "lora_B" in name]
        savers = [*_running()]
        own = next((saver for saver in savers if saver.get("self") is model), None)
        # peft's may write the base of an adapted embedding, too
        plainly = savers and not any(type(saver.get("self")).__module__.startswith("peft.") for saver in savers)
        seen = Written(
            # not one that converts its tensors on the way
            own=own is not None and own.get("path_initial_model_for_weight_conversion") is None,
            tensors=len(held),
            trained=sum(values[name] in found for name in moved),
            earlier=tuple(sorted(earlier)),
            returned=bool(returned),
            start=starts,
            overwrites=file in self._files and not any(values[name] in found for name in moved) and bool(earlier),
            other=len(found - of_others - {*values.values(), *self.before.values()}),
            resting=len(found & self._resting - {*values.values(), *self.before.values()}),
            misnamed=tuple(f"{name} of {other}" for name, other in wrong if other and values[name] != values[other]),
            # a reference beside the trained one, as TRL's DPO keeps it, is the model's own
            blank=bool(ends) and not any(bool(tensor.any()) for tensor in ends) and not matrices <= present,
            wrapped=sum(".base_layer." in name for name in held) if plainly else 0,
            # few are no sign: a merge may change none
            without_adapters=of_base if 2 * of_base > len(self._base) else 0,
            unloaded=bool(of_base) and any(saver.get("self") in UNLOADED for saver in savers),
        )
        self.moved |= moved
        moved |= returned
        checkpoint = any(True for function in ("_save_checkpoint", "on_save") for _ in _running(function))
        if (seen.trained or seen.other) and not checkpoint:
            self._first = ""
        if file and seen.trained:
            self._files.add(file)
        kind = tuple(map(bool, astuple(seen)))
        # adapters that are gone were taken off, or merged into a model that is another
        told = seen.without_adapters or (moved and found) or (not held and (moved or (seen.own and not now)))
        self._told[kind] += 1
        if told and self._told[kind] <= 2:  # checkpoints are all alike
            self.tell(seen)


def _layers(tensors: Iterable[str]) -> set[str]:
    """Return what the names of these begin with up to their first number; none of those without a number."""
    return {found[0] for found in map(re.compile(r"(.*?\.)?\d+\.").match, tensors) if found is not None}


def _is_constant(elements: torch.Tensor) -> bool:
    return bool((elements == elements[:1]).all())


def tensors_of(thing: Any, depth: int = 4) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what is written, less an optimizer's state and sharded tensors, which are whole where all ranks ask."""
    if isinstance(thing, Module):
        thing = thing.state_dict()
    elif isinstance(thing, list | tuple) and not (len(thing) > 16 and isinstance(thing[-1], int | float | str)):
        thing = dict(enumerate(thing))  # others are a row's tokens, of which there may be millions
    if depth and isinstance(thing, Mapping) and "param_groups" not in thing:
        for name, held in thing.items():
            if isinstance(held, torch.Tensor):
                yield from () if hasattr(held, "to_local") else [(str(name), held)]
            else:
                yield from ((f"{name}.{inner}", tensor) for inner, tensor in tensors_of(held, depth - 1))


def _running(function: str = "save_pretrained") -> Iterator[dict[str, Any]]:
    """Yield the locals of each function of this name that runs now, the innermost first."""
    return (frame.f_locals for frame, _ in walk_stack(sys._getframe(1)) if frame.f_code.co_name == function)


MOST_READ = 2
"""Saves of a model that are read back: checkpoints are all alike."""


@dataclass(slots=True)
class Product:
    """A model that comes out of a training that is listened to."""

    tell: Callable[[Record, float], None]
    """Writes what was found, in this many seconds, to the trace of the training."""
    ids: torch.Tensor
    """Tokens of a row of the training, [1, count], on the CPU."""
    before_merge: Callable[[], None] = nothing
    """Called while it has its adapters."""
    read: int = 0


PRODUCTS: WeakKeyDictionary[Any, Product] = WeakKeyDictionary()
_WAITING: dict[Path, Callable[[], None]] = {}
"""Folders with weights and no config.json so far to what reads them back."""


def merging(tuner: Any, *_: Any, **__: Any) -> Callable[[Any], None] | None:
    """A tuner of peft is about to merge its adapters. Return what is to be called with the merged model."""
    if (found := next((m for m in PRODUCTS if getattr(m, "base_model", None) is tuner), None)) is None:
        return None
    heard, begun = PRODUCTS[found], time.monotonic()
    heard.before_merge()
    trained, base = _functions(found, heard)

    def merged(model: Any) -> None:
        seen = Merged(
            logit_difference=relative_difference(_logits(model, heard.ids), trained),
            adapter_effect=relative_difference(base, trained),
            adapters_left=tuple(n for n, m in model.named_modules() if type(m).__module__.startswith("peft.")),
            packed_left=tuple(n for n, p in model.named_parameters() if is_packed(p)),
        )
        heard.tell(seen, time.monotonic() - begun)
        PRODUCTS[model] = heard

    return merged


def saving(
    model: Any, save_directory: Any = None, is_main_process: bool = True, state_dict: Any = None, *_: Any, **__: Any
) -> Callable[[Any], None] | None:
    """A model of transformers is about to be saved. Return what is to be called when it was."""
    heard = next((each for whole, each in PRODUCTS.items() if _is_of(model, whole)), None)
    if heard is None or not is_main_process or not _can_be_read(model, heard):
        return None
    whole = state_dict is None or _holds_all(state_dict, model)  # else an average or a part, which may be meant
    return _reading(model, heard, Path(str(save_directory))) if whole else None


def writing(thing: Any = None, path: Any = None, *_: Any, **named: Any) -> Callable[[Any], None] | None:
    """Look at what is about to be written to this file. Return what is to be called when it was."""
    thing = named.get("tensors", named.get("obj", thing))
    path = named.get("filename", named.get("f", path))
    written(thing, path)
    name = str(path) if isinstance(path, str | Path) else ""
    # under these names `from_pretrained` looks for weights in one file
    if not PRODUCTS or Path(name).name not in ("model.safetensors", "pytorch_model.bin"):
        return None
    found = [(model, heard) for model, heard in PRODUCTS.items() if _can_be_read(model, heard)]
    model, heard = next((pair for pair in found if _holds_all(thing, pair[0])), (None, None))
    if heard is None or any(True for _ in _running()):
        return None
    return _reading(model, heard, Path(name).absolute().parent)


def describing(_config: Any, save_directory: Any = None, *_: Any, **__: Any) -> Callable[[Any], None]:
    """Return what is to be called when a config.json was written to this folder."""
    return lambda _: _WAITING.get(Path(str(save_directory)).absolute(), nothing)()


def _is_of(model: Any, whole: Any) -> bool:
    """Return whether this is the model that learns, or the one inside of its adapters, or that was compiled."""
    return model is whole or model is as_written(base_of(whole))


def _can_be_read(model: Any, heard: Product) -> bool:
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    free = size * 1.5 <= psutil.virtual_memory().available  # of what it takes to read it back
    return free and heard.read < MOST_READ and not any(is_packed(p) for p in model.parameters())


def _holds_all(thing: Any, model: Any) -> bool:
    """Return whether what is written holds every tensor of the model as it is now, under whatever names."""
    values = {value_of(tensor) for _, tensor in tensors_of(thing)}
    return all(value_of(p) in values for p in model.parameters())


def _functions(model: Any, heard: Product) -> list[torch.Tensor]:
    """Return the logits of the model as it is, and those without its adapters: a script may save the base alone."""
    functions = [_logits(model, heard.ids)]
    if (whole := next((m for m in PRODUCTS if _is_of(model, m) and adapted_layers(m)), None)) is not None:
        with without_adapters(whole):
            functions.append(_logits(model, heard.ids))
    return functions


def _reading(model: Any, heard: Product, folder: Path) -> Callable[[Any], None]:
    """Return what loads what lies in this folder by then, and compares it with what it may be: the model as it is."""
    functions = _functions(model, heard)

    def read(_: Any = None) -> None:
        if not (folder / "config.json").is_file():  # it may be written next
            _WAITING[folder] = read
            return
        _WAITING.pop(folder, None)
        heard.read += 1
        begun, kind = time.monotonic(), type(as_written(base_of(model)))
        with random_state(model.device), unprinted():
            again = kind.from_pretrained(folder, torch_dtype=model.dtype, local_files_only=True).to(model.device)
        difference = min(relative_difference(_logits(again, heard.ids), each) for each in functions)
        files = tuple(sorted(path.name for path in folder.iterdir() if path.is_file()))
        heard.tell(ReadBack(files=files, logit_difference=difference, adapter_effect=None), time.monotonic() - begun)

    return read


def _logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with without_repacking(model), unprinted():
        return logits_of(model, ids.to(model.device), training=False)
