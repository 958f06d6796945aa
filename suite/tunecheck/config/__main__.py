"""JSON Schema of a run's YAML, for editors: `python -m tunecheck.config > configs/run.schema.json` refreshes it."""

import json
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, WithJsonSchema, create_model

from tunecheck.checks import CHECKS
from tunecheck.config.comparisons import COMPARE, VARIED
from tunecheck.config.schema import Run
from tunecheck.config.source import REFERENCES
from tunecheck.config.trainers import TRAINERS


def json_schema() -> str:
    """Return the JSON Schema of a run's YAML: model and data are names, and each check has its limits."""
    written: dict[str, Any] = {key: (Annotated[Any, WithJsonSchema(None)], None) for key in Run.from_path - {"tier"}}
    for key, folder in REFERENCES.items():  # no enumeration: a user's own files count too
        written[key] = (str, Field(description=f"Name of a YAML file in configs/{folder}."))
    schema = create_model("Run", __base__=Run, __doc__=Run.__doc__, **written).model_json_schema()
    properties = schema["properties"]
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
    schema["required"] = [key for key in schema["required"] if key not in ("strategy", "tier")]
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    print(json_schema(), end="")
