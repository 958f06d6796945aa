"""One file, several runs: `compare:` names the rows of a table and what each of them sets.

    compare: # a run each, from freshly loaded weights, in this order
      lora: {}
      dora: {strategy: lora, lora.use_dora: true}
      full: {}

An entry's keys are those of --set, as far as they are in `VARIED`. Its strategy is its own name where neither the entry
nor the file gives one, and of the file's sections `lora` and `quantization` it takes those that its strategy needs.
"""

import copy
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunecheck.config.source import Document, leaves, parse
from tunecheck.core.spelling import nearest
from tunecheck.strategies import STRATEGIES

TIERS = {
    "quick": "ten steps: everything that fine-tuning rests on, before every commit",
    "convergence": "100 steps: the adapters learn, the checkpoint resumes, a fresh process agrees",
    "memory": "4-bit really saves memory and stays under its ceiling",
    "extended": "500 steps: stable, no leak, steady throughput",
    "full": "LLaMA-7B, 1000 steps of instruction tuning",
}
"""Tier to what it proves: pytest's markers, the folders under configs/ and the files under tiers/."""
COMPARE = "compare"
VARIED = ("strategy", "profile", "lora", "quantization", "training", "trainer", "fallback", "vram", "deadline")
"""Keys that an entry may set, each with all below it.

Everything else (model, data, evaluation, probes, checks, device) stands beside `compare`: rows of one table answer the
same questions about the same thing, and none loosens its own limits. So does training.max_steps, by which checks apply.
"""


@dataclass(frozen=True, slots=True)
class RunFile:
    """Location of a run: a YAML file and, in a comparison, the entry."""

    path: Path
    entry: str = ""

    @property
    def tier(self) -> str:
        """Return the name of the file's folder; where that is no tier, the one that the file gives."""
        folder = self.path.absolute().parent.name
        return folder if folder in TIERS else str(parse(self.path, str(self.path)).data.get("tier", folder))

    @property
    def id(self) -> str:
        return "-".join(filter(None, (self.path.stem, self.entry)))

    @property
    def comparison(self) -> str:
        return f"{self.tier}/{self.path.stem}" if self.entry else ""

    @property
    def name(self) -> str:
        return f"{self.tier}/{self.id}"


def entries(document: Document) -> list[str]:
    """Return the names under which `split` returns documents, without making them."""
    given = document.data.get(COMPARE)
    return [str(name) for name in given] if given and isinstance(given, dict) else [""]


def split(document: Document) -> dict[str, Document]:
    """Return the document of each run by entry, "" without `compare:`; a broken entry is a problem of each document."""
    if COMPARE not in document.data:
        return {"": document}
    if not isinstance(given := document.data.pop(COMPARE), dict) or not given:
        document.report((COMPARE,), "should be a section with an entry for each run: its name and what it sets, or {}")
        return {"": document}
    for name, settings in given.items():
        path = (COMPARE, str(name))
        if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]*", str(name)):
            document.report(path, "becomes a part of file names: use small letters, digits, '.', '_' and '-'")
        if not isinstance(settings, dict):
            document.report(path, f"should be a section with what this run sets, or {{}} (got {settings!r})")
            continue
        for key, value in settings.items():
            written = [_path(key), *(leaf for leaf, _ in leaves(_path(key), value))]
            if refused := [keys for keys in written if keys[0] not in VARIED or keys == _path("training.max_steps")]:
                rule = f"{'.'.join(refused[0])} applies to all runs of a comparison: write it next to compare"
                hint = nearest(refused[0][0], VARIED)
                document.report((*path, str(key)), f"{rule}; an entry may set: {', '.join(VARIED)}{hint}")
    readable = {str(name): settings if isinstance(settings, dict) else {} for name, settings in given.items()}
    return {name: _entry(document, name, settings) for name, settings in readable.items()}


def drop_unused(document: Document) -> None:
    """Remove the sections that belong to other strategies than the document's own."""
    strategy = STRATEGIES.get(str(document.data.get("strategy")))
    for name in {section for known in STRATEGIES.values() for section in known.sections}:
        if strategy is not None and name not in strategy.sections:
            document.data.pop(name, None)


def _path(key: Any) -> tuple[str, ...]:
    return tuple(str(key).split("."))


def _entry(document: Document, name: str, settings: dict[str, Any]) -> Document:
    part = copy.deepcopy(document)
    if "strategy" not in part.data and "strategy" not in settings:
        part.set(("strategy",), name, document.place((COMPARE, name)))
    for key, value in settings.items():
        if not document.is_reported((COMPARE, name, str(key))):
            part.set(_path(key), value, document.place((COMPARE, name, str(key))))
    return part
