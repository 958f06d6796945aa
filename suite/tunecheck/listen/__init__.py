"""A training that is not ours: found, listened to, described as a run and judged by the same checks."""
