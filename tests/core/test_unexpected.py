"""What nobody foresaw, told in one line."""

import importlib.metadata

import pytest

from tunecheck.core.errors import TRAIN_EXTRA
from tunecheck.core.unexpected import unexpected


def raised(make):
    """Return the error that this raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of any kind
        make()
    return caught.value


@pytest.mark.parametrize(
    "make",
    [lambda: __import__("no_such_package"), lambda: importlib.metadata.version("no_such_package")],
    ids=["module", "metadata"],
)
def test_a_missing_package_is_no_error_of_tunecheck(make, tmp_path):
    """The wheel installs none of the libraries that train."""
    line = unexpected(raised(make), tmp_path)

    assert line == f"needs the package no_such_package, which is not installed here; {TRAIN_EXTRA}"
    assert not [*tmp_path.iterdir()]


def test_a_missing_module_of_its_own_is_one(tmp_path):
    """With its traceback in a file."""
    line = unexpected(raised(lambda: __import__("tunecheck.no_such_module")), tmp_path)

    assert line.startswith("an error of tunecheck itself")
    assert "no_such_module" in (tmp_path / "error.txt").read_text()
