"""Load the plugin; everything that wires pytest to the suite is there."""

import sys
from pathlib import Path

from tunecheck.core.fork_server import head_start

head_start(sys.argv[1:], Path(__file__).parent / "tiers")
pytest_plugins = ["tunecheck.plugin"]
