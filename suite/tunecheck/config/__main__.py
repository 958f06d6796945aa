"""JSON Schema of a run's YAML, for completion and validation in editors.

`python -m tunecheck.config > configs/run.schema.json` refreshes it.
"""

import json
from typing import Any

from pydantic import TypeAdapter

from tunecheck.checks import CHECKS
from tunecheck.config.comparisons import COMPARE, VARIED
from tunecheck.config.references import REFERENCES
from tunecheck.config.schema import Run
from tunecheck.config.trainers import TRAINERS


def json_schema() -> str:
    """Return the JSON Schema of a run's YAML: model and data are names, and each check has its limits."""
    schema = Run.model_json_schema()
    properties = schema["properties"]
    for key in Run.from_path - {"tier"}:
        del properties[key]
    for key, folder in REFERENCES.items():  # no enumeration: a user's own files count too
        properties[key] = {"description": f"Name of a YAML file in configs/{folder}.", "type": "string"}
    properties["trainer"]["enum"] = list(TRAINERS)
    limits = {name: {"anyOf": [TypeAdapter(check).json_schema(), {"const": "off"}]} for name, check in CHECKS.items()}
    properties["checks"] |= {"additionalProperties": False, "properties": limits}
    properties[COMPARE] = {
        "description": "Several runs: name of each to the keys that it sets, written as for --set; see comparisons.py.",
        "type": "object",
        "minProperties": 1,
        "additionalProperties": {"type": "object", "propertyNames": {"pattern": rf"^({'|'.join(VARIED)})(\.|$)"}},
    }
    # an entry's name is its strategy unless one is given
    schema["required"] = [key for key in schema["required"] if key in properties and key not in ("strategy", "tier")]
    schema["$defs"] = {name: part for name, part in schema["$defs"].items() if name in _used(schema, schema["$defs"])}
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def _used(schema: dict[str, Any], definitions: dict[str, Any]) -> set[str]:
    """Return the names of the definitions that the properties refer to."""
    used: set[str] = set()
    waiting: list[Any] = [schema["properties"]]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            name = str(part.get("$ref", "")).rpartition("/")[2]
            if name and name not in used:
                used.add(name)
                waiting.append(definitions[name])
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return used


if __name__ == "__main__":
    print(json_schema(), end="")
