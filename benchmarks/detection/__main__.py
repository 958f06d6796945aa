"""`python -m benchmarks.detection ACTION`."""

import sys

from benchmarks.detection.command import main

sys.exit(main())
