"""Commands before anything is trained: list, show, estimate, strategies of runs; doctor and fetch of this machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import prod
from typing import TYPE_CHECKING, Any

from tunecheck.cli.parser import FLAG, answer, as_json
from tunecheck.config import TIERS, all_problems, find_run, load_data, load_model, load_run, read_runs
from tunecheck.config.schema import Run
from tunecheck.config.source import known_names
from tunecheck.core.errors import ConfigError, Unsupported
from tunecheck.core.frozen import Frozen
from tunecheck.core.log import log
from tunecheck.core.paths import without_runs
from tunecheck.core.units import count_option
from tunecheck.hardware import probe
from tunecheck.memory import measured_peaks, predict
from tunecheck.models.description import Lora, Model
from tunecheck.models.shapes import tensor_shapes
from tunecheck.results import Exit
from tunecheck.session import CARD, RUN, SET, SIZE
from tunecheck.session.admission import no_gpu, prospect, room
from tunecheck.strategies import STRATEGIES, trained_shapes

if TYPE_CHECKING:
    from rich.console import Console


def add_commands(commands: Any) -> None:
    """Add `list`, `show`, `estimate`, `strategies`, `doctor` and `fetch` to the command line."""
    listing = commands.add_parser("list", help="list all tiers and their runs")
    listing.add_argument("--needs", **FLAG, help="show the memory that each run needs, and whether this machine has it")
    listing.add_argument("--tier", action="append", choices=TIERS, help="only this tier; may be repeated")
    listing.add_argument("--vram-cap", **SIZE, help="with --needs: assume GPUs of this size")
    listing.executes(_list)

    example = "example: tunecheck show quick/smollm2-135m-qlora"
    told = "show a run's resolved configuration and its checks with limits"
    show = commands.add_parser("show", help=told, epilog=example)
    show.add_argument("run", help=RUN)
    show.add_argument("--set", **SET)
    show.add_argument("--card", **CARD)
    show.executes(_show)

    estimate = commands.add_parser("estimate", help="predict the GPU memory of a run, without a GPU or weights")
    estimate.add_argument("run", nargs="?", help="a run by its name, id or YAML file (default: every run in one table)")
    estimate.add_argument("--all", **FLAG, help="show every run in one table")
    estimate.add_argument("--set", **SET)
    estimate.add_argument("--savings", **FLAG, help="also change one setting at a time, about 10 s each")
    estimate.add_argument("--fallback", **FLAG, help="also show each GPU step of the fallback chain")
    estimate.executes(_estimate)

    strategies = commands.add_parser("strategies", help="count what each strategy trains, without weights")
    model: dict[str, Any] = {"nargs": "?", "default": "smollm2-135m"}
    strategies.add_argument("model", **model, help="name in configs/models (default smollm2-135m)")
    rank, targets = "lora.r of the adapters (default 8)", "lora.target_modules of the adapters"
    strategies.add_argument("--rank", type=count_option, default=8, metavar="R", help=rank)
    strategies.add_argument("--targets", default="q_proj,v_proj", metavar="A,B", help=targets)
    strategies.executes(_strategies)

    commands.add_parser("doctor", help="diagnose this machine, with a remedy for each problem").executes(_doctor)

    fetch = commands.add_parser("fetch", help="download a model's weights or a data set's rows into the cache")
    fetch.add_argument("name", **model, help="name in configs/models or configs/data (default smollm2-135m)")
    fetch.executes(_fetch, leaves_files=True)


def _list(options: argparse.Namespace) -> None:
    read = {tier: read_runs(tier) for tier in TIERS if tier in (options.tier or TIERS)}
    runs = {tier: found for tier, (found, _) in read.items()}
    unusable = [error for _, errors in read.values() for error in errors.values()]
    empty = [tier for tier, (found, errors) in read.items() if not found and not errors]
    if empty and (options.tier or len(empty) == len(runs)):
        raise ConfigError([without_runs(empty)])
    if options.needs:
        _needs([run for found in runs.values() for run in found], options)
    elif not as_json(options, {tier: [run.name for run in found] for tier, found in runs.items()}):
        for tier, found in runs.items():
            print(f"{tier}: {TIERS[tier]}")
            for run in found:
                steps, checks = run.training.max_steps, len(run.resolved_checks())
                needs = f", {run.vram / 2**30:g} GiB of GPU memory" if run.vram else ""
                print(f"  {run.id}: {run.strategy}, {steps} steps, {checks} checks, device {run.device}{needs}")
    if unusable:  # after what could be read: one bad file hides no other
        raise all_problems(unusable)


def _needs(runs: Sequence[Run], options: argparse.Namespace) -> None:
    hardware = replace(probe(), vram_cap_bytes=options.vram_cap)
    gpus = [room(gpu) for gpu in hardware.visible_gpus]
    prospects = {run.name: prospect(run, hardware) for run in runs}
    if as_json(options, {"gpus": gpus, "runs": prospects}):
        return
    lines = [f"  {name}: {words}" for name, words in prospects.items()]
    print("\n".join([*(gpus or [f"no GPU; {no_gpu(hardware)}"]), *lines]))


def _show(options: argparse.Namespace) -> None:
    run = load_run(find_run(options.run), options.set, options.card)
    checks = run.resolved_checks()
    settings = run.model_dump(mode="json", exclude={"checks"})
    if as_json(options, {**settings, "fingerprint": run.fingerprint, "checks": checks}):
        return
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.dump(settings, sys.stdout)
    print(f"\nfingerprint: {run.fingerprint}\n{len(checks)} checks:")
    for name, check in checks.items():
        limits = ", ".join(f"{key}={value:g}" for key, value in asdict(check).items() if value is not None)
        print(f"  {name}: {check.question}{f' ({limits})' if limits else ''}")


def _estimate(options: argparse.Namespace) -> None:
    from rich.console import Console

    from tunecheck.memory import table
    from tunecheck.runner.fallback_chain import VARIANTS, every_fallback_step, variant

    first = next(iter(probe().visible_gpus), None)
    card = {"card": first.name, "capability": first.compute_capability} if first else {}
    if options.all or options.run is None:
        if refused := [word for word in ("run", "savings", "fallback") if getattr(options, word)]:
            named = ", ".join(options.run if word == "run" else f"--{word}" for word in refused)
            raise ConfigError([f"{named}: needs a single run; name one, and remove --all"])
        read = [read_runs(tier, options.set) for tier in TIERS]
        predictions = [predict(run, **card) for runs, _ in read for run in runs]
        if not as_json(options, [prediction.to_json() for prediction in predictions]) and predictions:
            table.print_each("run", {prediction.run: prediction for prediction in predictions}, Console())
            print("Predicted, not measured. GPU: the smallest that holds the run; see docs/memory.md")
        if unusable := [error for _, errors in read for error in errors.values()]:
            raise all_problems(unusable)
        return
    path = find_run(options.run)
    run = load_run(path, options.set)
    prediction, measured = predict(run, **card), [*measured_peaks(run.fingerprint).values()]
    if run.trainer != "native":
        log.info(f"{run.name}: predicted for the native trainer; {run.trainer} is not simulated")
    varied: dict[str, dict[str, Run]] = {}
    if run.probes.memory_order:
        varied["variants"] = {name.value: variant(run, changes) for name, changes in VARIANTS.items()}
    if options.fallback:
        steps = every_fallback_step(run, "cuda", gpu_only=True)
        varied["fallback"] = {step.configuration: variant(run, step.changes) for step in steps}
    if options.savings:
        useful = [words for words, helps in table.changes_of(run).items() if helps]
        varied["savings"] = {" ".join(words): load_run(path, [*options.set, *words]) for words in useful}
    others = {kind: {name: predict(one, **card) for name, one in runs.items()} for kind, runs in varied.items()}
    predicted = {kind: {name: one.to_json() for name, one in group.items()} for kind, group in others.items()}
    if as_json(options, {**prediction.to_json(), "measured": measured, **predicted}):
        return
    table.print_measured(prediction, measured, Console())
    table.print_prediction(prediction, Console())
    table.print_asked(run, Console())
    for kind in [kind for kind in ("variants", "fallback") if kind in others]:
        print()
        table.print_each(kind.removesuffix("s"), others[kind], Console())
    if options.savings:
        ruled_out = [" ".join(words) for words, helps in table.changes_of(run).items() if not helps]
        table.print_savings(prediction, others["savings"], ruled_out, Console())


def _strategies(options: argparse.Namespace) -> int:
    model = load_model(options.model)
    counts = count_all(model, rank=options.rank, targets=options.targets.split(","))
    answer(options, {"model": model.name, "strategies": counts}, lambda console: print_counts(model, counts, console))
    return Exit.MISCONFIGURED if any(count.refused for count in counts if count.options) else Exit.PASS


def _doctor(options: argparse.Namespace) -> int:
    from tunecheck.assets import is_cached
    from tunecheck.hardware.doctor import DEFAULT_MODEL, examine, format_diagnoses

    diagnoses = examine(cached=is_cached(DEFAULT_MODEL))
    if not as_json(options, {"hardware": probe(), "diagnoses": diagnoses}):
        print(format_diagnoses(diagnoses))
    return int(any(diagnosis.level == "error" for diagnosis in diagnoses))


def _fetch(options: argparse.Namespace) -> None:
    from tunecheck.assets import resolve, rows

    fetched = []
    if options.name in known_names("data"):
        record, data = rows.resolve(load_data(options.name), instead=False)
        folder = data.file("train").parent
        words = f"{record.source} {record.identifier}, {record.rows} + {record.heldout_rows} rows"
        print(f"{record.name}: {words}, sha256 {record.sha256}\n{folder}")
        fetched.append({**asdict(record), "folder": folder})
    if not fetched or options.name in known_names("models"):
        weights, path = resolve(load_model(options.name), allow_random=False)
        print(f"{weights.model}: {weights.source} {weights.identifier}, sha256 {weights.sha256}\n{path}")
        fetched.append({**asdict(weights), "folder": path})
    as_json(options, fetched)


class Count(Frozen):
    """Trained tensors and parameters of one strategy on one model."""

    strategy: str
    options: dict[str, Any]
    """Settings of the `lora:` section; empty where there is none."""
    trains: str
    total: int
    """The model's own parameters, a tied head counted once, adapters left out."""
    tensors: int | None = None
    parameters: int | None = None
    percent: float | None = None
    refused: str = ""
    """Why the strategy does not fit the model; then nothing is counted."""


