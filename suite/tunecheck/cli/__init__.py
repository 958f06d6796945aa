"""The command `tunecheck`: its signals are handled before anything else is imported."""

import sys
from collections.abc import Sequence

from tunecheck.core import interrupts


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute one command and return its exit status; without arguments those of the process, which then ends."""
    listening = interrupts.listen()
    try:
        from tunecheck.core.errors import ConfigError

        try:
            from tunecheck.cli.commands import parser
            from tunecheck.cli.parser import run_command
        except ConfigError as error:  # of another package's checks
            problem = str(error)
        except ModuleNotFoundError as error:  # as where the wheel was installed without what it requires
            if (error.name or "tunecheck").startswith("tunecheck"):
                raise
            problem = f"{error.name} is not installed in {sys.prefix}; run pip install {_missing() or error.name}"
        except (ImportError, SystemError) as error:  # pydantic raises the latter beside another pydantic-core
            if (getattr(error, "name", None) or "").startswith("tunecheck"):
                raise
            problem = f"a package in {sys.prefix} does not load; pip check says more: {error}"
        else:
            return run_command(parser(), arguments)
        print(f"tunecheck: {problem}", file=sys.stderr)
        return 4
    finally:
        interrupts.close()
        if listening:
            interrupts.stop(at_exit=arguments is None)


def _missing() -> str:
    """Return the packages that tunecheck requires and this environment lacks, as a shell takes them."""
    import re
    import shlex
    from contextlib import suppress
    from importlib import metadata

    lacking, required = list[str](), list[str]()
    with suppress(metadata.PackageNotFoundError):  # of a clone that is not installed
        required = metadata.requires("tunecheck") or []
    for line in required:
        requirement, _, condition = line.partition(";")
        try:
            metadata.distribution(re.split(r"[^\w.-]", requirement)[0])
        except metadata.PackageNotFoundError:
            lacking += [] if "extra ==" in condition else [requirement.strip()]
    return " ".join(map(shlex.quote, lacking))
