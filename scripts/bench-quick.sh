#!/usr/bin/env bash
# Wall time of `pytest -m quick` against a bare script doing the same ten steps, in pairs; medians and their ratio.
# The bare script trains in the precision that the run resolved: on a CPU with native bf16 the two would otherwise do
# different arithmetic. Both spin as long as libgomp does by default: quick would shorten it beside other processes.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
set_up
rounds=${1:-3}

weights=$("$PYTHON" -m tunecheck.cli fetch smollm2-135m | tail -n 1)
reports=$(mktemp -d)
trap 'rm -rf "$reports"' EXIT
export TUNECHECK_REPORTS=$reports GOMP_SPINCOUNT=300000
unset PYTHONDONTWRITEBYTECODE # an installed tunecheck has its bytecode, as the libraries have
times_bare=() times_quick=()
clock() {
  local from=$EPOCHREALTIME
  "$@" >/dev/null 2>&1 || { echo "status $?: $*" >&2; return 1; }
  echo "$EPOCHREALTIME $from" | awk '{ printf "%.1f", $1 - $2 }'
}
precision_of_quick() {
  "$PYTHON" - "$reports" <<'PYTHON'
import sys
from pathlib import Path

from tunecheck.core.evidence import Setup
from tunecheck.core.trace import read

traces = sorted(Path(sys.argv[1]).rglob("quick-*.jsonl"), key=lambda path: path.stat().st_mtime)
print(read(traces[-1]).one(Setup).precision)
PYTHON
}
for ((round = 1; round <= rounds; round++)); do
  seconds=$(clock "$PYTHON" -m pytest -m quick) # a failure ends the script here, not within +=
  times_quick+=("$seconds")
  precision=$(precision_of_quick)
  seconds=$(clock "$PYTHON" scripts/bare-quick.py "$weights" "$precision")
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
