"""`python -m benchmarks.peers`."""

import sys

from benchmarks.peers.command import main

sys.exit(main())
