#!/usr/bin/env bash
# Faults of the machine and of a GPU, injected into real runs of a tiny model: scripts/chaos.sh [WORD ...], about half an
# hour for all. Writes docs/reliability.md. Full disks need root, faults of a GPU a C compiler; without they are left out.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
set_up

OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} "$PYTHON" -m benchmarks.chaos --write "$@"
