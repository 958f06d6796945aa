"""What the fork server imports: the libraries that train. One that fails at import is left to the child to report."""

import contextlib
import signal

from tunecheck.core import interrupts

if signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()):  # else this is no server: it is started with that
    interrupts.on_its_own()
with contextlib.suppress(Exception):  # the server itself suppresses an ImportError alone, and ends at any other
    import tunecheck.runner.preload  # noqa: F401
