"""Helper process that reads NVML: prints the result of `read_nvml` as one JSON object. Not to be imported."""

import dataclasses
import json

from tunecheck.hardware.nvml import read_nvml

if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(read_nvml())), flush=True)
