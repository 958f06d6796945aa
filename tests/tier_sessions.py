"""pytest as a user starts it, and the folder of the session that it leaves."""

from __future__ import annotations

import os
import subprocess
import sys

import shared_fork_server

from tunecheck.core.paths import project_folder

COMMAND = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]


def environment(reports, **variables):
    """Return the environment of a child whose reports go to this folder; its PYTHONPATH begins with the one given."""
    places = (variables.pop("PYTHONPATH", None), os.environ.get("PYTHONPATH"), str(project_folder() / "tests"))
    path = os.pathsep.join(filter(None, places))
    own = {"TUNECHECK_REPORTS": str(reports), "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "PYTHONPATH": path}
    return {**os.environ, **own, **variables}


def run_pytest(reports, *arguments, **variables):
    """Run pytest to the end, with these environment variables, and return the finished process."""
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=project_folder(),
        env=environment(reports, **variables),
        capture_output=True,
        text=True,
        timeout=300,
    )


def run_on_shared_server(reports, *arguments, **variables):
    """Run pytest likewise, its training children from this process's fork server."""
    shared = shared_fork_server.address()
    return run_pytest(reports, *shared_fork_server.OPTIONS, *arguments, **shared, **variables)


def session_folder(reports):
    """The one folder that was written."""
    (folder,) = reports.iterdir()
    return folder
