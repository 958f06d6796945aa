"""`trl sft` that is to go on from the middle of a training before it."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import tiny
from trl.cli import main

folder = Path(tempfile.mkdtemp())
tiny.model().save_pretrained(folder / "model")
tiny.tokenizer().save_pretrained(folder / "model")
(folder / "rows").mkdir()
rows = [json.dumps({"prompt": prompt, "completion": f" {answer}"}) for prompt, answer in tiny.texts()]
(folder / "rows" / "train.jsonl").write_text("\n".join(rows))
command = [
    *("trl", "sft", "--model_name_or_path", str(folder / "model"), "--dataset_name", str(folder / "rows")),
    *("--output_dir", str(folder / "out"), "--use_cpu", "--bf16", "False", "--report_to", "none"),
    *("--per_device_train_batch_size", "2", "--logging_steps", "1", "--save_steps", "4", "--max_steps", "8"),
]
before = f"import sys; from trl.cli import main; sys.argv = {command!r}; main()"
unwatched = {name: value for name, value in os.environ.items() if name != "TUNECHECK_WATCH"}
subprocess.run([sys.executable, "-c", before], env=unwatched, check=True)
sys.argv = [*command, "--resume_from_checkpoint", str(folder / "out" / "checkpoint-4")]
main()
