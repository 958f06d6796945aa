"""The command line: all commands, by what they are about."""

from collections.abc import Sequence

from tunecheck import __version__
from tunecheck.cli import bench, completion, fleet, history, machine, reading, run, runs, watch
from tunecheck.cli.parser import Parser, run_command

DESCRIPTION = "Check that LLM fine-tuning is correct: your own training, or reference runs on this machine."


def execute(arguments: Sequence[str] | None) -> int:
    """Execute one command and return its exit status."""
    return run_command(parser(), arguments)


def parser() -> Parser:
    """Return the parser of all commands."""
    parser = Parser(prog="tunecheck", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"tunecheck {__version__}")
    parser.add_argument(
        "--configs",
        metavar="FOLDER",
        help="folder with your runs, models and data (default: $TUNECHECK_CONFIGS, else ./configs)",
    )
    parser.set_defaults(parser=parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for group in (run, watch, bench, fleet, runs, machine, reading, history, completion):
        group.add_commands(commands)
    return parser
