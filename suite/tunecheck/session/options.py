"""Options of a session, declared once for `pytest` and for `tunecheck run`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tunecheck.core.units import size_option


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A command-line option."""

    flag: str
    help: str
    settings: dict[str, Any]
    """Further keywords of argparse's `add_argument`, which pytest's `addoption` takes too."""

    @property
    def name(self) -> str:
        """Attribute of the parsed options."""
        return self.flag.removeprefix("--").replace("-", "_")


SET = Option(
    flag="--set",
    help="override a key of every run; may be repeated",
    settings={"action": "append", "default": [], "metavar": "KEY=VALUE"},
)
CARD = Option(
    flag="--card",
    help="settings of a GPU class, a file in configs/cards: 8gb, cpu",
    settings={"metavar": "CLASS"},
)
SESSION_OPTIONS = (
    SET,
    CARD,
    Option(
        flag="--require-gpu",
        help="no GPU, and every skip for lack of one, is a failure",
        settings={"action": "store_true"},
    ),
    Option(
        flag="--vram-cap",
        help="treat every GPU as one of this size, such as 8GiB, at admission and in the allocator",
        settings={"metavar": "SIZE", "type": size_option},
    ),
    Option(
        flag="--fail-on-regression",
        help="a figure that is worse than in previous sessions is a failure",
        settings={"action": "store_true"},
    ),
    Option(
        flag="--in-process",
        help="train in pytest's own process, for a debugger",
        settings={"action": "store_true"},
    ),
)
