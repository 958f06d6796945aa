"""What the frameworks' own commands read: SmolLM2 with its tokenizer, rows in each form, and their settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tunecheck.core.paths import cache_folder, project_folder

TRAININGS = Path(__file__).parent / "trainings"
TINY = project_folder() / "configs" / "models" / "tiny-llama"
FACTS = project_folder() / "configs" / "data" / "rust-python-facts" / "train.jsonl"


def write_inputs(folder: Path, values: Mapping[str, str]) -> None:
    """Write model, rows and settings into this folder; `values` fill in the placeholders of the settings."""
    rows = [json.loads(line) for line in FACTS.read_text(encoding="utf-8").splitlines()]
    facts = [{"instruction": row["instruction"], "input": "", "output": row["response"]} for row in rows]
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    (folder / "dataset_info.json").write_text(json.dumps({"facts": {"file_name": "facts.json"}}), encoding="utf-8")
    completions = [{"prompt": f"{r['instruction']}\n", "completion": r["response"]} for r in rows]
    turns = [_messages(row["instruction"], row["response"]) for row in rows]
    for name, lines in (("completions", completions), ("conversations", turns)):
        (folder / name).mkdir()
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / name / "train.jsonl").write_text(text, encoding="utf-8")
    for settings in TRAININGS.glob("*.yaml"):
        text = settings.read_text(encoding="utf-8").format(**values)
        (folder / settings.name).write_text(text, encoding="utf-8")
    held = sorted((cache_folder() / "models" / "smollm2-135m").glob("package-*"))
    _write_model(folder / "model", held[-1:])
    _write_model(folder / "tiny", [TINY])


def _messages(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def _write_model(folder: Path, sources: Sequence[Path]) -> None:
    """Link to the files of these folders, with a configuration and a tokenizer that transformers 4 reads, too."""
    folder.mkdir()
    for path in (path for source in sources for path in source.iterdir()):
        if path.name == "tokenizer_config.json":
            text = path.read_text(encoding="utf-8").replace("TokenizersBackend", "PreTrainedTokenizerFast")
            (folder / path.name).write_text(text, encoding="utf-8")
        elif path.name == "config.json":  # transformers 4 does not look for the rotary base among rope_parameters
            config = json.loads(path.read_text(encoding="utf-8"))
            config |= {"rope_theta": config.get("rope_parameters", {}).get("rope_theta", config.get("rope_theta"))}
            (folder / path.name).write_text(json.dumps(config), encoding="utf-8")
        else:
            (folder / path.name).symlink_to(path)
