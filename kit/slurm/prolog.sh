#!/usr/bin/env bash
# A Slurm prolog of at most a minute: no job starts on a node that computes wrongly. In slurm.conf:
#
#   Prolog=/etc/slurm/tunecheck-prolog.sh
#   PrologFlags=Alloc          # when the job gets the node, not when its first step begins
#   BatchStartTimeout=120      # longer than this script may take
#   SchedulerParameters=nohold_on_prolog_fail    # else Slurm holds the job for ever instead of sending it to another node
#
# slurmd runs it as root before each job that has cards. A status other than 0 drains the node and requeues the job. A failed
# check is one, and so is a node that could not be judged in the time: nobody knows that it computes rightly. With
# TUNECHECK_PROLOG_UNJUDGED=pass such a node takes the job. A node that is too small for the run takes it always. Set
# TUNECHECK to the console command, in an environment that the node has on a disk of its own; try it on one node first.
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
case $status in
  0 | 7) exit 0 ;;
  1) echo "tunecheck: $verdict" >&2 ;;
  *) # 124 and 137: out of time; 126 and 127: no tunecheck there
    echo "tunecheck: not judged (status $status): ${verdict:-$(tail -n 1 <<<"$said")}" >&2
    [[ ${TUNECHECK_PROLOG_UNJUDGED:-fail} != pass ]] || exit 0
    ;;
esac
exit 1
