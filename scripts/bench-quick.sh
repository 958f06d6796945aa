#!/usr/bin/env bash
# Wall time of `pytest -m quick` against a bare script doing the same ten steps, alternating; medians and their ratio.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
set_up
rounds=${1:-3}

weights=$("$PYTHON" -m suite.cli fetch smollm2-135m | tail -n 1)
times_bare=() times_quick=()
clock() {
  local from=$EPOCHREALTIME
  "$@" >/dev/null 2>&1 || { echo "status $?: $*" >&2; return 1; }
  echo "$EPOCHREALTIME $from" | awk '{ printf "%.1f", $1 - $2 }'
}
for ((round = 1; round <= rounds; round++)); do
  seconds=$(clock "$PYTHON" scripts/bare-quick.py "$weights") # a failure ends the script here, not within +=
  times_bare+=("$seconds")
  seconds=$(clock "$PYTHON" -m pytest -m quick)
  times_quick+=("$seconds")
  echo "round $round: bare ${times_bare[-1]} s, quick ${times_quick[-1]} s"
done
"$PYTHON" - "${times_bare[*]}" "${times_quick[*]}" <<'PYTHON'
import statistics
import sys

bare, quick = (statistics.median(map(float, text.split())) for text in sys.argv[1:])
print(f"median: bare {bare:.1f} s, quick {quick:.1f} s, ratio {quick / bare:.2f}")
PYTHON
