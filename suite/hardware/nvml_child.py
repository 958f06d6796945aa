"""The helper process that asks NVML: it prints what `read_nvml` found as one JSON object. Nobody imports it."""

from __future__ import annotations

import dataclasses
import json

from suite.hardware.nvml import read_nvml

if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(read_nvml())), flush=True)
