"""A driver that is not there: NVML's functions as far as the meter asks them, for a process that finds this file first.

What it answers is in $FAKE_NVML, a JSON object: function name to answer; {"error": code} raises instead, {"sleep": s}
hangs. A function that the object sets to null is missing, as in older bindings.
"""

import json
import os
import time
from types import SimpleNamespace


class NVMLError(Exception):
    """As the real one: the code is in `value`."""

    def __init__(self, value):
        super().__init__(f"code {value}")
        self.value = value


DEFAULTS = {
    "nvmlInit": None,
    "nvmlShutdown": None,
    "nvmlDeviceGetHandleByUUID": "the card",
    "nvmlDeviceGetMemoryInfo": {"used": 600 * 2**20},
    "nvmlDeviceGetComputeRunningProcesses": [],
    "nvmlDeviceGetGraphicsRunningProcesses": [],
    "nvmlSystemGetProcessName": "/opt/bin/python3 --token hf_secret",
    "nvmlDeviceGetClockInfo": 1980,
    "nvmlDeviceGetTemperature": 61,
    "nvmlDeviceGetCurrentClocksEventReasons": 4,
    "nvmlDeviceGetTotalEccErrors": 3,
    "nvmlDeviceGetRemappedRows": [1, 0, 0, 0],
    "nvmlDeviceGetRetiredPagesPendingStatus": {"error": 3},
    "nvmlDeviceGetFieldValues": [{"nvmlReturn": 0, "value": {"uiVal": 0}}],
    "nvmlDeviceGetSupportedEventTypes": 0x8,
    "nvmlEventSetCreate": "the events",
    "nvmlDeviceRegisterEvents": None,
    "nvmlEventSetWait_v2": {"error": 10},
}
SCENARIO = json.loads(os.environ.get("FAKE_NVML", "{}"))
NEWS = [SimpleNamespace(**event) for event in SCENARIO.pop("news", [])]


def _structure(value):
    if isinstance(value, dict):
        return SimpleNamespace(**{name: _structure(item) for name, item in value.items()})
    return [_structure(item) for item in value] if isinstance(value, list) else value


def _answering(answer):
    def call(*arguments):
        if isinstance(answer, dict) and "error" in answer:
            raise NVMLError(answer["error"])
        if isinstance(answer, dict) and "sleep" in answer:
            time.sleep(answer["sleep"])
        return _structure(answer)

    return call


for _name, _answer in {**DEFAULTS, **SCENARIO}.items():
    if _name not in SCENARIO or _answer is not None:
        globals()[_name] = _answering(_answer)
if NEWS:
    _no_more = nvmlEventSetWait_v2  # noqa: F821
    nvmlEventSetWait_v2 = lambda events, wait: NEWS.pop(0) if NEWS else _no_more()  # noqa: E731
