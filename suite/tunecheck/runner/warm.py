"""What the fork server imports: the libraries that train. One that fails at import is left to the child to report.

The server by itself suppresses an ImportError alone; it would print any other error and end.
"""

import contextlib
import signal

from tunecheck.core import interrupts

if signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()):  # else this is no server: it is started with that
    interrupts.on_its_own()
with contextlib.suppress(Exception):
    import tunecheck.runner.preload  # noqa: F401
