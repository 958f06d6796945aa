"""`python -m suite.models.fetch NAME ...`: get models into the cache before a run, or before the network goes."""

from __future__ import annotations

import sys

from suite.config import load_model
from suite.errors import SuiteError
from suite.models import prefetch


def main(names: list[str]) -> int:
    """Exit status 0 when every model is there, 1 with the reason on stderr, 2 when none was named."""
    if not names:
        print("usage: python -m suite.models.fetch NAME ...   (NAME as in configs/models/NAME.yaml)", file=sys.stderr)
        return 2
    try:
        for folder in prefetch([load_model(name) for name in names], say=print):
            print(f"{folder.model}: {folder.source} {folder.identifier} {folder.revision} in {folder.path}")
    except SuiteError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
