"""Traces of the processes of one watched training, as each of them leaves its own."""

from __future__ import annotations

import dataclasses

from traces import BY_A_SCRIPT, healthy, opened, with_run

from tunecheck.core import evidence as e
from tunecheck.core.trace import TraceWriter
from tunecheck.listen.options import Options, trace_file

ROWS = tuple(f"row {number}" for number in range(12))
SEEN = e.RowsGiven(
    rows=6,
    dataset_rows=12,
    repeated=(),
    uncertain=0,
    end_tokens_supervised=1,
    end_tokens_masked=0,
    first_token_supervised=0,
    unsupervised=0,
)


def heard(folder, rank, *, rows=None, dataset_rows=12, processes=2, end=None, also=(), **step):
    """Write the trace of one process, as the listener does."""
    main = healthy().main
    window = main.all(e.Window)[0]
    features = ["user_code"]
    header = with_run(
        healthy(), features=features, premises=BY_A_SCRIPT | opened({"every_row_seen": "only its own rows"})
    ).header
    options = Options(folder=str(folder), name="train")
    writer = TraceWriter(trace_file(options, 1, rank))
    own = ROWS[6 * rank : 6 * rank + 6] if rows is None else rows
    writer.write(
        dataclasses.replace(header, environment={"processes": processes}),
        main.start,
        *(dataclasses.replace(seen, **step) for seen in main.all(e.Step)),
        *(dataclasses.replace(window, step=at, rows=(row,), digests=(row,)) for at, row in enumerate(own)),
        dataclasses.replace(SEEN, dataset_rows=dataset_rows),
        *also,
        end or main.end,
    )
    return options
