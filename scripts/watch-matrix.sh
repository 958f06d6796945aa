#!/usr/bin/env bash
# Frameworks in environments of their own, unmodified, under `tunecheck watch`, on the CPU. See --help.
set -euo pipefail

usage() {
  cat <<'HELP'
usage: scripts/watch-matrix.sh [--only NAME]... [--variant TEXT] [--keep FOLDER] [--list] [--table]

  --only NAME     only this framework, such as "TRL 0.24"; may be repeated
  --variant TEXT  only the training of this name, such as lora; else those whose names contain it
  --keep FOLDER   keep the environments there and use them again; otherwise each is deleted when it was tried
  --list          list frameworks and trainings
  --table         write the table of docs/frameworks.md from reports/releases/frameworks.json, and try nothing

Each training runs without listening first, then under `tunecheck watch`; the weights that it saves must be the same.
The rows of trainings that are not tried stay as they were measured before.
HELP
}

[[ ${1:-} != --help && ${1:-} != -h ]] || { usage; exit 0; }
project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$project/.venv/bin/python
[[ -x $python ]] || python=python3
OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} PYTHONPATH=$project/suite:$project exec "$python" -m benchmarks.releases.frameworks "$@"
