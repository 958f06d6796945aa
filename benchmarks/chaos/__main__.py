"""`python -m benchmarks.chaos [WORD ...]`."""

import sys

from benchmarks.chaos.command import main

sys.exit(main())
