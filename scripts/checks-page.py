"""Write docs/checks/ from the checks themselves: scripts/checks-page.py [FOLDER]. A self-test keeps the pages fresh."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import math
import sys
import textwrap
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.failing import examples, healthy
from tunecheck.checks import CHECKS, SUBJECTS
from tunecheck.core.check import Check
from tunecheck.core.paths import checkout_folder
from tunecheck.core.premises import Premise
from tunecheck.listen.expectations import EXPECTATIONS
from tunecheck.listen.explain import ALL
from tunecheck.listen.explain import FEATURES as OF_A_SCRIPT
from tunecheck.results.causes import CONSEQUENCES

WRITTEN = "<!-- Written by scripts/checks-page.py; do not edit by hand. -->"
INDEX = """\
# Checks

tunecheck has {count} checks, listed in the order of a training. The first failure of a report is the nearest to the
cause. A check reads a recorded trace and trains nothing: `tunecheck judge TRACE` repeats it.

A check that lacks evidence is unjudged, never passed. Each page names the limits of a check and their source.

- *your training*: `tunecheck watch` judges it. `tunecheck explain` lists what each check needs.
- *tiers*: tunecheck's own runs judge it. `tunecheck show RUN` lists the checks of a run.
- *causal LM*: the check needs a causal language model and its token loss.
"""
WHY = {
    "machine": "A wrong device, dtype or kernel changes speed, memory and numbers without an error.",
    "what learns": "A frozen adapter, or an unfrozen base, trains without an error. Only the result shows it.",
    "base": "Training on damaged or missing base weights looks normal, and gives a poor model.",
    "forward": "Loss and gradients are only as right as the forward pass that they come from.",
    "adapters": "A wrong adapter still trains and still lowers the loss, but towards another function.",
    "rows": "The model learns exactly what its rows and labels contain. A mistake in them raises no error.",
    "gradients": "A wrong gradient still lowers the loss for a while. The loss curve does not show it.",
    "loss": "A wrongly scaled or averaged loss changes the effective learning rate and hides behind a falling curve.",
    "optimizer": "The optimizer applies every mistake of rate, order or coverage silently in each step.",
    "evaluation": "A wrong evaluation selects the wrong checkpoint, and reports a quality that does not exist.",
    "saving": "The saved files are the product. A mistake in them shows only after the training is gone.",
    "memory": "A slow leak, or a memory setting without effect, ends a long training hours after its start.",
    "speed": "Time is money on rented GPUs. A slow step, or a wrong clock, hides in a healthy loss curve.",
    "learning": "A pipeline can be correct in every part and still teach the model nothing.",
    "repeats": "A result that cannot be repeated or resumed cannot be compared or trusted.",
}
"""Subject to why its checks matter."""
YOURS = "Your own training (`tunecheck watch`)"
FEATURES = {
    "adapters": "Adapters: `lora:` in a run, a LoraConfig in your training.",
    "canary": "A canary row and generated text.",
    "checkpointing": "Gradient checkpointing.",
    "directional": "Directional derivatives without dropout (`probes.directional_gradient`).",
    "dropout": "Dropout in the adapters.",
    "evaluates": f"{YOURS} with evaluations.",
    "expectations": f"{YOURS} with `--expect`.",
    "fallback": "A configured fallback chain.",
    "frozen": "Frozen parts of the base.",
    "generate": "Generated text (`probes.generate` or `probes.prompts`).",
    "long_run": "At least 100 steps.",
    "many_steps": "At least 50 steps.",
    "memory_order": "The memory variants (`probes.memory_order`).",
    "merge": "A merged adapter: `probes.merge` in a run, adapters of a LoraConfig in your training.",
    "named": "A run whose YAML names the check under `checks:`, because the limit belongs to one run.",
    "oracle": "Oracle steps without dropout (`probes.oracle_steps`).",
    "own_clock": "One of tunecheck's own runs, by its own loop: it times its steps itself.",
    "pairs": f"{YOURS} on preference pairs or labelled answers.",
    "parallel": "Several processes (`parallel`).",
    "quantized": "A quantized base.",
    "read_back": "The saved adapter loaded by peft alone (`probes.read_back`).",
    "reference": "A CPU reference of a fallback (`probes.reference`).",
    "repeat": "Repeated first steps: `probes.repeat_steps` in a run, `--twice` in your training.",
    "rescale": "A resume with another number of processes (`probes.rescale_to`).",
    "resume": "A resume from a checkpoint: `probes.resume_from` in a run, `--twice` in your training.",
    "resume_declared": f"{YOURS} whose arguments name an existing checkpoint.",
    "several_steps": "At least 5 steps.",
    "sharded": "A model sharded over several processes (`parallel.engine: fsdp`).",
    "suite_rows": "One of tunecheck's own runs.",
    "trains_base": "Trained weights in the base.",
    "unknown_rows": f"{YOURS} with a model or a loss of its own.",
    "user_code": f"{YOURS}.",
}
"""`Run.features` in words: what a training must have for a check to apply."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limit:
    """One limit of a check: its YAML key, its default and where that comes from."""

    key: str
    default: str
    source: str


