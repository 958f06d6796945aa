"""Names of files: as they are, or short enough, and still different."""

from __future__ import annotations

from tunecheck.core.text import LONGEST_STEM, file_stem


def test_a_name_of_any_length_is_a_files():
    """Names that begin alike stay apart."""
    long = [f"quick/{'a' * 400}{end}" for end in "xy"]

    assert file_stem("quick/smollm2-135m-qlora") == "quick-smollm2-135m-qlora"
    assert [len(file_stem(name)) for name in long] == [LONGEST_STEM] * 2
    assert len({file_stem(name) for name in long}) == 2
