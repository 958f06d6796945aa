#!/usr/bin/env bash
# Run self-tests with the lowest versions that pyproject.toml promises, in an environment made for it. See --help.
set -euo pipefail

usage() {
  cat <<'HELP'
usage: scripts/lowest-versions.sh core|train

  core   the parent's requirements alone: configuration, checks, reports, history, commands
  train  also those of the extra `train`; torch is the version of constraints.txt: a tiny model is trained and judged

The environment lies in a temporary folder and is removed at the end.
HELP
}

wrong() { echo "lowest-versions.sh: $1 (--help lists what there is)" >&2; exit 4; }

case ${1:-} in
  core) # without what trains or computes with torch, and the JSON schema, in which pydantic 2.10 writes 1 for 1.0
    tests=(tests/config/test_config.py tests/core tests/checks tests/report tests/results tests/history/test_compare.py
      tests/hardware/test_hardware.py tests/hardware/test_host.py
      --ignore tests/checks/test_utilization.py --ignore tests/results/test_comparisons.py
      --deselect tests/config/test_config.py::test_the_schema_on_disk_is_fresh
      --deselect tests/core/test_schedule.py::test_the_closed_form_is_transformers_schedule
      --deselect tests/report/test_fallback_table.py::test_every_fallback_step_of_a_run_is_measured_where_the_run_trained) ;;
  train) # a whole session of a tiny model, both trainers, and files that peft alone reads back and merges
    tests=(tests/tiers/test_tiers.py::test_a_bare_call_is_the_quick_tier_and_says_so tests/training/test_trainers.py
      tests/runner/test_read_back.py tests/runner/test_merge.py tests/assets/test_package.py) ;;
  --help | -h) usage; exit 0 ;;
  *) wrong "'${1:-}' is neither core nor train" ;;
esac

# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
environment=$(mktemp -d)
trap 'rm -rf "$environment"' EXIT
use_environment "$environment"
mapfile -t lowest < <("$PYTHON" - "$1" <<'PYTHON'
import sys, tomllib

project = tomllib.load(open("pyproject.toml", "rb"))["project"]
extra = project["optional-dependencies"]["train"] if sys.argv[1] == "train" else []
pinned = next(line.strip() for line in open("constraints.txt") if line.startswith("torch=="))
for requirement in [*project["dependencies"], *extra]:
    print(pinned if requirement.startswith("torch>=") else requirement.replace(">=", "=="))
PYTHON
)
[[ $1 == core ]] || install_torch
pip_install "${lowest[@]}"
"$PYTHON" -m pip check
OMP_NUM_THREADS=1 PYTHONPATH=$project/suite:$project "$PYTHON" -m pytest -q -p no:cacheprovider "${tests[@]}"
