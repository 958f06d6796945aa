"""Load the plugin; everything that wires pytest to the suite is there."""

pytest_plugins = ["tunecheck.plugin"]
