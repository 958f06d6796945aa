"""Load the plugin; everything that wires pytest to the suite is there."""

import sys

from tunecheck.core.fork_server import head_start

head_start(sys.argv[1:])
pytest_plugins = ["tunecheck.plugin"]
