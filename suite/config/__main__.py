"""`python -m suite.config > configs/run.schema.json` refreshes the schema that editors read."""

from suite.config import json_schema

print(json_schema(), end="")
