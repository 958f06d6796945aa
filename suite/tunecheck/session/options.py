"""Options of a session, declared once for `pytest` and for `tunecheck run`."""

from typing import Any, NamedTuple

from tunecheck.core.units import size_option


class Option(NamedTuple):
    """A command-line option."""

    flag: str
    help: str
    settings: dict[str, Any]
    """Further keywords of argparse's `add_argument`, which pytest's `addoption` takes too."""

    def add_to(self, parser: Any) -> None:
        """Add the option to a parser of argparse."""
        parser.add_argument(self.flag, help=self.help, **self.settings)

    @property
    def name(self) -> str:
        """Attribute of the parsed options."""
        return self.flag.removeprefix("--").replace("-", "_")


RUN = "a run by its name, id or YAML file, such as quick/smollm2-135m-qlora"
"""Help of the argument that names one."""
SET = Option(
    "--set",
    "override a key of every run; may be repeated",
    {"action": "append", "default": [], "metavar": "KEY=VALUE"},
)
IGNORE = Option(
    "--ignore",
    "accept a check's finding, with the reason",
    {"action": "append", "default": [], "metavar": 'NAME="REASON"'},
)
CARD = Option("--card", "apply the settings of a GPU class from configs/cards: 8gb, cpu", {"metavar": "CLASS"})
SWITCH = {"action": "store_true"}
SESSION_OPTIONS = (
    SET,
    CARD,
    Option("--require-gpu", "fail if there is no GPU, or if a run is skipped for lack of one", SWITCH),
    Option(
        "--vram-cap",
        "limit every GPU to this size, such as 8GiB, at admission and in the allocator",
        {"metavar": "SIZE", "type": size_option},
    ),
    Option("--fail-on-regression", "fail if a figure is worse than in previous sessions", SWITCH),
    Option("--in-process", "train in the pytest process, for a debugger", SWITCH),
)
