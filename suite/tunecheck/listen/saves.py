"""What a script writes of the tensors that it trains: as they are by then, as they were before, or none of them.

They are known by their values, since libraries rename what they save. Imports torch; in the watched process only.
"""

import hashlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch

from tunecheck.core.evidence import FileWritten, Written
from tunecheck.listen.ranks import rank_and_processes
from tunecheck.probes.reference.adapted import adapted_layers
from tunecheck.probes.reference.measures import sample
from tunecheck.training.events import probing

ALIKE = 2
"""Writes of one kind that are recorded: checkpoints are all alike."""
DEPTH = 2
"""Dictionaries within each other in which a model's tensors are looked for; an optimizer's lie deeper."""
MOST_FILES = 64
"""Whose names are recorded of each of several processes."""
_TRAINED: "WeakKeyDictionary[Any, _Trained]" = WeakKeyDictionary()
_FILES: dict[str, None] = {}
_TELL_FILE: list[Callable[[FileWritten], None]] = []


def watch(model: Any, tell: Callable[[Written | FileWritten], None]) -> None:
    """Look from now on at what is written, and whether it is what this model has learned; `tell` is called with it.

    Of several processes each tells the files that it writes, and the first one alone what is in them.
    """
    learns = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rank, processes = rank_and_processes()
    if processes > 1:
        _TELL_FILE[:] = [tell]
    if rank == 0 and not any(hasattr(p, "to_local") for p in learns.values()):
        under = {id(p) for layer in adapted_layers(model).values() for p in layer.parameters()}
        base = [p for p in model.parameters() if id(p) in under and not p.requires_grad and p.ndim > 1]
        shapes = {p.shape for p in learns.values()}
        resting = [p for p in model.parameters() if not p.requires_grad and p.shape in shapes]
        _TRAINED[model] = _Trained(learns, base, resting, tell)


def written(thing: Any, path: Any = None) -> None:
    """This is about to be written to a file: tensors by name, what holds them, or anything else."""
    if probing():
        return
    if _TELL_FILE and isinstance(path, str | os.PathLike) and any(True for _ in tensors_of(thing)):
        file = os.path.realpath(path)
        if file not in _FILES and len(_FILES) < MOST_FILES and not file.startswith("/dev/"):
            _FILES[file] = None
            _TELL_FILE[0](FileWritten(path=file))
    if not _TRAINED:
        return
    held = dict(tensors_of(thing))
    if held or thing == {}:
        for model, trained in list(_TRAINED.items()):
            trained.written(model, held)


class _Trained:
    """What a model that learns was before its training."""

    def __init__(
        self,
        learns: Mapping[str, torch.Tensor],
        base: Iterable[torch.Tensor],
        resting: Iterable[torch.Tensor],
        tell: Callable[[Written], None],
    ) -> None:
        self._tell = tell
        self._base = {value_of(p) for p in base if not _is_constant(sample(p))}
        """Weights under adapters, which merging changes."""
        self._resting = {value_of(p) for p in resting if not _is_constant(sample(p))}
        """Frozen tensors of a trained one's shape: of another adapter, say."""
        self._before = {name: value_of(p) for name, p in learns.items()}
        self._telling = {name for name, p in learns.items() if not _is_constant(sample(p))}
        """Tensors that no other is likely to equal: those that begin at 0 or 1 are not."""
        self._told: Counter[tuple[bool, ...]] = Counter()

    def written(self, model: Any, held: Mapping[str, torch.Tensor]) -> None:
        """Record what of the trained tensors is in these, if any of them has moved by now."""
        now = {name: p for name, p in model.named_parameters() if name in self._before}
        values = {name: value_of(p) for name, p in now.items()}
        moved = {name for name, value in values.items() if value != self._before[name]}
        shapes = {now[name].shape for name in moved}
        found = {value_of(tensor) for tensor in held.values() if tensor.shape in shapes}
        # an adapter that rests beside the trained one, as a reference, may be what that was
        present = {value_of(p) for p in model.parameters() if p.shape in shapes}
        lost = {name for name in moved & self._telling if values[name] not in found}
        seen = Written(
            own=_saves_itself(model),
            tensors=len(held),
            trained=sum(values[name] in found for name in moved),
            earlier=tuple(sorted(name for name in lost if self._before[name] in found - present)),
            other=len(found - {*values.values(), *self._before.values()}),
            resting=len(found & self._resting - {*values.values(), *self._before.values()}),
            # adapters that are gone were taken off, or merged
            without_adapters=0 if found or (now and not moved) else self._of_base(held),
        )
        counts = seen.tensors, seen.trained, seen.earlier, seen.other, seen.without_adapters
        kind = seen.own, *map(bool, counts)
        told = seen.without_adapters or (moved and (found or (seen.own and not held)))
        self._told[kind] += 1
        if told and self._told[kind] <= ALIKE:
            self._tell(seen)

    def _of_base(self, held: Mapping[str, torch.Tensor]) -> int:
        """Return how many of these are weights under adapters as they were before the training; 0 of a few of them.

        Merging leaves those alone whose adapters have not moved.
        """
        found = len(self._base & {value_of(tensor) for tensor in held.values()}) if self._base else 0
        return found if 2 * found > len(self._base) else 0


def value_of(tensor: torch.Tensor) -> str:
    """Return a digest of the shape and a sample of the elements."""
    elements = sample(tensor).cpu().contiguous().view(torch.uint8).numpy()
    return f"{tuple(tensor.shape)} {hashlib.sha256(elements.data).hexdigest()}"


def _is_constant(elements: torch.Tensor) -> bool:
    return bool((elements == elements[:1]).all())


def tensors_of(thing: Any, depth: int = DEPTH) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of what is written, by their names."""
    if isinstance(thing, torch.nn.Module):
        thing = thing.state_dict()
    if depth and isinstance(thing, Mapping):
        for name, held in thing.items():
            if isinstance(held, torch.Tensor):
                yield str(name), held
            else:
                yield from ((f"{name}.{inner}", tensor) for inner, tensor in tensors_of(held, depth - 1))


def within_save_pretrained() -> bool:
    """Return whether a library's save_pretrained writes now."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "save_pretrained":
        frame = frame.f_back
    return frame is not None


def _saves_itself(model: Any) -> bool:
    """Return whether it is this model's own save_pretrained that writes, and converts nothing on the way."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "save_pretrained" and frame.f_locals.get("self") is model:
            return frame.f_locals.get("path_initial_model_for_weight_conversion") is None
        frame = frame.f_back  # type: ignore[assignment]
    return False
