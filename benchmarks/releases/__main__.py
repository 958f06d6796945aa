"""`python -m benchmarks.releases`."""

import sys

from benchmarks.releases.command import main

sys.exit(main())
