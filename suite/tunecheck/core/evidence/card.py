"""The GPU, sampled from another process."""

from tunecheck.core.frozen import Frozen, Record


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
    """Whether the training process started it."""


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
    """What happened to the sampling process."""
    readings: int = 0
    process_id: int | None = None
    """The training process."""
    memory_source: str = ""
    """process: NVML's figure of the training process; device: the card's use less what it was before, since the driver
    hides process ids; empty when neither is known."""
    used_bytes_before: int | None = None
    used_bytes_after: int | None = None
    """Of the whole card, when the training process was gone."""
    processes_before: tuple[CardProcess, ...] = ()
    processes_after: tuple[CardProcess, ...] = ()
