"""`python -m tunecheck.config > configs/run.schema.json` refreshes the schema that editors read."""

from tunecheck.config import json_schema

print(json_schema(), end="")
