"""The processes of a training in several: replicas, shards and pace, and what each wrote."""

from dataclasses import field

from tunecheck.core.frozen import Record


class Replica(Record):
    """One rank's model after so many steps."""

    steps: int
    """Steps that were done; 0 before the first one, when frozen weights are in the digest too."""
    digest: str
    """Of all trained tensors and buffers, 16 hex digits."""
    tensors: dict[str, str] = field(default_factory=dict)
    """Digest by name, at the start, after the first steps and after the last one; empty after the others."""
    wrapped: bool = False
    """Whether DistributedDataParallel holds the model, so that each rank's is to be the same."""
    exchanges: int | None = None
    """Collectives and messages of the process so far; None where its backend does not count them."""


class Saved(Record):
    """What one rank found when saving returned; every rank had given the trainer a folder of its own."""

    writers: tuple[int, ...]
    """Ranks whose folders held files."""


class FileWritten(Record):
    """A file that one rank wrote tensors to, by a function of torch or safetensors."""

    path: str


class RowsDrawn(Record):
    """Which rows of its data set one rank's loader has drawn so far."""

    columns: tuple[str, ...]
    """Digests of some rows of each of the data set's columns, 16 hex digits; empty where none is known."""
    tokens_alone: bool
    """Whether the data set may have columns beside them, which were not read."""
    dataset_rows: int
    """0 where it has no length."""
    batch: int
    """Rows of the largest batch."""
    batches: int
    """Of a whole pass over the loader; 0 where it has no length."""
    passes: tuple[tuple[int, ...], ...]
    """Numbers of the rows, in their order, for each of the first passes; of a long pass the first ones."""


class OwnRowsGradient(Record):
    """The gradient that the optimizer of one rank gets, and those that its own rows give, as sums with random signs.

    The signs are the same on every rank, so that the sums of a difference have its norm.
    """

    step: int
    got: tuple[float, ...]
    own: tuple[tuple[float, ...], ...]
    """Of the mean over the tokens of the rank's window; where its micro-batches differ, of the mean of their means."""
    tokens: int
    """Supervised ones of the rank's window."""


class Shard(Record):
    """What one rank holds of a sharded model between forward passes, at the end of a backward pass."""

    step: int
    held: dict[str, int]
    """Bytes by kind: parameters, gradients, optimizer state."""
    even: dict[str, int]
    """The same of the largest part, were the rows of each tensor dealt out evenly."""
    larger: tuple[str, ...] = ()
    """Tensors of which this rank holds more than that."""


class Pace(Record):
    """The time that one rank computed in a step, without what it waited for others."""

    step: int
    seconds: float
    """Of the decoder layers' forward passes."""
    tokens: int
    """Of this rank's micro-batches, padding included."""


class Joined(Record):
    """One rank's way into the process group."""

    waited_seconds: float
    """Until all were there: a rank that came late waited less than the others."""
