"""What a script does with a model after its training: it merges adapters, and saves. Both are read back at once.

The records become attempts of the training's own trace. Imports torch; in the watched process only.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import psutil
import torch

from suite.core.evidence import (
    AttemptEnd,
    AttemptOutcome,
    AttemptPurpose,
    AttemptReason,
    AttemptStart,
    Merged,
    ReadBack,
    Record,
)
from suite.core.trace import TraceWriter
from suite.probes.reference.four_bit import is_packed
from suite.probes.reference.measures import relative_difference
from suite.training.restore import model_mode, random_state, without_adapters, without_repacking

MEMORY_FACTOR = 1.5
"""Free memory that reading a model back needs, over the size of its weights."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """A model that came out of a training that was listened to."""

    trace: Path
    ids: torch.Tensor
    """Tokens of a row of the training, [1, count]."""


_HEARD: WeakKeyDictionary[Any, _Heard] = WeakKeyDictionary()


def remember(model: Any, trace: Path, ids: torch.Tensor) -> None:
    """Watch what the script does with this model from now on."""
    _HEARD[model] = _Heard(trace, ids.cpu())


def merging(tuner: Any) -> Callable[[Any], None] | None:
    """A tuner of peft is about to merge its adapters. Return what is to be called with the merged model."""
    found = next((m for m in _HEARD if getattr(m, "base_model", None) is tuner), None)
    if found is None:
        return None
    heard, begun = _HEARD[found], time.monotonic()
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
        append(heard.trace, AttemptPurpose.MERGE, str(found.device), begun, seen)
        _HEARD[model] = heard

    return merged


def saving(model: Any, folder: Any) -> Callable[[Any], None] | None:
    """A model of transformers is about to be saved. Return what is to be called when it was."""
    heard = _HEARD.get(model)
    if heard is None or any(is_packed(p) for p in model.parameters()):
        return None

    def saved(_: Any) -> None:
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        if size * MEMORY_FACTOR > psutil.virtual_memory().available:
            return
        begun, place = time.monotonic(), Path(str(folder))
        with random_state(model.device), _silence():
            again = type(model).from_pretrained(place, torch_dtype=model.dtype, local_files_only=True)
        wanted = _logits(model, heard.ids)
        again.to(model.device)
        seen = ReadBack(
            files=tuple(sorted(path.name for path in place.iterdir() if path.is_file())),
            logit_difference=relative_difference(_logits(again, heard.ids), wanted),
            adapter_effect=None,
        )
        append(heard.trace, AttemptPurpose.READ_BACK, str(model.device), begun, seen)

    return saved


def _logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with model_mode(model, False), torch.no_grad(), without_repacking(model):
        logits: torch.Tensor = model(input_ids=ids.to(model.device), use_cache=False).logits
        return logits.detach().float()


def append(trace: Path, purpose: AttemptPurpose, device: str, begun: float, record: Record) -> None:
    """Write this record behind the end of a trace, as an attempt of its own."""
    writer = TraceWriter(trace)
    writer.write(
        AttemptStart(purpose=purpose, device=device, reason=AttemptReason.REQUESTED, changes={}),
        record,
        AttemptEnd(outcome=AttemptOutcome.FINISHED, detail="", seconds=time.monotonic() - begun),
    )
    writer.close()


@contextmanager
def _silence() -> Iterator[None]:
    """Print nothing of the libraries' own in the block: the script's output stays as it is."""
    import transformers.utils.logging as library

    logging: Any = library  # its functions are not typed

    kept, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.ERROR)
    logging.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(kept)
        if bars:
            logging.enable_progress_bar()
