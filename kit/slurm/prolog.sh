#!/usr/bin/env bash
# A Slurm prolog of at most a minute: no job starts on a node that computes wrongly. In slurm.conf:
#
#   Prolog=/etc/slurm/tunecheck-prolog.sh
#   PrologFlags=Alloc          # when the job gets the node, not when its first step begins
#   BatchStartTimeout=120      # longer than this script may take
#
# slurmd runs it as root before each job that has cards. A status other than 0 drains the node and requeues the job, so only
# a failed check is one: what could not be judged in the time is left to `tunecheck fleet`. Set TUNECHECK to the console
# command, in an environment that the node has on a disk of its own.
set -uo pipefail
TUNECHECK=${TUNECHECK:-/opt/tunecheck/bin/tunecheck}
RUN=${TUNECHECK_PROLOG_RUN:-quick}
SECONDS_AT_MOST=${TUNECHECK_PROLOG_SECONDS:-55}
export TUNECHECK_REPORTS=${TUNECHECK_REPORTS:-/var/log/tunecheck}
export TUNECHECK_CACHE=${TUNECHECK_CACHE:-/var/cache/tunecheck} HOME=${HOME:-/root}

# Only the cards of this job: another job may have the others.
[[ -n ${CUDA_VISIBLE_DEVICES:-${SLURM_JOB_GPUS:-}} ]] || exit 0
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-$SLURM_JOB_GPUS}

said=$(timeout --signal=TERM --kill-after=4 "$SECONDS_AT_MOST" \
  "$TUNECHECK" fleet --engine local --time "${SECONDS_AT_MOST}s" --require-gpu "$RUN" 2>&1)
status=$?
verdict=$(grep '^verdict: ' <<<"$said" | tail -n 1)
logger --tag tunecheck "job ${SLURM_JOB_ID:-?}: status $status, ${verdict:-no verdict}" 2>/dev/null
if ((status == 1)); then
  echo "tunecheck: $verdict" >&2
  exit 1
fi
exit 0
