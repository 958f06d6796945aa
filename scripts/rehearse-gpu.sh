#!/usr/bin/env bash
# What can be rehearsed of a GPU without one: CUDA's branches, kernels, no network. The self-tests run the fast part of it.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
set_up

TUNECHECK_REHEARSE=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} "$PYTHON" -m pytest tests/rehearsal "$@"
