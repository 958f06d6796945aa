"""What a script does with a model that it trained: it merges adapters, and saves. Both are read back at once.

A state dict that is written beside a config.json, under the name that `from_pretrained` looks for, is saved, too. The
records become attempts of the training's own trace. Imports torch; in the watched process only.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import psutil
import torch

from tunecheck.core.evidence import (
    AttemptEnd,
    AttemptOutcome,
    AttemptPurpose,
    AttemptReason,
    AttemptStart,
    Merged,
    ReadBack,
    Record,
)
from tunecheck.core.trace import TraceWriter
from tunecheck.listen.saves import tensors_of, value_of, within_save_pretrained
from tunecheck.probes.reference.adapted import adapted_layers
from tunecheck.probes.reference.four_bit import is_packed
from tunecheck.probes.reference.measures import relative_difference
from tunecheck.training.hooks import nothing
from tunecheck.training.restore import (
    model_mode,
    random_state,
    uncached,
    unprinted,
    without_adapters,
    without_repacking,
)

MEMORY_FACTOR = 1.5
"""Free memory that reading a model back needs, over the size of its weights."""


FILES = ("model.safetensors", "pytorch_model.bin")
"""Names under which `from_pretrained` looks for weights in one file."""
MOST_READ = 2
"""Saves of a model that are read back: checkpoints are all alike."""

Tell = Callable[[AttemptPurpose, str, float, Record], None]
"""Writes a record of this purpose, device and number of seconds to the trace of the training."""


@dataclass(slots=True)
class _Heard:
    """A model that comes out of a training that is listened to."""

    tell: Tell
    ids: torch.Tensor
    """Tokens of a row of the training, [1, count]."""
    before_merge: Callable[[], None] = nothing
    read: int = 0
    """Saves that were read back."""


_HEARD: WeakKeyDictionary[Any, _Heard] = WeakKeyDictionary()
_WAITING: dict[Path, Callable[[], None]] = {}
"""Folders with weights and no config.json so far to what reads them back."""


def remember(model: Any, tell: Tell, ids: torch.Tensor, before_merge: Callable[[], None] = nothing) -> None:
    """Watch what the script does with this model from now on; `before_merge` is called while it has its adapters."""
    _HEARD[model] = _Heard(tell, ids.cpu(), before_merge)


def merging(tuner: Any) -> Callable[[Any], None] | None:
    """A tuner of peft is about to merge its adapters. Return what is to be called with the merged model."""
    found = next((m for m in _HEARD if getattr(m, "base_model", None) is tuner), None)
    if found is None:
        return None
    heard, begun = _HEARD[found], time.monotonic()
    heard.before_merge()
    trained = _logits(found, heard.ids)
    with without_adapters(found):
        base = _logits(found, heard.ids)

    def merged(model: Any) -> None:
        seen = Merged(
            logit_difference=relative_difference(_logits(model, heard.ids), trained),
            adapter_effect=relative_difference(base, trained),
            adapters_left=tuple(n for n, m in model.named_modules() if type(m).__module__.startswith("peft.")),
            packed_left=tuple(n for n, p in model.named_parameters() if is_packed(p)),
        )
        heard.tell(AttemptPurpose.MERGE, str(found.device), time.monotonic() - begun, seen)
        _HEARD[model] = heard

    return merged


def saving(
    model: Any, folder: Any, is_main_process: bool = True, state_dict: Mapping[str, Any] | None = None, **_: Any
) -> Callable[[Any], None] | None:
    """A model of transformers is about to be saved. Return what is to be called when it was."""
    heard = next((each for whole, each in _HEARD.items() if _is_of(model, whole)), None)
    if heard is None or not is_main_process or not _can_be_read(model, heard):
        return None
    if state_dict is not None and not _holds_all(state_dict, model):  # an average, a part: it may be meant
        return None
    return lambda _: _read_back(model, heard, Path(str(folder)), _functions(model, heard))


def writing(thing: Any, path: Any) -> Callable[[Any], None] | None:
    """Tensors by name are about to be written to this file. Return what is to be called when they were."""
    name = str(path) if isinstance(path, str | Path) else ""
    if not _HEARD or Path(name).name not in FILES:
        return None
    found = [(model, heard) for model, heard in _HEARD.items() if _can_be_read(model, heard)]
    model, heard = next((pair for pair in found if _holds_all(thing, pair[0])), (None, None))
    if heard is None or within_save_pretrained():
        return None
    folder, functions = Path(name).absolute().parent, _functions(model, heard)

    def wrote(_: Any = None) -> None:
        if (folder / "config.json").is_file():
            _WAITING.pop(folder, None)
            _read_back(model, heard, folder, functions)
        else:  # it may be written next
            _WAITING[folder] = wrote

    return wrote


def described(folder: Any) -> None:
    """A config.json was written to this folder."""
    if waiting := _WAITING.get(Path(str(folder)).absolute()):
        waiting()


def _is_of(model: Any, whole: Any) -> bool:
    """Return whether this is the model that learns, or the one inside of its adapters, or that was compiled."""
    inner = whole.get_base_model() if hasattr(whole, "get_base_model") else getattr(whole, "_orig_mod", None)
    return model is whole or model is inner


def _can_be_read(model: Any, heard: _Heard) -> bool:
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    free = size * MEMORY_FACTOR <= psutil.virtual_memory().available
    return free and heard.read < MOST_READ and not any(is_packed(p) for p in model.parameters())


def _holds_all(thing: Any, model: Any) -> bool:
    """Return whether what is written holds every tensor of the model as it is now, under whatever names."""
    values = {value_of(tensor) for _, tensor in tensors_of(thing)}
    return all(value_of(p) in values for p in model.parameters())


def _functions(model: Any, heard: _Heard) -> list[torch.Tensor]:
    """Return the logits of the model as it is, and those without its adapters: a script may save the base alone."""
    functions = [_logits(model, heard.ids)]
    whole = next((m for m in _HEARD if _is_of(model, m) and adapted_layers(m)), None)
    if whole is not None:
        with without_adapters(whole):
            functions.append(_logits(model, heard.ids))
    return functions


def _read_back(model: Any, heard: _Heard, folder: Path, functions: list[torch.Tensor]) -> None:
    """Load what lies in this folder, and compare it with what it may be."""
    heard.read += 1
    begun = time.monotonic()
    inner = model.get_base_model() if hasattr(model, "get_base_model") else getattr(model, "_orig_mod", model)
    with random_state(model.device), _silence():
        again = type(inner).from_pretrained(folder, torch_dtype=model.dtype, local_files_only=True)
    again.to(model.device)
    logits = _logits(again, heard.ids)
    seen = ReadBack(
        files=tuple(sorted(path.name for path in folder.iterdir() if path.is_file())),
        logit_difference=min(relative_difference(logits, each) for each in functions),
        adapter_effect=None,
    )
    heard.tell(AttemptPurpose.READ_BACK, str(model.device), time.monotonic() - begun, seen)


def _logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with model_mode(model, False), torch.no_grad(), without_repacking(model), unprinted():
        logits: torch.Tensor = uncached(model, input_ids=ids.to(model.device)).logits
        return logits.detach().float()


def append(trace: Path, purpose: AttemptPurpose, device: str, seconds: float, record: Record) -> None:
    """Write this record behind the end of a trace, as an attempt of its own."""
    writer = TraceWriter(trace)
    writer.write(
        AttemptStart(purpose=purpose, device=device, reason=AttemptReason.REQUESTED, changes={}),
        record,
        AttemptEnd(outcome=AttemptOutcome.FINISHED, detail="", seconds=seconds),
    )
    writer.close()


@contextmanager
def _silence() -> Iterator[None]:
    """Print and log nothing in the block. What the script's other threads print and log stays as it is."""
    handlers, own_thread = [*logging.getLogger("transformers").handlers, *logging.root.handlers], threading.get_ident()

    def of_another_thread(record: logging.LogRecord) -> bool:
        return record.thread != own_thread

    for handler in handlers:
        handler.addFilter(of_another_thread)
    try:
        with unprinted():
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(of_another_thread)
