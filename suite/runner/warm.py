"""What the fork server imports: the libraries that train. One that fails at import is left to the child to report.

The server by itself suppresses an ImportError alone; it would print any other error and end.
"""

import contextlib

with contextlib.suppress(Exception):
    import suite.runner.preload  # noqa: F401
