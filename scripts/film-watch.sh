#!/usr/bin/env bash
# Film `tunecheck watch -- trl sft ...` on the tiny model into docs/watch.svg: as it should be, then with a longest length
# that cuts most answers off. On the PATH: tunecheck and trl of one environment, asciinema 2, and npx for svg-term-cli.
set -euo pipefail
project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/facts"
ln -s "$(tunecheck fetch tiny-llama | tail -n 1)" "$folder/tiny-llama"
python - "$project/configs/data/rust-python-facts/train.jsonl" >"$folder/facts/train.jsonl" <<'PYTHON'
import json
import sys

for row in map(json.loads, open(sys.argv[1], encoding="utf-8")):
    print(json.dumps({"prompt": row["instruction"] + "\n", "completion": row["response"]}))
PYTHON
cat >"$folder/sft.yaml" <<'YAML'
model_name_or_path: ./tiny-llama
dataset_name: ./facts
use_peft: true
lora_target_modules: [q_proj, v_proj]
max_steps: 20
logging_steps: 5
per_device_train_batch_size: 2
gradient_checkpointing: false
output_dir: out
use_cpu: true
bf16: false
disable_tqdm: true
report_to: none
YAML
cat >"$folder/play.sh" <<'PLAY'
type_and_run() {
  clear
  printf '\033[32m$\033[0m '
  for ((at = 0; at < ${#1}; at++)); do printf '%s' "${1:at:1}"; sleep 0.03; done
  echo
  eval "$1" 2>/dev/null || true # libraries' warnings
  sleep 4
  printf '\033[32m$\033[0m '
  sleep 0.5
}
type_and_run 'tunecheck watch --stop -- trl sft --config sft.yaml'
type_and_run 'tunecheck watch --stop -- trl sft --config sft.yaml --max_length 80'
PLAY
# bars and warnings of libraries would fill the screen; what tunecheck prints is all shown
export PYTHONWARNINGS=ignore TRANSFORMERS_VERBOSITY=error HF_DATASETS_DISABLE_PROGRESS_BARS=1 TQDM_DISABLE=1
export TUNECHECK_REPORTS=reports COLUMNS=100 LINES=30 PS1='$ '
(cd "$folder" && asciinema rec --quiet --idle-time-limit 4 --cols 100 --rows 30 -c "bash play.sh" film.cast)
npx --yes svg-term-cli --in "$folder/film.cast" --out "$project/docs/watch.svg" --window --width 100 --height 30 --no-cursor