def main(arguments: list[str]) -> None:
    """Write the index and a page for each check; remove the pages of checks that no longer exist."""
    folder = Path(arguments[0]) if arguments else checkout_folder() / "docs" / "checks"
    folder.mkdir(parents=True, exist_ok=True)
    found = pages()
    for stale in {path.name for path in folder.glob("*.md")} - found.keys():
        (folder / stale).unlink()
    for name, text in found.items():
        (folder / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """Return file name to text of every page."""
    failures, passes = examples(), healthy()
    found = {f"{name}.md": page(name, check, failures, passes.get(name, "")) for name, check in CHECKS.items()}
    return {"index.md": index(), **found}


def index() -> str:
    """Return the table of all checks by subject."""
    lines = [WRITTEN, *INDEX.format(count=len(CHECKS)).splitlines()]
    for subject in dict.fromkeys(SUBJECTS.values()):
        lines += [
            "",
            f"## {subject.capitalize()}",
            "",
            WHY[subject],
            "",
            "| check | rule | judged in |",
            "|---|---|---|",
        ]
        for name in (name for name in CHECKS if SUBJECTS[name] == subject):
            lines.append(f"| [`{name}`]({name}.md) | {cell(rule(CHECKS[name]))} | {kind(CHECKS[name])} |")
    return "\n".join(lines) + "\n"


def page(name: str, check: type[Check], failures: Mapping[str, tuple[str, str]], healthy: str) -> str:
    """Return one check's page."""
    paragraphs = inspect.cleandoc(check.__doc__ or "").split("\n\n")
    later = " ".join(paragraphs[0].split()).removeprefix(rule(check)).strip()
    lines = [WRITTEN, f"# {name}", "", *wrapped(rule(check))]
    lines += titled("Why it matters", WHY[SUBJECTS[name]])
    if details := [text for text in (later, *paragraphs[1:]) if text]:
        lines += titled("What it measures", *details)
    if found := list(limits(check)):
        lines += ["", "## Limits", "", *(line for limit in found for line in wrapped(limit_line(limit)))]
    lines += ["", "## What it needs", "", *(line for need in needs(check) for line in wrapped(f"- {need}"))]
    lines += titled("Likely causes", check.meaning)
    if why := [other for other, spoiled in CONSEQUENCES.items() if name in spoiled]:
        lines += ["", *wrapped(f"A failure of {linked(why)} also fails this check. Fix that one first.")]
    lines += titled("What to do", check.remedy)
    if name in failures:
        fault, text = failures[name]
        lines += [
            "",
            "## Example",
            "",
            f'The fault "{fault}" gives this message.',
            "",
            "```text",
            *wrapped(text, 100),
            "```",
        ]
        if healthy:
            lines += ["", "A healthy training gives this message.", "", "```text", *wrapped(healthy, 100), "```"]
    return "\n".join([*lines, *silencing(name, check)]) + "\n"


def titled(title: str, *paragraphs: str) -> list[str]:
    """Return a section of these paragraphs."""
    return ["", f"## {title}", *(line for text in paragraphs for line in ("", *wrapped(text)))]


def limit_line(limit: Limit) -> str:
    """Return a limit as a list item."""
    return f"- `{limit.key}: {limit.default}`" + (f": {limit.source}" if limit.source else "")


def linked(names: list[str]) -> str:
    """Return links to the pages of these checks, as alternatives."""
    links = [f"[`{name}`]({name}.md)" for name in names]
    return " or ".join(filter(None, [", ".join(links[:-1]), links[-1]]))


def rule(check: type[Check]) -> str:
    """Return the first sentence of a check's docstring."""
    return object.__new__(check).question  # a check whose limit is required cannot be made without one


def cell(text: str) -> str:
    """Return the text for a cell of a Markdown table."""
    return text.replace("|", r"\|")


def watched(check: type[Check]) -> bool:
    """Return whether the check may be judged in a training of the user's own."""
    return check.features() <= ALL | OF_A_SCRIPT.keys()


def in_tiers(check: type[Check]) -> bool:
    """Return whether the check may be judged in tunecheck's own runs."""
    return not any(FEATURES[feature].startswith(YOURS) for feature in check.features())


def kind(check: type[Check]) -> str:
    """Return the kind of training that a check applies to, for the index."""
    if not watched(check):
        return "tiers"
    causal = ", causal LM" if Premise.CAUSAL_LM in check.needs else ""
    return f"your training{', tiers' if in_tiers(check) else ''}{causal}"


def needs(check: type[Check]) -> Iterator[str]:
    """Yield what a training must have for the check to be judged, a sentence each."""
    yield from sorted(FEATURES[feature] for feature in check.features())
    texts = explained(Premise)
    yield from (texts[premise.name] for premise in Premise if premise in check.needs)
    if not check.needs:
        yield "Any training."


def silencing(name: str, check: type[Check]) -> list[str]:
    """Return the section on how to accept a finding, declare what is missing, or change a limit."""
    lines = ["", "## Accept, declare or change a limit", ""]
    if check.convention:
        lines += [*wrapped(f"Some do this on purpose: {check.convention}. In your training it is a suspicion."), ""]
    if watched(check):
        lines += ["Accept a finding on purpose, for one command or in `pyproject.toml`.", "", "```console"]
        lines += [f'$ tunecheck watch --ignore {name}="REASON" -- python train.py', "```", "", "```toml"]
        lines += ["[tool.tunecheck]", f'ignore = {{ {name} = "REASON" }}', "```", ""]
        keys = [(key, found) for key, found in EXPECTATIONS.items() if name in found.opens]
        if keys:
            lines += ["Declare what tunecheck cannot read from your objects:", ""]
            for key, found in keys:
                lines += wrapped(f"- `--expect {key}={found.example}`: {found.meaning}.")
            lines += [""]
    if in_tiers(check):
        lines += [f"Turn it off in a run's YAML: `checks: {{{name}: off}}`.", ""]
    if changeable := [field.name for field in dataclasses.fields(check)]:
        lines += [f"Use another limit: `--set checks.{name}.{changeable[0]}=VALUE`.", ""]
    return lines[:-1]


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
    """Return the docstring after each field of a class, or the comment at the end of its line."""
    if not issubclass(owner, Check | Premise):
        return {}
    source = textwrap.dedent(inspect.getsource(owner))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    found: dict[str, str] = {}
    body = ast.parse(source).body[0].body  # type: ignore[attr-defined]
    for node, after in zip(body, [*body[1:], None], strict=True):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name):
            words = comments.get(node.end_lineno or 0, "")
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                words = "; ".join(filter(None, [words, " ".join(str(after.value.value).split())]))
            found[target.id] = words
    return found


def wrapped(text: str, width: int = 120) -> list[str]:
    """Return the text in lines of at most this many characters, a list item's later lines indented."""
    indent = "  " if text.startswith("- ") else ""
    return textwrap.wrap(
        " ".join(text.split()), width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


if __name__ == "__main__":
    main(sys.argv[1:])
