"""What transformers reads at its import is read once."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest

from tunecheck.core.paths import project_folder
from tunecheck.runner.read_once import READER, names_read_once

PROGRAM = """
import tunecheck.runner.preload
from transformers.utils import import_utils
held = import_utils.create_import_structure_from_path.cache_info()
print(held.maxsize, held.hits > held.misses / 2)
"""


def test_the_second_reading_finds_what_the_first_has_kept():
    """In the process that imports the libraries, with the installed transformers."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=project_folder(), capture_output=True, text=True, timeout=120, check=True
    )

    assert done.stdout.split() == ["None", "True"], done.stderr


@pytest.mark.parametrize(("module", "kept"), [(READER, None), ("somewhere.else", 128)])
def test_other_modules_have_pythons_own_cache(module, kept):
    """And everybody has after the block."""
    pythons_own = functools.lru_cache
    with names_read_once():
        names = {"__name__": module, "functools": functools}
        exec("@functools.lru_cache\ndef one(): pass\n@functools.lru_cache(maxsize=7)\ndef other(): pass", names)

    assert names["one"].cache_parameters()["maxsize"] == kept
    assert names["other"].cache_parameters()["maxsize"] == 7
    assert functools.lru_cache is pythons_own
