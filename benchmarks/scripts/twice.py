"""`tunecheck watch --twice` on a script of the Trainer with dropout: healthy, and with what a second run shows.

python -m benchmarks.scripts.twice
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from tunecheck.core.finding import Status
from tunecheck.results.stored import VERDICT_FILE, VERDICTS

CASES = {
    "healthy": "",
    "unseeded": "repeat_equals",
    "state lost": "resume_equals",
}
"""Case to the check that must name it; empty for none."""
STEPS = 6


def main() -> int:
    """Run every case; 1 where one is not judged as it should be, or the script's own folder was written to twice."""
    if sys.argv[1:2] == ["--child"]:
        _train(sys.argv[2])
        return 0
    return int(not all([_one(case, named_by) for case, named_by in CASES.items()]))


def _one(case: str, named_by: str) -> bool:
    with tempfile.TemporaryDirectory(prefix="tunecheck-twice-") as folder:
        script = [sys.executable, "-m", "benchmarks.scripts.twice", "--child", case]
        done = subprocess.run(
            [sys.executable, "-m", "tunecheck.cli", "watch", "--twice", "--steps", str(STEPS), "--", *script],
            env={**os.environ, "TUNECHECK_REPORTS": f"{folder}/reports", "TRAINED": folder},
            capture_output=True,
            text=True,
        )
        (verdict,) = Path(folder, "reports").glob(f"*/{VERDICT_FILE}")
        findings = {finding.check: finding for finding in VERDICTS.read(verdict).runs[0].findings}
        ends = Path(folder, "ends.txt").read_text(encoding="utf-8").count("end")
    failed = {name for name, finding in findings.items() if finding.status is Status.FAILED}
    judged = {name for name in ("repeat_equals", "resume_equals") if findings[name].status is not Status.UNJUDGED}
    good = len(judged) == 2 and ends == 1 and (named_by in failed if named_by else not failed)
    print(
        f"{'ok    ' if good else 'WRONG '} {case}: failed {', '.join(sorted(failed)) or '-'}; ended {ends} times",
        flush=True,
    )
    if not good:
        print(done.stdout, done.stderr)
    return good


def _train(case: str) -> None:
    """Train as a script does that saves checkpoints, and note that it came to its end."""
    from benchmarks.scripts.script import Script, trainer_of

    folder = Path(os.environ["TRAINED"])
    script = Script(steps=8, arguments={"save_strategy": "steps", "save_steps": 4})
    script.lora = {"r": 4, "lora_dropout": 0.1, "target_modules": ["q_proj"]}
    model, tokenizer = script.model_and_tokenizer()
    rows = script.examples(tokenizer)
    if case == "unseeded":
        random.Random(os.urandom(4)).shuffle(rows)
    trainer = trainer_of(script, model, tokenizer, rows, folder / "out")
    if case == "state lost":
        trainer._load_optimizer_and_scheduler = lambda checkpoint: None
    trainer.train()
    with (folder / "ends.txt").open("a", encoding="utf-8") as ends:
        ends.write("end\n")


if __name__ == "__main__":
    raise SystemExit(main())
