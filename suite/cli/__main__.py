"""`python -m suite.cli`: the command `tunecheck` where it is not installed."""

import sys

from suite.cli import main

sys.exit(main())
