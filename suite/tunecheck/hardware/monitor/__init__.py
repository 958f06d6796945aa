"""GPU monitor: samples one GPU from another process while an attempt trains on it, for the trace."""

import contextlib
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from tunecheck.core.errors import TraceError
from tunecheck.core.evidence import DeviceSample, Health, Record, Telemetry
from tunecheck.core.files import last_lines
from tunecheck.core.helper import command_for, helper_environment, kill, signal_name
from tunecheck.core.trace import decode

ANSWER_SECONDS = 10.0
"""Timeout for start and end of the sampling process: a healthy driver needs less than a second."""
MOST_SAMPLES = 300
"""Samples kept per attempt: one a second for a short one, one in half a minute for three hours; 100 kB in a trace."""
MAXIMA = ("used_bytes", "process_bytes", "temperature_celsius")
"""Figures of which a merged sample has the largest, None when none is known."""


class Meter:
    """Monitor of one GPU through a sampling process. Never raises for what that process does."""

    def __init__(self, uuid: str | None, folder: Path) -> None:
        """Start the sampling process, which prints into this folder; no `uuid` means that CUDA's choice is unknown."""
        self._uuid = uuid
        self._problem = "" if uuid else "unknown which GPU CUDA uses: NVML does not report it"
        self._output, self._errors = folder / "sampler.jsonl", folder / "sampler.err"
        self._child: subprocess.Popen[bytes] | None = None
        self._process_id: int | None = None
        if uuid:
            self._start(uuid)

    def watch(self, process_id: int) -> None:
        """Sample from now on for this training process."""
        self._process_id = process_id
        if self._child is not None and self._child.stdin is not None:
            with contextlib.suppress(OSError):  # a process that is gone is noticed at the end
                self._child.stdin.write(b"%d\n" % process_id)
                self._child.stdin.flush()

    def stop(self) -> list[Record]:
        """End the sampling process and return its records, the record of their completeness last."""
        records: list[Record] = []
        if self._child is not None:
            self._end(self._child)
            for line in self._output.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(TraceError):  # of a line that the death of the process cut off
                    records.append(decode(line)[1])
        samples = [record for record in records if isinstance(record, DeviceSample)]
        health = [record for record in records if isinstance(record, Health)]
        # the sample after the second health reading is of a GPU without the training
        last = samples.pop() if len(health) == 2 and records and isinstance(records[-1], DeviceSample) else None
        first, during = next(iter(samples), None), samples[1:]
        if not self._problem and [record.when for record in health] != ["before", "after"]:
            self._problem = "the sampling process ended before the attempt did"
        if not self._problem and not during:
            self._problem = "the attempt was over before the first reading"
        told = any(sample.process_bytes is not None for sample in during)
        used = any(sample.used_bytes is not None for sample in during)
        telemetry = Telemetry(
            uuid=self._uuid or "",
            complete=not self._problem,
            problem=self._problem,
            readings=sum(sample.readings for sample in during),
            process_id=self._process_id,
            memory_source="process" if told else "device" if used else "",
            used_bytes_before=first.used_bytes if first else None,
            used_bytes_after=last.used_bytes if last else None,
            processes_before=first.others if first else (),
            processes_after=last.others if last else (),
        )
        return [*health, *thinned(during), telemetry]

    def _start(self, uuid: str) -> None:
        self._output.parent.mkdir(exist_ok=True)
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            try:
                self._child = child = subprocess.Popen(
                    command_for("tunecheck.hardware.monitor.sampler", uuid),
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=errors,
                    env=helper_environment(),
                    start_new_session=True,  # so that Ctrl-C does not reach it
                )
            except OSError as error:
                self._problem = f"the sampling process could not be started: {error}"
                return
        deadline = time.monotonic() + ANSWER_SECONDS
        while self._output.read_bytes().count(b"\n") < 2 and child.poll() is None:
            if time.monotonic() > deadline:
                self._problem = f"NVML did not answer within {ANSWER_SECONDS:g} s and the process {kill(child)}"
                return
            time.sleep(0.01)

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        try:
            child.communicate(timeout=ANSWER_SECONDS)  # it ends when its input does
        except subprocess.TimeoutExpired:
            self._problem = f"NVML hung during the attempt and the sampling process {kill(child)}"
        if not self._problem and child.returncode:
            status = child.returncode
            how = f"was killed by {signal_name(-status)}" if status < 0 else f"ended with status {status}"
            said = last_lines(self._errors, 1)
            self._problem = f"the sampling process {how}" + (f": {said[0].strip()[:300]}" if said else "")


def thinned(samples: Sequence[DeviceSample], most: int = MOST_SAMPLES) -> list[DeviceSample]:
    """Merge neighbouring samples until at most this many are left. No maximum and no Xid is lost."""
    group = -(-len(samples) // most) or 1
    return [merged(samples[first : first + group]) for first in range(0, len(samples), group)]


def merged(samples: Sequence[DeviceSample]) -> DeviceSample:
    """Merge consecutive samples, at least one: maxima, mean clock, counts of clock reasons, each process once."""
    first, last = samples[0], samples[-1]
    seen = [process for sample in samples for process in sample.others]
    known = {name: [held for one in samples if (held := getattr(one, name)) is not None] for name in MAXIMA}
    clocks = [(sample.sm_clock_mhz, sample.readings) for sample in samples if sample.sm_clock_mhz is not None]
    reasons = [sample.clock_reasons for sample in samples if sample.clock_reasons is not None]
    return DeviceSample(
        at=first.at,
        seconds=last.at + last.seconds - first.at,
        readings=sum(sample.readings for sample in samples),
        **{name: max(values, default=None) for name, values in known.items()},
        process_seen=any(sample.process_seen for sample in samples),
        sm_clock_mhz=fmean([clock for clock, _ in clocks], [weight for _, weight in clocks]) if clocks else None,
        clock_reasons=dict(sum(map(Counter, reasons), Counter())) if reasons else None,
        others=tuple({process.pid: process for process in sorted(seen, key=lambda p: p.used_bytes or 0)}.values()),
        xids=tuple(xid for sample in samples for xid in sample.xids),
        events=tuple(event for sample in samples for event in sample.events),
    )
