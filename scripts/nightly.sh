#!/usr/bin/env bash
# A night without any CI service: doctor, fetch, then the tiers without a network. See --help.
set -euo pipefail

usage() {
  cat <<'HELP'
usage: scripts/nightly.sh [options] [TIER...]

In this order: the doctor looks at the machine, the weights of the tiers' models are fetched, and the tiers (all of them
where none is given) run with HF_HUB_OFFLINE=1, each of them even if the one before did not pass. At the end the night is
set beside those before it.

options:
  --require-gpu          no GPU, and every skip for lack of one, is a failure
  --fail-on-regression   a figure that is worse than in previous sessions is a failure
  --deadline TIME        stop the tiers after this time, as by Ctrl-C, with reports: 90m, 8h (default 10h)
  --keep N               remove all sessions but the last N afterwards; their figures stay in the history
  --fetch-only           the doctor and the weights, no tier
  --offline              no fetching: the weights are in the cache
  --help                 this text

examples:
  scripts/nightly.sh --require-gpu memory extended
  30 1 * * * cd /srv/tunecheck && scripts/nightly.sh --require-gpu >> nightly.log 2>&1     # a line for crontab

exit status: that of the worst tier, as scripts/gpu-test.sh. 0 pass; 1 a check failed; 2 interrupted, or out of time; 4 usage
or configuration error; 6 inconclusive, also because the doctor found an error, or another night is still
running here; 7 nothing ran because this machine is too small.
HELP
}

wrong() { echo "nightly.sh: $1 (--help lists what there is)" >&2; exit 4; }

all_tiers=(quick convergence memory extended full)
tiers=() options=() deadline=10h fetch=yes run=yes keep=''
while (($#)); do
  case $1 in
    quick | convergence | memory | extended | full) tiers+=("$1") ;;
    --require-gpu | --fail-on-regression) options+=("$1") ;;
    --keep)
      (($# > 1)) && [[ $2 =~ ^[1-9][0-9]*$ ]] || wrong "--keep needs a number of sessions, such as 30"
      keep=$2; shift ;;
    --deadline)
      (($# > 1)) && [[ $2 =~ ^[1-9][0-9]*[smhd]?$ ]] || wrong "--deadline needs a time, such as 90m or 8h"
      deadline=$2; shift ;;
    --fetch-only) run=no ;;
    --offline) fetch=no ;;
    --help | -h) usage; exit 0 ;;
    *) wrong "unknown argument '$1'" ;;
  esac
  shift
done
[[ $fetch$run != nono ]] || wrong "--fetch-only and --offline together leave nothing to do"
((${#tiers[@]})) || tiers=("${all_tiers[@]}")

# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# A night that is longer than a day must not meet the next one on the same card.
reports=${TUNECHECK_REPORTS:-$project/reports/runs}
mkdir -p "$reports"
exec {lock}<"$reports"
flock --nonblock "$lock" || { echo "nightly.sh: another night still writes into $reports" >&2; exit 6; }

set_up
echo "== doctor"
"$PYTHON" -m tunecheck.cli doctor || { echo "nightly.sh: the doctor found an error: nothing was run" >&2; exit 6; }

if [[ $fetch == yes ]]; then
  echo "== fetch"
  models=$("$PYTHON" -c 'import sys
from tunecheck.config import load_runs
print(*dict.fromkeys(run.model.name for tier in sys.argv[1:] for run in load_runs(tier)))' "${tiers[@]}") || exit 4
  for model in $models; do
    # A model that is not to be had is the business of its tier, which names it: the others still run.
    "$PYTHON" -m tunecheck.cli fetch "$model" || echo "nightly.sh: $model was not fetched; going on" >&2
  done
fi
[[ $run == yes ]] || exit 0

status=0
# A shell that starts this in the background has Ctrl-C ignored, and with it the end of the deadline.
HF_HUB_OFFLINE=1 timeout --signal=INT --kill-after=5m "$deadline" env --default-signal=INT \
  scripts/gpu-test.sh --check-vram --continue-on-error "${options[@]}" "${tiers[@]}" || status=$?
echo "== this session and previous ones"
"$PYTHON" -m tunecheck.cli history || echo "nightly.sh: the history cannot be shown; the verdict stands" >&2
if [[ $keep ]]; then "$PYTHON" -m tunecheck.cli prune --keep "$keep" || echo "nightly.sh: nothing was pruned" >&2; fi
((status != 124 && status != 137)) || { echo "nightly.sh: stopped after $deadline" >&2; status=2; }
exit "$status"