def count_all(model: Model, *, rank: int = 8, targets: Sequence[str] = ("q_proj", "v_proj")) -> list[Count]:
    """Return a count for each strategy, those with adapters once more with DoRA. Raises Unsupported."""
    shapes = tensor_shapes(model.architecture)
    total, lora = sum(map(prod, shapes.values())), {"r": rank, "target_modules": list(targets)}
    counts, found = [], dict[str, Any]()
    for name, strategy in STRATEGIES.items():
        for options in (lora, {**lora, "use_dora": True}) if "lora" in strategy.sections else ({},):
            # data and training do not change the count
            adapters = Lora.model_validate(options) if options else None
            run = Run.model_construct(model=model, strategy=name, lora=adapters)
            try:
                sizes = list(map(prod, trained_shapes(run, shapes)))
                found = {"tensors": len(sizes), "parameters": sum(sizes), "percent": 100 * sum(sizes) / total}
            except Unsupported as error:
                found = {"refused": str(error)}
            counts.append(Count(strategy=name, options=options, trains=strategy.trains, total=total, **found))
    return counts


def print_counts(model: Model, counts: Sequence[Count], console: Console) -> None:
    """Print a row for each strategy, and below the table why one does not fit the model."""
    from rich.text import Text

    from tunecheck.report.layout import PlainTable

    table = PlainTable("strategy", "tensors", "parameters", "percent", "trains", right=slice(1, 4), whole=4, gap=2)
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
    targets = ", ".join(lora["target_modules"])
    console.print(Text(f"adapters of r {lora['r']} on {targets}; with rsLoRA the same tensors"))
    for reason in dict.fromkeys(count.refused for count in counts if count.refused):
        console.print(Text(f"refused: {reason}"))
