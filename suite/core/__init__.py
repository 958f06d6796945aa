"""What everything else rests on: records, traces, findings, errors, units. Standard library only."""
