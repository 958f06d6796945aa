"""Records, traces, findings, errors and units, on the standard library alone."""
