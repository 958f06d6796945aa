#!/usr/bin/env bash
# Wall time of `pytest -m quick` against a bare script doing the same ten steps, in pairs; medians and their ratio.
# The bare script trains in the precision that the run resolved and with the OpenMP spinning that it chose: on a CPU with
# native bf16 the two would otherwise do different arithmetic, and beside other processes wait in different ways.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
set_up
rounds=${1:-3}

weights=$("$PYTHON" -m tunecheck.cli fetch smollm2-135m | tail -n 1)
reports=$(mktemp -d)
trap 'rm -rf "$reports"' EXIT
export TUNECHECK_REPORTS=$reports
times_bare=() times_quick=()
clock() {
  local from=$EPOCHREALTIME
  "$@" >/dev/null 2>&1 || { echo "status $?: $*" >&2; return 1; }
  echo "$EPOCHREALTIME $from" | awk '{ printf "%.1f", $1 - $2 }'
}
# Precision and GOMP_SPINCOUNT of the last quick run, from its trace; "-" where libgomp's own count was left.
resolved() {
  "$PYTHON" - "$reports" <<'PYTHON'
import sys
from pathlib import Path

from tunecheck.core.evidence import Setup
from tunecheck.core.trace import read

traces = sorted(Path(sys.argv[1]).rglob("quick-*.jsonl"), key=lambda path: path.stat().st_mtime)
setup = read(traces[-1]).one(Setup)
print(setup.precision, setup.numerics["openmp_spin_count"] or "-")
PYTHON
}
for ((round = 1; round <= rounds; round++)); do
  seconds=$(clock "$PYTHON" -m pytest -m quick) # a failure ends the script here, not within +=
  times_quick+=("$seconds")
  read -r precision spin < <(resolved)
  bare=("$PYTHON" scripts/bare-quick.py "$weights" "$precision")
  [[ $spin == - ]] || bare=(env GOMP_SPINCOUNT="$spin" "${bare[@]}")
  seconds=$(clock "${bare[@]}")
  times_bare+=("$seconds")
  echo "round $round: quick ${times_quick[-1]} s, bare ${times_bare[-1]} s, both in $precision"
done
"$PYTHON" - "${times_bare[*]}" "${times_quick[*]}" <<'PYTHON'
import statistics
import sys

bare, quick = (list(map(float, text.split())) for text in sys.argv[1:])
ratio = statistics.median(one / other for one, other in zip(quick, bare, strict=True))
medians = f"quick {statistics.median(quick):.1f} s, bare {statistics.median(bare):.1f} s"
print(f"median: {medians}; ratio of the pairs {ratio:.2f}")
PYTHON
