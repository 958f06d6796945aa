#!/usr/bin/env bash
# Faults of the machine, injected into real runs of a tiny model: scripts/chaos.sh [WORD ...], about ten minutes for all.
# Writes docs/reliability.md. Full disks need root; without it they are left out.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
set_up

OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} "$PYTHON" -m benchmarks.chaos --write "$@"
