"""Everything that one training consists of."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tunecheck.config.schema import Run
from tunecheck.core.errors import Unsupported
from tunecheck.models.layer_names import decoder_of
from tunecheck.training.data import Batch, Batches, Tokens
from tunecheck.training.ranks import Exchange, Ranks
from tunecheck.training.tensors import WholeModel


def _lacking(*_: Any) -> Any:
    raise Unsupported("a watched training has no such function")


@dataclass(slots=True, kw_only=True)
class Session:
    """Everything one training consists of; the loop reaches every part here, so that a probe sees what is used."""

    run: Run
    device: torch.device
    precision: str
    folder: Path
    """The weight files that the model was loaded from."""
    model: Any
    tokenizer: Any = None
    batches: Batches
    window: Sequence[Batch] = ()
    """The micro-batches of the present step, as `Probe.step_begin` has them."""
    optimizer: Any
    scheduler: Any = None
    """torch's schedule of the rate; None where the backend keeps its own."""
    scaler: Any = None
    """torch.amp.GradScaler, which does nothing unless the precision is fp16; None where the backend keeps its own."""
    loss: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor] = _lacking
    """(logits, labels, supervised tokens of a window) -> a micro-batch's share of the mean loss, in the native loop."""
    evaluate: "Callable[[Session, Sequence[Tokens], int], tuple[float, int]]" = _lacking
    """(session, rows, batch size) -> mean negative log-likelihood per supervised token, and their number."""
    save_adapter: "Callable[[Session, Path], None]" = _lacking
    merge: "Callable[[Session, Path], Any]" = _lacking
    """(session, folder of a saved adapter) -> the base with that adapter in its weights; the session is used up."""
    ranks: Ranks = field(default_factory=Ranks)
    """The processes of this training, as its loop uses them; one where the backend says nothing."""
    processes: int = 1
    """Processes that train together, of which probes may see this one alone."""
    exchange: Exchange = field(default_factory=Exchange)
    """The same processes, as probes ask them."""
    whole: WholeModel | None = None
    """The view in which probes see a sharded model; None outside of their moments, and of a model that is not."""
    workarounds: tuple[str, ...] = ()
    trainer: Any = None
    """The object that carries the training out, where the backend has one."""
    autocast: bool = False
    """Whether the model's own forward enters autocast, so that nobody can have it compute in fp32."""
    cast: torch.dtype | None = None
    """dtype to which a loop's own autocast around its passes casts; None without."""
    entry: Any = None
    """The module that each pass calls, where it is not the model."""
    replay: Callable[[], float] | None = None
    """The trainer's own passes over the window again: its loss, gradients added to the parameters'; None without."""
    answers_named: Callable[..., tuple[Callable[[str], bool | None], str] | None] | None = None
    """What finds the answers that the data call better and worse, as listen.named_answers; None where nothing can."""

    @property
    def called(self) -> Any:
        """Return what every forward pass of the training calls."""
        return decoder_of(self.model if self.entry is None else self.entry)

    def casting(self, on: bool = True) -> torch.autocast:
        """Return the autocast that the training has around its passes, or none: weights in fp32 are rounded in it.

        Updates that 16 bit round away then change nothing, so that other arithmetic gives another loss.
        """
        own = self.run.uses_autocast(self.precision) and not self.autocast
        cast = self.cast or ({"bf16": torch.bfloat16, "fp16": torch.float16}[self.precision] if own else None)
        return torch.autocast(self.device.type, cast, enabled=on and cast is not None)

    @contextmanager
    def seen_whole(self) -> Iterator[None]:
        """Have parameters, gradients and optimizer state of a sharded model whole on every rank in the block.

        Its passes are then this rank's own: they exchange nothing, and gradients stay here. What is written to
        parameters or gradients is dropped at the end. Every rank must enter. A model that is not sharded is left alone.
        """
        if self.ranks.sharded is None:
            yield
            return
        trainers = self.optimizer
        self.whole = WholeModel(self.model, trainers)
        self.optimizer = self.whole.gather()
        try:
            yield
        finally:
            self.whole.release()
            self.optimizer, self.whole = trainers, None

    @contextmanager
    def as_trained(self) -> Iterator[None]:
        """Interrupt `seen_whole` for the block: the trainer's own functions meet the model as it is trained."""
        if self.whole is None:
            yield
            return
        self.optimizer = self.whole.release()
        try:
            yield
        finally:
            self.optimizer = self.whole.gather()
