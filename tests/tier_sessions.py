"""pytest as a user starts it, and the folder of the session that it leaves."""

from __future__ import annotations

import sys

COMMAND = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]


def session_folder(reports):
    """The one folder that was written."""
    (folder,) = reports.iterdir()
    return folder
