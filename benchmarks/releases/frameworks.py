"""`python -m benchmarks.releases.frameworks`: frameworks in environments of their own, unmodified and on the CPU, under
`tunecheck watch`, and each again without it: what is judged, what it costs, and whether anything changed."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.releases.environment import environment, kept_or_temporary
from benchmarks.releases.pairs import DATASETS_NEED, HTTPX, STACKS
from benchmarks.releases.watched import run, watched
from suite.cli.parser import Parser, run_command
from suite.core.errors import ConfigError, SuiteError
from suite.core.files import write_whole
from suite.core.paths import cache_folder, project_folder

RESULTS = project_folder() / "reports" / "releases" / "frameworks.json"
DOCUMENT = project_folder() / "docs" / "watch.md"
BEGIN, END = "<!-- frameworks: written by `python -m benchmarks.releases.frameworks` -->", "<!-- frameworks: end -->"
TRAININGS = Path(__file__).parent / "trainings"
NAMED = ("transformers", "trl", "peft", "accelerate", "llamafactory", "ms-swift")
FACTS = project_folder() / "configs" / "data" / "rust-python-facts" / "train.jsonl"
DATASETS_4 = tuple(name for name in DATASETS_NEED if not name.startswith("datasets="))
LLAMA_FACTORY_NEEDS = (
    *(*STACKS["4.57"], "peft==0.18.1", "trl==0.24.0", "accelerate==1.11.0", "datasets==4.0.0", *DATASETS_4),
    *("fire", "termcolor", "omegaconf", "antlr4-python3-runtime==4.9.3", "einops", "tyro<0.9.0", "docstring-parser"),
    *(
        "shtab",
        "eval-type-backport",
        "sentencepiece",
        "tiktoken",
        "protobuf",
        "av<=16.0.0",
        "hf-transfer",
        "modelscope",
    ),
    *(
        "scipy",
        "sse-starlette",
        "starlette",
        "fastapi",
        "uvicorn",
        "annotated-doc",
        "matplotlib",
        "contourpy",
        "cycler",
    ),
    *("cycler", "kiwisolver", "pillow", "pyparsing", "fonttools", "torchdata==0.11.0", "torchaudio"),
)
YAML = """\
model_name_or_path: {model}
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: q_proj,v_proj
dataset_dir: {folder}
dataset: facts
template: chatml
cutoff_len: 256
output_dir: {out}
per_device_train_batch_size: 2
gradient_accumulation_steps: 2
learning_rate: 1.0e-4
max_steps: 6
lr_scheduler_type: cosine
warmup_steps: 1
logging_steps: 1
save_only_model: true
report_to: none
use_cpu: true
preprocessing_num_workers: 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """An environment, and the trainings that are tried in it."""

    name: str
    packages: tuple[str, ...]
    """Installed without dependencies above this environment's own libraries; empty for these as they are."""
    trainings: dict[str, tuple[str, ...]]
    """Variant to its command: {python}, {trainings}, {out}, {model}, {folder} are filled in."""
    without: tuple[str, ...] = ()
    """Files of packages that are left out: libraries that need a GPU's."""


def _hf(*kinds: str) -> dict[str, tuple[str, ...]]:
    return {kind: ("{python}", "{trainings}/hf.py", "--kind", kind, "--out", "{out}") for kind in kinds}


def _sft(**variants: str) -> dict[str, tuple[str, ...]]:
    return {
        name.replace("_", ", "): ("{python}", "{trainings}/sft.py", *arguments.split(), "--out", "{out}")
        for name, arguments in variants.items()
    }


