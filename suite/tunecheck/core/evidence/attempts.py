"""The run and its attempts: written by the runner."""

from dataclasses import field
from enum import StrEnum
from typing import Annotated, Any

from tunecheck.core.frozen import Frozen, Record


class AttemptPurpose(StrEnum):
    """What a child process was started for."""

    TRAIN = "train"
    REPEAT = "repeat"  # The same run again in a fresh process.
    RESUME = "resume"  # The rest of the run from the checkpoint of its middle.
    RESCALE = "rescale"  # The same by another number of processes.
    COMPARE = "compare"  # A memory variant of the run, for a few steps.
    FALLBACK_STEP = "fallback step"  # A step of the fallback chain, for a few optimizer steps.
    REFERENCE = "reference"  # A run that begins on the CPU, after a fallback to it.
    READ_BACK = "read back"  # Load what was saved, without the trainer.
    MERGE = "merge"  # Merge the saved adapter into the base.


class AttemptReason(StrEnum):
    """Why an attempt was made."""

    REQUESTED = "requested"
    OUT_OF_MEMORY = "out of memory on the GPU"  # The attempt before it ran out of memory.


class AttemptOutcome(StrEnum):
    """How an attempt ended."""

    FINISHED = "finished"
    OUT_OF_MEMORY = "out_of_memory"
    FAILED = "failed"
    CRASHED = "crashed"
    HUNG = "hung"
    INTERRUPTED = "interrupted"
    UNAVAILABLE = "unavailable"  # Weights or data were not found.
    MISCONFIGURED = "misconfigured"
    CUT_OFF = "cut_off"  # The session was killed, so that no end was written: in reports, never in a trace.


class AttemptCause(StrEnum):
    """What ended an attempt, as far as it was seen from outside; results/domain.py attributes it."""

    ERROR = "error"  # An exception of the training code or of a library.
    KILLED = "killed"  # SIGKILL or SIGTERM: sent by another process or by the kernel.
    SIGNAL = "signal"  # Any other signal: an illegal access, an abort.
    EXIT = "exit"  # The process ended by itself without a word.
    DEADLINE = "deadline"
    START = "start"  # The process could not be started, or what starts it died.
    LIBRARIES = "libraries"  # A library that trains cannot be imported.
    DISK_FULL = "disk full"
    HOST_MEMORY = "host memory"
    GPU_MEMORY = "GPU memory"
    GPU_ERROR = "GPU error"
    """An error of CUDA after which the process can use the GPU no more, and that a program or the GPU can cause."""
    NO_GPU = "no GPU"  # The driver lists a GPU that torch does not see.


def outcome_words(outcome: str) -> str:
    return _OUTCOME_WORDS.get(outcome, str(outcome))


_OUTCOME_WORDS: dict[str, str] = {
    AttemptOutcome.OUT_OF_MEMORY: "ran out of memory",
    AttemptOutcome.INTERRUPTED: "was interrupted",
    AttemptOutcome.UNAVAILABLE: "found no weights or data",
    AttemptOutcome.MISCONFIGURED: "was refused: its configuration is wrong",
    AttemptOutcome.CUT_OFF: "was cut off with its session",
}


class MemoryVariant(StrEnum):
    """A variant of a QLoRA run with one sequence per micro-batch, whose memory has a known order."""

    AS_CONFIGURED = "as configured"
    CHECKPOINTING = "checkpointing"
    NO_CHECKPOINTING = "no checkpointing"
    FOUR_ROWS = "4 rows"
    LORA = "lora"
    FULL = "full"


class _Gpu(Frozen):
    name: str | None = None
    total_bytes: int | None = None
    driver_version: str | None = None


class _Cpu(Frozen):
    model: str | None = None
    usable_cores: int | float | None = None


class _Git(Frozen):
    commit: str | None = None
    dirty: bool | None = None


class _Machine(Frozen):
    gpus: tuple[_Gpu, ...] | None = None
    cpu: _Cpu | None = None
    git: _Git | None = None
    versions: dict[str, str | None] | None = None
    environment: dict[str, str | None] | None = None
    python: str | None = None
    platform: str | None = None
    ram_total_bytes: int | None = None
    processes: int | None = None


Environment = Annotated[dict[str, Any], _Machine]
"""Hardware, versions and git commit of a report or a trace; each part that is read again has its type."""


class RunHeader(Record):
    """The first line of a trace: the run, and where it was made."""

    schema: int
    tunecheck_version: str
    started_at: str
    run: dict[str, Any]
    """The resolved configuration, checks and limits included; `tunecheck.core.snapshot` reads it."""
    fingerprint: str
    """Digest of the configuration less its checks and deadline: equal fingerprints train the same thing."""
    environment: Environment


class AttemptStart(Record):
    """A child process begins."""

    purpose: AttemptPurpose
    device: str
    reason: AttemptReason = AttemptReason.REQUESTED
    detail: str = ""
    """The error of the attempt before, as its end states it."""
    skipped_steps: tuple[str, ...] = ()
    """Fallback steps that were passed over, each with why it does not apply: "lean: it changes nothing"."""
    variant: MemoryVariant | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    """Settings in which this attempt differs from the run as configured; empty for the first one."""
    card: str | None = None
    """UUID of the GPU or MIG instance that it has to itself; None on the CPU."""
    vram_cap_bytes: int | None = None
    """--vram-cap: how much of the GPU's memory gate and allocator were allowed; None for all of it, and on the CPU."""
    fallback_step: str = ""
    """Name of the fallback step, see tunecheck.runner.fallback_chain; empty for the run as configured."""

    @property
    def explanation(self) -> str:
        """Reason, error and skipped fallback steps in one line."""
        return "; ".join([f"{self.reason}: {self.detail}" if self.detail else str(self.reason), *self.skipped_steps])

    @property
    def configuration(self) -> str:
        return self.fallback_step or MemoryVariant.AS_CONFIGURED.value


class AttemptEnd(Record):
    """A child process is gone."""

    outcome: AttemptOutcome
    detail: str
    """The error in a sentence, with the signal's name after a crash."""
    seconds: float
    cause: AttemptCause | None = None
    """None for an attempt that finished, was refused or interrupted."""
