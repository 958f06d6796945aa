#!/usr/bin/env bash
# All gates of the project itself: lint, format, types, tests. CI calls this and nothing else for them. Without --all it
# leaves out slow tests, and most parameter sets of tests that train: see tests/conftest.py.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
set_up
some=(--some)
if [[ ${1:-} == --all ]]; then
  some=()
  shift
fi

"$PYTHON" -m ruff check .
"$PYTHON" -m ruff format --check .
# beside the tests: by itself it would leave all processors but one idle for half a minute
types=$(mktemp) mypy=''
trap 'kill $mypy 2>/dev/null || true; rm -f "$types"' EXIT
"$PYTHON" -m mypy >"$types" 2>&1 &
mypy=$!
"$PYTHON" -m tunecheck.cli fetch smollm2-135m # some tests train on real weights
status=0
# a worker more than a small machine has processors, since some tests wait; of one thread each. Stealing leaves most
# files whole, so that what they train is trained once
OMP_NUM_THREADS=1 "$PYTHON" -m pytest tests "${some[@]}" -n 3 --dist worksteal "$@" || status=$?
wait "$mypy" || status=1
mypy=''
cat "$types"
exit "$status"
