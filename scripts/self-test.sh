#!/usr/bin/env bash
# All gates of the project itself: lint, format, types, tests. CI calls this and nothing else for them.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
set_up

"$PYTHON" -m ruff check .
"$PYTHON" -m ruff format --check .
"$PYTHON" -m mypy
"$PYTHON" -m suite.cli fetch smollm2-135m # some tests train on real weights
# two workers of one thread each; stealing leaves most files whole, so that what they train is trained once
OMP_NUM_THREADS=1 "$PYTHON" -m pytest tests -n 2 --dist worksteal "$@"
