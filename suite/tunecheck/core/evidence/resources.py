"""Time and memory by phase, probes that failed, and the GPU, sampled from another process."""

from tunecheck.core.frozen import Frozen, Record

TRAINING_PHASES = ("first step", "steady")


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
    learning: int = 0
    """Tensors that have a state in an optimizer of the process; 0 where nobody looked."""


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


class CardProcess(Frozen):
    """A process that computes or draws on the GPU."""

    pid: int
    """As the driver knows it: inside a container it may be the host's number."""
    name: str | None
    """Of the executable, without its path and arguments."""
    used_bytes: int | None
    graphics: bool = False
    """Whether it draws alone, as a desktop's windows do."""
    descendant: bool = False


class DeviceSample(Record):
    """The GPU over a short time. What it does not report is None: neither good nor bad."""

    at: float
    """Beginning, on the machine's monotonic clock."""
    seconds: float
    readings: int
    used_bytes: int | None
    """Largest, of the whole card."""
    process_bytes: int | None
    """Largest, of the training process; None also where the driver hides process ids."""
    process_seen: bool
    """Whether the driver listed the training process under its own id."""
    sm_clock_mhz: float | None
    """Mean."""
    temperature_celsius: float | None
    """Largest."""
    clock_reasons: dict[str, int] | None
    """Why the clock was below its highest, and in how many of the readings."""
    others: tuple[CardProcess, ...]
    """Processes seen besides the training one, each with its largest memory."""
    xids: tuple[int, ...] = ()
    """The driver's error numbers, as they came."""
    events: tuple[str, ...] = ()
    """Other critical events of the driver, by NVML's names."""


class Health(Record):
    """The GPU's counters before or after an attempt. What it does not report is None: neither good nor bad."""

    when: str
    """before or after."""
    fault: str = ""
    """That the card is lost or must be reset, in the words for NVML's errors 15 and 16; else empty."""
    uncorrected_ecc: int | None = None
    """Memory errors since the driver was loaded that could not be corrected."""
    remapped_rows_uncorrected: int | None = None
    """Rows of memory replaced after uncorrectable errors."""
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retired_pages_pending: bool | None = None
    recovery_action: int | None = None
    """NVML's field 230: 0 none, 1 reset, 2 reboot, 3 drain, 4 drain and reset; newer drivers know more."""


class Telemetry(Record):
    """How completely the GPU was sampled during an attempt, and what was on it before."""

    uuid: str
    """The GPU that was sampled; empty when unknown."""
    complete: bool
    """False when the sampling process could not start, died or hung: then silence is no sign of health."""
    problem: str = ""
    readings: int = 0
    process_id: int | None = None
    memory_source: str = ""
    """process: NVML's figure of the training process; device: the card's use less what it was before, since the driver
    hides process ids; empty when neither is known."""
    used_bytes_before: int | None = None
    used_bytes_after: int | None = None
    """Of the whole card, when the training process was gone."""
    processes_before: tuple[CardProcess, ...] = ()
    processes_after: tuple[CardProcess, ...] = ()
