#!/usr/bin/env bash
# A Ray cluster of several nodes on this machine, by Ray's own cluster utility, broken in three ways and asked by
# `tunecheck fleet`: about four minutes. Makes an environment of its own for ray, from the package index.
#
#   scripts/ray-here.sh            healthy, then a wrong bit and a killed node, then what cannot be done
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
if [[ -z ${PYTHON:-} ]]; then
  set_up
  outer=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  use_environment "${RAY_ENVIRONMENT:-$project/.venv-ray}"
  echo "$outer" >"$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer-packages.pth"
  pip_install ray submitit
fi
OMP_NUM_THREADS=1 PYTHONPATH=$project/suite:$project exec "$PYTHON" -m benchmarks.fleet.ray_here "$@"
