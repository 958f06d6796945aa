"""Options of a session, declared once for `pytest` and for `tunecheck run`: the keywords of `add_argument`."""

from typing import Any

from tunecheck.core.units import size_option

RUN = "a run by its name, id or YAML file, such as quick/smollm2-135m-qlora"
REPEATED: dict[str, Any] = {"action": "append", "default": []}
SET = {**REPEATED, "help": "override a key of every run; may be repeated", "metavar": "KEY=VALUE"}
IGNORE = {**REPEATED, "help": "accept a check's finding, with the reason", "metavar": 'NAME="REASON"'}
CARD: dict[str, Any] = {"help": "apply the settings of a GPU class from configs/cards: 8gb, cpu", "metavar": "CLASS"}
SESSION_OPTIONS: dict[str, dict[str, Any]] = {
    "--set": SET,
    "--card": CARD,
    "--require-gpu": {
        "help": "fail if there is no GPU, or if a run is skipped for lack of one",
        "action": "store_true",
    },
    "--vram-cap": {
        "help": "limit every GPU to this size, such as 8GiB, at admission and in the allocator",
        "metavar": "SIZE",
        "type": size_option,
    },
    "--fail-on-regression": {"help": "fail if a figure is worse than in previous sessions", "action": "store_true"},
    "--in-process": {"help": "train in the pytest process, for a debugger", "action": "store_true"},
}
