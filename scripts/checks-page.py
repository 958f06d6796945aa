"""Write docs/checks.md from the checks themselves: scripts/checks-page.py [FILE]. A self-test holds the page fresh."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import math
import sys
import textwrap
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tunecheck.checks import CHECKS
from tunecheck.core.check import Check

HEAD = """\
<!-- Written by scripts/checks-page.py; do not edit by hand. -->
# Checks

For whoever reads a failure, or wants to know what a pass means. {count} checks, in the order of a training: the first
failure of a report is the nearest to the cause. A check is a pure function of a trace: `tunecheck judge TRACE --set
checks.NAME.LIMIT=VALUE` repeats it with another limit, and `checks: {{NAME: off}}` in a run's YAML leaves it out.
`tunecheck show RUN` lists the checks of a run with their limits.

"Only where named" means that the run's YAML must name the check, because its limit belongs to one run. A check whose
evidence is missing is unjudged, never passed, and so is one that needs pretrained weights where they are random. Every
limit can be changed in `checks:`; where its default comes from stands beside it.
"""
FEATURES = {
    "adapters": "train adapters (`lora:`)",
    "canary": "have a canary row and generate text",
    "checkpointing": "use gradient checkpointing",
    "directional": "measure directional derivatives (`probes.directional_gradient`), without dropout",
    "dropout": "use dropout in the adapters",
    "fallback": "name a fallback chain",
    "evaluates": "are trainings of your own (`tunecheck watch`) that evaluate",
    "expectations": "are trainings of your own (`tunecheck watch`) of which `--expect` says more",
    "frozen": "freeze a part of the base",
    "given_rows": "are trainings of your own (`tunecheck watch`)",
    "generate": "generate text (`probes.generate` or `probes.prompts`)",
    "long_run": "take 100 steps or more",
    "many_steps": "take 50 steps or more",
    "memory_order": "train the memory variants (`probes.memory_order`)",
    "merge": "merge the adapter (`probes.merge`)",
    "oracle": "compute oracle steps (`probes.oracle_steps`), without dropout",
    "pairs": "are trainings of your own (`tunecheck watch`) on pairs of a chosen and a rejected answer",
    "parallel": "train in several processes (`parallel`)",
    "sharded": "shard the model over them (`parallel.engine: fsdp`)",
    "quantized": "have a quantized base",
    "read_back": "read the adapter back by peft alone (`probes.read_back`)",
    "reference": "train a CPU reference of a fallback (`probes.reference`)",
    "repeat": "repeat their first steps (`probes.repeat_steps`)",
    "resume_declared": "are trainings of your own (`tunecheck watch`) whose arguments name a checkpoint that is there",
    "resume": "resume from a checkpoint (`probes.resume_from`)",
    "rescale": "go on from a checkpoint in another number of processes (`probes.rescale_to`)",
    "unknown_rows": "are trainings of your own (`tunecheck watch`) of a model or a loss that only its own code knows",
    "suite_rows": "are tunecheck's own",
    "several_steps": "take 5 steps or more",
    "trains_base": "train weights of the base",
    "watched": "are trainings of your own (`tunecheck watch`)",
}
"""`Run.features` in words: what a run must do for a check to apply."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limit:
    """One limit of a check: its YAML key, its default and where that comes from."""

    key: str
    default: str
    source: str


def main(arguments: list[str]) -> None:
    """Write the page."""
    path = Path(arguments[0]) if arguments else Path(__file__).resolve().parents[1] / "docs" / "checks.md"
    path.write_text(page(), encoding="utf-8")


def page() -> str:
    """Return the whole page: a table of contents by file, then a section for each check."""
    contents = ["| subject | checks |", "|---|---|"]
    for module in dict.fromkeys(check.__module__ for check in CHECKS.values()):
        names = [f"[`{name}`](#{name})" for name, check in CHECKS.items() if check.__module__ == module]
        contents.append(f"| {module.rpartition('.')[2]} | {', '.join(names)} |")
    sections = [section(name, check) for name, check in CHECKS.items()]
    return "\n".join([HEAD.format(count=len(CHECKS)), *contents, "", *sections])


def section(name: str, check: type[Check]) -> str:
    """Return what there is to say about one check."""
    lines = [
        f"## {name}",
        "",
        *wrapped(inspect.cleandoc(check.__doc__ or "")),
        "",
        *wrapped(f"- **Applies** {applies(check)}"),
    ]
    for limit in limits(check):
        lines += wrapped(f"- **Limit** `{limit.key}: {limit.default}`" + (f": {limit.source}" if limit.source else ""))
    lines += wrapped(f"- **May be meant**: {check.convention}") if check.convention else []
    lines += wrapped(f"- **A failure usually means** {check.meaning}")
    lines += wrapped(f"- **What to do** {check.remedy}")
    return "\n".join(lines) + "\n"


def applies(check: type[Check]) -> str:
    """Return to which runs a check applies."""
    wanted = " and ".join(FEATURES[name] for name in sorted(check.applies_to))
    words = f"to runs that {wanted}" if wanted else "to every run"
    words += "; only where named" if check.opt_in else ""
    return words + ("; needs pretrained weights" if check.needs_pretrained else "")


def limits(check: type[Check]) -> Iterator[Limit]:
    """Yield the fields of a check, each with the docstring or the comment that stands beside it."""
    sources = {key: source for base in reversed(check.__mro__) for key, source in explained(base).items()}
    for field in dataclasses.fields(check):
        yield Limit(field.name, value(field), sources.get(field.name, ""))


def value(field: dataclasses.Field[Any]) -> str:
    """Return a field's default as YAML writes it."""
    if field.default is dataclasses.MISSING:
        return "(required)" if field.default_factory is dataclasses.MISSING else str(field.default_factory())
    if isinstance(field.default, float) and math.isfinite(field.default):
        return f"{field.default:g}"
    return {True: "true", False: "false", None: "null"}.get(field.default, str(field.default))


def explained(owner: type) -> dict[str, str]:
    """Return the docstring below each field of a class, or the comment at the end of its line."""
    if not issubclass(owner, Check):
        return {}
    source = textwrap.dedent(inspect.getsource(owner))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    found: dict[str, str] = {}
    body = ast.parse(source).body[0].body  # type: ignore[attr-defined]
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            words = comments.get(node.end_lineno or 0, "")
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                words = "; ".join(filter(None, [words, " ".join(str(after.value.value).split())]))
            found[node.target.id] = words
    return found


def wrapped(text: str) -> list[str]:
    """Return the text in lines of at most 120 characters, a list item's later lines indented."""
    indent = "  " if text.startswith("- ") else ""
    options = {"width": 120, "subsequent_indent": indent, "break_long_words": False, "break_on_hyphens": False}
    paragraphs = [textwrap.wrap(" ".join(part.split()), **options) for part in text.split("\n\n")]  # type: ignore[arg-type]
    return [line for number, lines in enumerate(paragraphs) for line in ([""] if number else []) + lines]


if __name__ == "__main__":
    main(sys.argv[1:])
