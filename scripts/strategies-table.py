"""Strategies counted and compared: scripts/strategies-table.py FOLDER... > docs/strategies.md, from their traces."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tunecheck.cli.runs import count_all
from tunecheck.config import load_model
from tunecheck.core.trace import Trace, read
from tunecheck.report.files import comparison_markdown, escaped
from tunecheck.report.page.tables import said
from tunecheck.report.view import machine
from tunecheck.results import RunReport
from tunecheck.results.comparison import comparisons
from tunecheck.results.rejudge import judged_again

MODEL = "qwen2-0.5b"
DOCUMENTS = {
    "full": "494,032,768 (100.00 %)",
    "freeze_lower": "315,084,160 (63.78 %)",
    "freeze_embeddings": "357,898,112 (72.44 %)",
    "adapter_layers": "29,865,088 (6.05 %)",
}
"""Strategy to what the first system of this kind, written in Python, reported for Qwen2-0.5B."""
REPORTED_AS = {"full": "291/291", "freeze_lower": "3/291", "freeze_embeddings": "290/291", "adapter_layers": "26/291"}
"""Strategy to what the one written in Rust reported: it counted tensors, and matched layers by substring."""
COMMANDS = {
    "convergence/strategies-seven-facts": 'pytest -m convergence -k "seven-facts and not bitfit" '
    "--set model=smollm2-135m --set device=cpu --set training.max_steps=70 --set probes.resume_from=null",
    "extended/strategies-instructions": "pytest -m extended "
    '-k "instructions-lora or instructions-adapter_layers or instructions-full" '
    "--set model=smollm2-135m --set device=cpu",
}
"""Comparison to how it is trained on a CPU."""
LONGEST_TEXT = 80
"""Characters of a continuation."""

HEAD = """\
<!-- Written by scripts/strategies-table.py; do not edit by hand. -->
# Strategies

This page shows what each strategy trains and how well it learns. **No number on this page was measured on a GPU.**
The comparisons ran on a busy CPU: trust the losses, not the times. SmolLM2 replaces Qwen2 there, whose weights are on
no package index. SmolLM2 has no biases, so `bitfit` is missing.
"""


def main(folders: list[str]) -> None:
    """Print the document for these sessions."""
    parts = [HEAD, *counts(), *(line for folder in folders for line in session(Path(folder)))]
    print("\n".join(parts).rstrip())


def counts() -> Iterator[str]:
    """Qwen2-0.5B beside what was reported of it."""
    yield f"## Counted without weights: {MODEL}\n"
    reported = "The last two columns are what two earlier systems reported, one in parameters and one in tensors."
    yield f"`tunecheck strategies {MODEL}` counts these. {reported}\n"
    yield "| strategy | tensors | parameters | parameters reported, Python | tensors reported, Rust |"
    yield "|---|--:|--:|--:|--:|"
    for count in count_all(load_model(MODEL)):
        name = f"{count.strategy}, DoRA" if count.options.get("use_dora") else count.strategy
        plain = count.strategy if name == count.strategy else ""
        ours = f"{count.parameters:,} ({count.percent:.2f} %)"
        theirs = f"{DOCUMENTS.get(plain, '')} | {REPORTED_AS.get(plain, '')}"
        yield f"| `{name}` | {count.tensors} | {ours} | {theirs} |"
    yield ""


def session(folder: Path) -> Iterator[str]:
    """The comparisons among a session's traces, when and where they were trained, and what the models said."""
    traces: dict[str, Trace] = {}
    rows: list[RunReport] = []
    for path in sorted(folder.glob("*.jsonl")):
        trace = read(path)
        rows.append(judged_again(trace, [], trace_file=path.name))
        traces[rows[-1].name] = trace
    for comparison in comparisons(rows):
        first = traces[comparison.runs[0].name]
        yield from (
            line.removeprefix("#") if line.startswith("###") else line for line in comparison_markdown(comparison)
        )
        yield from ("", *about(first), f"`{COMMANDS[comparison.title.partition(' ')[0]]}`", "")
        for prompt, table in [*said(comparison, traces).items()][:1]:  # the others show the same
            yield f"> {escaped(prompt)} …\n"
            yield from ("| strategy | before | after |", "|---|---|---|")
            yield from (f"| {' | '.join(_short(cell) for cell in row)} |" for row in table.rows)
            yield ""


def about(trace: Trace) -> Iterator[str]:
    """Run, day and machine of a trace."""
    run = trace.run
    steps, rows = run.training.max_steps, run.training.micro_batch_size
    rows_each = f"{rows} rows" if rows > 1 else "one row"
    yield f"{steps} steps of {rows_each} each, `data: {run.settings['data']['name']}`, seed {run.training.seed}."
    yield f"Trained {trace.header.started_at[:10]}: {escaped(machine(trace.header.environment))}."


def _short(text: str) -> str:
    line = escaped(text)
    return line if len(line) <= LONGEST_TEXT else f"{line[:LONGEST_TEXT]}…"


if __name__ == "__main__":
    main(sys.argv[1:])
