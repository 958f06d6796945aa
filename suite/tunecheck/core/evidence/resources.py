"""Time and memory by phase, and probes that failed."""

from tunecheck.core.frozen import Record

TRAINING_PHASES = ("first step", "steady")
"""The phases whose memory is that of the training itself."""


class Phase(Record):
    """One stretch of an attempt. The allocator's figures are None on the CPU."""

    name: str
    """load, evaluation (with the probes of start and end), first step, steady (the other steps) or save."""
    seconds: float
    started_at: float | None = None
    """On the machine's monotonic clock, which device samples share."""
    peak_allocated_bytes: int | None = None
    """What live tensors took; in first step and steady without what the probes took in between."""
    peak_requested_bytes: int | None = None
    """The same before the allocator rounds up."""
    peak_reserved_bytes: int | None = None
    """What the allocator held of the card, the probes' share included: it gives little back."""
    probes_peak_allocated_bytes: int | None = None
    """Peak while probes worked in between; None where none did or they cannot be separated."""
    allocation_retries: int | None = None
    """Allocations that succeeded only after the cache was given back."""
    out_of_memory_count: int | None = None
    process_bytes: int | None = None
    """Resident set of the process; what it holds of a card is in the device samples."""
    others_busy_share: float | None = None
    """Share of the machine's processor time that went to other processes, or was stolen from a virtual machine."""


class LiveTensors(Record):
    """Tensors alive in the process, at the same point of a step."""

    step: int
    tensors: int
    bytes: int
    hooks: int = 0
    """Hooks on the model's modules and on its trainable tensors."""
    copies: int = 0
    """Copies of all that a watched model learns among the tensors, itself one of them; 0 where nobody looked."""
    copied: int = 0
    """Tensors of these copies, and of what else of the model was copied with them."""
    graphs: int = 0
    """Steps before the present one whose functions are still in a graph of autograd's."""


class StepTimes(Record):
    """Time of the steps by the clock around the probes, written once at the end."""

    seconds: tuple[float, ...]
    """Of each step in order, without the probes' own time. On a GPU that of its calls, which its work outlasts."""
    host_seconds: tuple[float, ...] = ()
    """Of the same piece of Python after each step: how fast the host itself was."""


class ProbeTimes(Record):
    """What the evidence cost, written once at the end."""

    seconds: dict[str, float]
    """Of each probe in all its moments, by its class's name. The evaluations that the run asks for are in it: a probe
    calls them. On a GPU a probe that waits for the card waits for the training's work too."""


class Released(Record):
    """What is left after the session was torn down."""

    tensors: int
    bytes: int
    """Live tensor bytes on the run's device, less those before the model was loaded."""
    session_bytes: int
    """Live tensor bytes while the session stood: what there was to release."""


class ProbeFailed(Record):
    """A probe raised: its evidence is missing or in part, and the checks that need it are unjudged."""

    probe: str
    moment: str
    error: str
    kinds: tuple[str, ...] = ()
    """Names of the records that it would have written."""
