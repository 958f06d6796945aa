"""What the fork server imports: the libraries that train. One that fails at import is left to the child to report.

The server by itself suppresses an ImportError alone; it would print any other error and end.
"""

import contextlib

from suite.core import interrupts

interrupts.on_its_own()
with contextlib.suppress(Exception):
    import suite.runner.preload  # noqa: F401
