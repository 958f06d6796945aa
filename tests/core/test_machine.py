"""What is read again of a machine's facts has its type, or the file is refused."""

from __future__ import annotations

import dataclasses

import pytest
import traces

from tunecheck.core.errors import TraceError
from tunecheck.core.evidence import Environment
from tunecheck.core.trace import decode, encode
from tunecheck.core.typed import MISFITS, build

FACTS = {
    "gpus": [{"name": "NVIDIA L4", "total_bytes": 2**34, "driver_version": "580.1", "uuid": 7}],
    "cpu": {"model": "AMD EPYC", "usable_cores": 2, "flags": ["avx2"]},
    "git": {"commit": "62e946c", "dirty": False},
    "versions": {"torch": "2.13.0", "trl": None},
    "environment": {"OMP_NUM_THREADS": None},
    "python": "3.11.7",
    "ram_total_bytes": 2**35,
    "anything": ["else"],
}


def test_what_a_session_writes_is_read_again():
    """What is unknown, and what is not read, may be anything."""
    assert build(Environment, FACTS) == FACTS
    assert build(Environment, {}) == {}


@pytest.mark.parametrize(
    "part",
    [
        {"gpus": {}},
        {"gpus": [3]},
        {"cpu": "AMD"},
        {"cpu": {"usable_cores": "two"}},
        {"git": {"commit": 7}},
        {"python": {}},
    ],
    ids=str,
)
def test_a_part_of_another_type_is_refused(part):
    """Where it is read, so that no page and no history meets it."""
    with pytest.raises(MISFITS):
        build(Environment, FACTS | part)
    header = dataclasses.replace(traces.healthy().header, environment=FACTS | part)
    with pytest.raises(TraceError, match="not a trace record"):
        decode(encode(header))
