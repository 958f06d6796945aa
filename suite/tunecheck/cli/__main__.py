"""`python -m tunecheck.cli`: the command `tunecheck` where it is not installed."""

import sys

from tunecheck.cli import main

sys.exit(main())
