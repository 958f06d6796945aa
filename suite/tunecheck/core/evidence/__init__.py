"""The records a trace is made of: what was measured, never what it means. The checks decide that.

Plain frozen data, no tensors. A new probe adds its record to the file of its subject, and is known by it: `RECORDS` is
derived from the subclasses. Names carry units; `_error` is a relative error unless the name says otherwise.
"""

from tunecheck.core.evidence.attempts import *
from tunecheck.core.evidence.evaluation import *
from tunecheck.core.evidence.parallel import *
from tunecheck.core.evidence.resources import *
from tunecheck.core.evidence.setup import *
from tunecheck.core.evidence.training import *
from tunecheck.core.evidence.watched import *
from tunecheck.core.evidence.watched_rows import *
from tunecheck.core.extensions import EXTENSION_CHECKS, extensions
from tunecheck.core.frozen import Record as Record

RECORDS: dict[str, type[Record]] = {kind.__name__: kind for kind in Record.__subclasses__()}
"""Every kind of record by its name in the file, but for those of other packages."""


def record_kind(name: str) -> type[Record]:
    """Return the kind of record of this name, one of another package's checks included. Raises KeyError for none."""
    if name not in RECORDS:
        extensions(EXTENSION_CHECKS)  # which define their records
        return {kind.__name__: kind for kind in Record.__subclasses__()}[name]
    return RECORDS[name]
