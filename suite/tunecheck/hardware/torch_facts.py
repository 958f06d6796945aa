"""torch's own view of the GPUs, from a child process: importing torch may crash or hang, and initialises CUDA."""

import importlib
import re
import warnings
from pathlib import Path
from typing import Any

from tunecheck.core.helper import HelperFailed, ask

TIMEOUT_SECONDS = 60.0


def torch_view() -> dict[str, Any] | str:
    """Return the child's facts, or why there are none. No child is left running."""
    try:
        return ask("tunecheck.hardware.torch_facts:gathered", about="torch", timeout_seconds=TIMEOUT_SECONDS)
    except HelperFailed as error:
        return str(error)


# The child.


def gathered() -> dict[str, Any]:
    """Return the facts; errors are text."""
    warnings.simplefilter("ignore")
    try:
        torch: Any = importlib.import_module("torch")
    except Exception as error:
        return {"torch": None, "error": _text(error)}
    facts = {"torch": torch.__version__, "error": None, "cuda_build": torch.version.cuda}
    return {**facts, **_cuda(torch), "bitsandbytes": _bitsandbytes(torch)}


def _cuda(torch: Any) -> dict[str, Any]:
    devices: list[dict[str, Any]] = []
    try:
        if torch.cuda.is_available():
            every = range(torch.cuda.device_count())
            devices = [device_facts(torch.cuda.get_device_properties(index)) for index in every]
        elif torch.version.cuda is not None:
            torch.cuda.init()  # raises, and only its message says why there is no GPU
    except Exception as error:
        return {"cuda_error": _text(error), "devices": []}
    return {"cuda_error": None, "devices": devices}


def device_facts(properties: Any) -> dict[str, Any]:
    """Return name, UUID and compute capability of a card, of torch's properties of it."""
    told = getattr(properties, "uuid", None)
    uuid = None if told is None else f"GPU-{str(told).removeprefix('GPU-')}"
    capability = f"{properties.major}.{properties.minor}"
    return {"name": properties.name, "uuid": uuid, "compute_capability": capability}


def _bitsandbytes(torch: Any) -> dict[str, Any]:
    try:
        package: Any = importlib.import_module("bitsandbytes")
        # Instance attributes only: the stand-in for a library that failed to load answers every name with a function.
        library = vars(importlib.import_module("bitsandbytes.cextension").lib)
    except Exception as error:
        return {"version": None, "native_library": None, "cuda_binary_fits": None, "error": _text(error)}
    name = None if (path := getattr(library.get("_lib"), "_name", None)) is None else Path(path).name
    shipped = [file.name for file in Path(package.__file__).parent.glob("libbitsandbytes_cuda*")]
    facts = {"version": package.__version__, "native_library": name, "error": library.get("error_msg")}
    return {**facts, "cuda_binary_fits": _fits(torch, name, shipped)}


def _fits(torch: Any, loaded: str | None, shipped: list[str]) -> bool | None:
    """Return whether a binary for torch's CUDA major version exists, on a GPU is loaded. None without CUDA."""
    if torch.version.cuda is None:
        return None
    major = torch.version.cuda.partition(".")[0]
    candidates = shipped if not torch.cuda.is_available() else [loaded or ""]
    return any(re.match(rf"libbitsandbytes_cuda{major}[0-9]", name) for name in candidates)


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip()}".partition("\n")[0][:300]
