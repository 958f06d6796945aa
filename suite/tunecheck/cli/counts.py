"""Count what each strategy would train of a model, from its configuration alone: no weights, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from tunecheck.config import load_data
from tunecheck.config.schema import Run
from tunecheck.core.errors import Unsupported
from tunecheck.core.frozen import Frozen
from tunecheck.models.shapes import Shape, tensor_shapes
from tunecheck.strategies import STRATEGIES, trained_shapes

if TYPE_CHECKING:
    from rich.console import Console

    from tunecheck.models.description import Model


class Count(Frozen):
    """Trained tensors and parameters of one strategy on one model."""

    strategy: str
    options: dict[str, Any]
    """Settings of the `lora:` section; empty where there is none."""
    trains: str
    """Trained parts of the model, in words."""
    total: int
    """The model's own parameters, a tied head counted once, adapters left out."""
    tensors: int | None = None
    parameters: int | None = None
    percent: float | None = None
    """Trained parameters in percent of the model's own."""
    refused: str = ""
    """Why the strategy does not fit the model; then nothing is counted."""


def count_all(model: Model, *, rank: int = 8, targets: Sequence[str] = ("q_proj", "v_proj")) -> list[Count]:
    """Return a count for each strategy, in the table's order, those with adapters once more with DoRA.

    rsLoRA trains the tensors of LoRA. Raises Unsupported for a model_type whose tensors are not known by arithmetic.
    """
    shapes = tensor_shapes(model.architecture)
    lora = {"r": rank, "target_modules": list(targets)}
    counts = []
    for strategy in STRATEGIES:
        adapted = "lora" in STRATEGIES[strategy].sections
        for options in (lora, {**lora, "use_dora": True}) if adapted else ({},):
            counts.append(_count(model, shapes, strategy, options))
    return counts


def print_counts(model: Model, counts: Sequence[Count], console: Console) -> None:
    """Print a row for each strategy, and below the table why one does not fit the model."""
    from rich.text import Text

    from tunecheck.report.layout import PlainTable

    table = PlainTable(gap=2)
    table.add_column("strategy", no_wrap=True)
    for heading in ("tensors", "parameters", "percent"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("trains")
    for count in counts:
        numbers = ("-", "-", "-")
        if count.percent is not None:
            numbers = (f"{count.tensors:,}", f"{count.parameters:,}", f"{count.percent:.2f} %")
        dora = count.options.get("use_dora")
        table.add_row(f"{count.strategy}, DoRA" if dora else count.strategy, *numbers, Text(count.trains))
    tied = model.architecture.tie_word_embeddings
    head = "head tied to the embedding: one matrix" if tied else "separate head matrix"
    console.print(Text(f"{model.name}: {counts[0].total:,} parameters, {head}"))
    console.print()
    console.print(table)
    console.print()
    lora = next(count.options for count in counts if count.options)
    console.print(
        Text(f"adapters of r {lora['r']} on {', '.join(lora['target_modules'])}; with rsLoRA the same tensors")
    )
    for reason in dict.fromkeys(count.refused for count in counts if count.refused):
        console.print(Text(f"refused: {reason}"))


def _count(model: Model, shapes: dict[str, Shape], strategy: str, options: dict[str, Any]) -> Count:
    total = sum(map(prod, shapes.values()))
    count = Count(strategy=strategy, options=options, trains=STRATEGIES[strategy].trains, total=total)
    try:
        trained = trained_shapes(_run(model, strategy, options), shapes)
    except Unsupported as error:
        return replace(count, refused=str(error))
    parameters = sum(map(prod, trained))
    return replace(count, tensors=len(trained), parameters=parameters, percent=100 * parameters / total)


def _run(model: Model, strategy: str, options: dict[str, Any]) -> Run:
    """Return the smallest run of this strategy; data and training settings do not change the count."""
    return Run.model_validate(
        {
            "id": "count",
            "tier": "quick",
            "model": model,
            "data": load_data("rust-python-facts"),
            "strategy": strategy,
            "training": {"max_steps": 1, "learning_rate": 1e-4},
            "lora": options or None,
            "quantization": {} if "quantization" in STRATEGIES[strategy].sections else None,
        }
    )