SFT = {
    "lora": "--kind lora",
    "lora_dropout": "--kind lora --dropout 0.1",
    "qlora": "--kind qlora",
    "full": "--kind full",
    "lora_packed": "--kind lora --packing",
    "lora_text": "--kind lora --rows text",
    "lora_assistant": "--kind lora --rows assistant",
}
TRL_SFT = (
    *("{bin}/trl", "sft", "--model_name_or_path", "{model}", "--dataset_name", "{folder}/conversations"),
    *("--use_peft", "--lora_r", "8", "--lora_target_modules", "q_proj", "v_proj", "--use_cpu", "--output_dir", "{out}"),
    *("--max_steps", "6", "--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2"),
    *("--learning_rate", "1e-4", "--logging_steps", "1", "--report_to", "none", "--bf16", "False"),
    *("--gradient_checkpointing", "False"),
)
LLAMA_FACTORY = ("{bin}/llamafactory-cli", "train", "{folder}/lora.yaml")
FRAMEWORKS: dict[str, Framework] = {
    framework.name: framework
    for framework in (
        Framework(
            name="transformers 4.45",
            packages=("transformers==4.45.2", *STACKS["4.45"]),
            trainings=_hf("full", "lora"),
        ),
        Framework(
            name="transformers 4.55",
            packages=("transformers==4.55.4", *STACKS["4.50"], "peft==0.17.1"),
            trainings=_hf("full", "lora", "qlora"),
        ),
        Framework(
            name="transformers 4.56",
            packages=("transformers==4.56.2", *STACKS["4.57"][:2], "accelerate==1.10.1", "peft==0.17.1"),
            trainings=_hf("full", "lora", "qlora"),
        ),
        Framework(
            name="transformers 5.0",
            packages=("transformers==5.0.0", "huggingface-hub==1.3.0", "tokenizers==0.22.2", *HTTPX),
            trainings=_hf("full", "lora", "qlora"),
        ),
        Framework(name="transformers, newest", packages=(), trainings=_hf("full", "lora", "qlora")),
        Framework(
            name="TRL 0.24",
            packages=("trl==0.24.0", *STACKS["4.57"], "accelerate==1.11.0", "peft==0.17.1", *DATASETS_NEED),
            trainings=_sft(**SFT),
        ),
        Framework(
            name="TRL, newest",
            packages=("trl==1.16.0", "datasets==4.8.0", *DATASETS_4, *HTTPX),
            trainings=_sft(**SFT) | {"`trl sft`, SmolLM2, lora": TRL_SFT},
        ),
        Framework(
            name="LLaMA-Factory",
            packages=("llamafactory==0.9.5", *LLAMA_FACTORY_NEEDS),
            trainings={
                "`llamafactory-cli train`, SmolLM2, lora": ("{bin}/llamafactory-cli", "train", "{folder}/lora.yaml")
            },
            without=("torchaudio/lib/_torchaudio.abi3.so", "torchaudio/lib/libtorchaudio.abi3.so"),
        ),
    )
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the frameworks and return 0 where nothing is flagged and nothing was changed by listening."""
    parser = Parser(prog="python -m benchmarks.releases.frameworks", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="only this framework; may be repeated")
    parser.add_argument("--variant", metavar="TEXT", help="only variants whose name contains this")
    parser.add_argument("--list", action="store_true", help="list the frameworks and install nothing")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the environments in this folder, and use it")
    parser.add_argument("--table", action="store_true", help="write the table of docs/watch.md again, and try nothing")
    parser.set_defaults(command=_try_frameworks)
    return run_command(parser, arguments)


def _try_frameworks(options: Any) -> int:
    if options.list:
        for framework in FRAMEWORKS.values():
            print(f"{framework.name}: {', '.join(framework.trainings)}")
        return 0
    names = options.only or list(FRAMEWORKS)
    if unknown := [name for name in names if name not in FRAMEWORKS]:
        raise ConfigError([f"no framework is called {name!r}: --list lists them" for name in unknown])
    ok = True
    for name in () if options.table else names:
        ok = _try_framework(FRAMEWORKS[name], options.keep, options.variant or "") and ok
    write_table()
    return 0 if ok else 1


def _try_framework(framework: Framework, keep: Path | None, wanted: str) -> bool:
    ok = True
    with kept_or_temporary(keep) as folder:
        place = folder / re.sub(r"\W+", "-", framework.name)
        try:
            with environment(place, framework.packages, keep=keep is not None, without=framework.without) as python:
                for variant in (v for v in framework.trainings if wanted in v):
                    row = try_training(framework, variant, python)
                    record(row)
                    print(line_of(row), flush=True)
                    ok = ok and row["outcome"] == "pass" and row["same"]
        except SuiteError as error:
            record(_row(framework, "", {}, reason=str(error)))
            print(f"{framework.name}: {error}", flush=True)
            ok = False
    return ok


def try_training(framework: Framework, variant: str, python: Path) -> dict[str, Any]:
    """Return the row of one training: judged, and what was different without listening."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        values = {"python": str(python), "bin": str(python.parent), "trainings": str(TRAININGS), "folder": name}
        values |= {"out": str(folder / "out"), "model": str(folder / "model")}
        _write_inputs(folder, values)
        command = [word.format(**values) for word in framework.trainings[variant]]
        alone, errors, status = run(command, {})
        if status:
            told = errors.strip().splitlines() or [f"status {status}"]
            return _row(framework, variant, _versions(python), reason=f"the training itself fails: {told[-1]}")
        before = _digests(folder / "out")
        seen = watched(python, command, steps=10)
        after = _digests(folder / "out")
    row = _row(framework, variant, _versions(python), reason=seen.reason)
    return row | {
        "outcome": seen.outcome,
        "judged": seen.passed + len(seen.failed),
        "passed": seen.passed,
        "failed": seen.failed,
        "unjudged": seen.unjudged,
        "same": bool(before) and before == after,
        "compared": sorted(before),
        "cpu_seconds_alone": alone.cpu_seconds,
        "cpu_seconds_more": round(seen.cost.cpu_seconds - alone.cpu_seconds, 1),
        "peak_mib_more": seen.cost.peak_mib - alone.peak_mib,
    }


def _row(framework: Framework, variant: str, versions: dict[str, str], reason: str) -> dict[str, Any]:
    return {
        "framework": framework.name,
        "variant": variant,
        "versions": versions,
        "outcome": "not tried",
        "reason": reason,
        "failed": {},
        "same": False,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }


def _write_inputs(folder: Path, values: dict[str, str]) -> None:
    """Write rows in each framework's form, and SmolLM2 with a tokenizer's class that transformers 4 knows, too."""
    rows = [json.loads(line) for line in FACTS.read_text(encoding="utf-8").splitlines()]
    facts = [{"instruction": row["instruction"], "input": "", "output": row["response"]} for row in rows]
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    (folder / "dataset_info.json").write_text(json.dumps({"facts": {"file_name": "facts.json"}}), encoding="utf-8")
    (folder / "lora.yaml").write_text(YAML.format(**values), encoding="utf-8")
    (folder / "conversations").mkdir()
    completions = [{"prompt": f"{r['instruction']}\n", "completion": r["response"]} for r in rows]
    lines = "".join(json.dumps(row) + "\n" for row in completions)
    (folder / "conversations" / "train.jsonl").write_text(lines, encoding="utf-8")
    held = sorted((cache_folder() / "models" / "smollm2-135m").glob("package-*"))
    (folder / "model").mkdir()
    for path in held[-1].iterdir() if held else ():
        if path.name == "tokenizer_config.json":
            text = path.read_text(encoding="utf-8").replace("TokenizersBackend", "PreTrainedTokenizerFast")
            (folder / "model" / path.name).write_text(text, encoding="utf-8")
        elif path.name == "config.json":  # transformers 4 does not look for the rotary base among rope_parameters
            config = json.loads(path.read_text(encoding="utf-8"))
            config |= {"rope_theta": config.get("rope_parameters", {}).get("rope_theta", config.get("rope_theta"))}
            (folder / "model" / path.name).write_text(json.dumps(config), encoding="utf-8")
        else:
            (folder / "model" / path.name).symlink_to(path)


def _digests(folder: Path) -> dict[str, str]:
    """Return the digest of each file of weights, and of the ledger of the steps where the script writes one."""
    files = [*folder.glob("*.safetensors"), *folder.glob("ledger.txt")]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _versions(python: Path) -> dict[str, str]:
    import subprocess

    code = (
        "from importlib.metadata import version, PackageNotFoundError\n"
        f"for name in {NAMED!r}:\n"
        "    try: print(name, version(name))\n"
        "    except PackageNotFoundError: pass\n"
    )
    told = subprocess.run([str(python), "-c", code], capture_output=True, text=True).stdout
    return dict(line.split(" ", 1) for line in told.splitlines())


def record(row: dict[str, Any]) -> None:
    """Put the row into the results, in the order of the frameworks."""
    held = {(r["framework"], r["variant"]): r for r in results() if r["variant"] or r["framework"] != row["framework"]}
    held[(row["framework"], row["variant"])] = row
    order = list(FRAMEWORKS)
    rows = sorted(held.values(), key=lambda r: order.index(r["framework"]) if r["framework"] in order else len(order))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    write_whole(RESULTS, json.dumps(rows, indent=1) + "\n")


def results() -> list[dict[str, Any]]:
    """Return the rows that were measured."""
    held: list[dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    return held


def line_of(row: dict[str, Any]) -> str:
    """Return the row in one line."""
    if row["outcome"] == "not tried":
        return f"{row['framework']}, {row['variant']}: not tried: {row['reason']}"
    failed = "".join(f"; {check}: {detail}" for check, detail in row["failed"].items())
    same = "the same weights to the last bit" if row["same"] else f"OTHER weights than without ({row['compared']})"
    cost = f"{row['cpu_seconds_more']:+.1f} s, {row['peak_mib_more']:+d} MiB"
    return f"{row['framework']}, {row['variant']}: {row['outcome']}, {row['passed']} passed; {same}; {cost}{failed}"


def write_table() -> None:
    """Put the table between its marks in docs/watch.md, if it has them."""
    text = DOCUMENT.read_text(encoding="utf-8") if DOCUMENT.exists() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if begin and end:
        write_whole(DOCUMENT, f"{before}{BEGIN}\n{table(results())}\n{END}{after}")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as Markdown, and below it what was unjudged and what could not be tried."""
    lines = [
        "| framework | training | versions | judged | passed | failed | unjudged | same bits | more CPU s | more MiB |",
        "|---|---|---|--:|--:|--:|--:|---|--:|--:|",
    ]
    reasons: dict[str, set[str]] = {}
    untried = []
    for row in rows:
        if row["outcome"] == "not tried":
            untried.append(f"- {row['framework']} {row['variant']}: {row['reason']}")
            continue
        versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
        failed = ", ".join(f"`{check}`" for check in row["failed"]) or 0
        cells = [row["framework"], row["variant"], versions, row["judged"], row["passed"], failed, len(row["unjudged"])]
        cells += ["yes" if row["same"] else "**no**", f"{row['cpu_seconds_more']:.0f}", row["peak_mib_more"]]
        lines.append(f"| {' | '.join(map(str, cells))} |")
        for check, reason in row["unjudged"].items():
            reasons.setdefault(f"`{check}`: {reason}", set()).add(row["framework"])
    told = [f"- {reason} ({len(names)} of {len(FRAMEWORKS)} frameworks)" for reason, names in sorted(reasons.items())]
    parts = ["\n".join(lines), "Unjudged, with the reason:\n\n" + "\n".join(told)]
    parts += ["Not tried:\n\n" + "\n".join(untried)] if untried else []
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
