#!/usr/bin/env bash
# A Slurm cluster of its own on this machine, broken in six ways and asked by `tunecheck fleet`: about five minutes.
# Needs root and Debian's packages slurm-wlm and munge. Everything lies in one temporary folder.
#
#   scripts/slurm-here.sh          healthy, then a wrong bit, a slow node, a full disk, a cancelled job, a drained node, GPUs that
#                                  do not work, a killed daemon, an interrupt
#   scripts/slurm-here.sh shell    only sets the cluster up and gives a shell in it
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[[ -n ${PYTHON:-} ]] || set_up
"$PYTHON" -c 'import submitit' 2>/dev/null || pip_install submitit

for command in slurmctld slurmd munged sbatch; do
  command -v "$command" >/dev/null || { echo "$command is missing: apt-get install slurm-wlm munge" >&2; exit 4; }
done
((EUID == 0)) || { echo "needs root: slurmd and munged run as it" >&2; exit 4; }

here=$(mktemp -d -t slurm-here.XXXXXX)
nodes=9 # eight of one kind is the fewest whose speeds are compared
export SLURM_CONF=$here/slurm.conf TUNECHECK_REPORTS=$here/reports NO_COLOR=1 COLUMNS=110
export PATH=$PATH:/usr/sbin
pids=()

take_down() {
  trap - EXIT
  scancel --user=root 2>/dev/null || true
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  sleep 1
  mountpoint --quiet "$here/small" && umount --lazy "$here/small"
  [[ -n ${KEEP:-} ]] && echo "kept: $here" || rm -rf "$here"
}
trap take_down EXIT

set_up_slurm() {
  mkdir -p "$here"/{state,log,reports,small}
  dd if=/dev/urandom of="$here/munge.key" bs=1024 count=1 status=none
  chmod 400 "$here/munge.key"
  chmod 755 "$here" # munged refuses a socket in a folder that is closed
  munged --force --foreground --key-file="$here/munge.key" --socket="$here/munge.socket" --pid-file="$here/munge.pid" \
    --log-file="$here/log/munge.log" --seed-file="$here/munge.seed" 2>/dev/null &
  pids+=($!)
  touch "$here/gpu0" "$here/gpu1"
  cat >"$SLURM_CONF" <<CONF
ClusterName=here
SlurmctldHost=$(hostname)
SlurmctldPort=17000
AuthInfo=socket=$here/munge.socket
SlurmUser=root
StateSaveLocation=$here/state
SlurmdSpoolDir=$here/state/%n
SlurmctldPidFile=$here/slurmctld.pid
SlurmdPidFile=$here/%n.pid
SlurmctldLogFile=$here/log/slurmctld.log
SlurmdLogFile=$here/log/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
GresTypes=gpu
ReturnToService=2
SlurmdTimeout=10
MpiDefault=none
TaskProlog=$here/task-prolog.sh
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname=$(hostname) Port=17001 CPUs=2 Gres=gpu:2
NodeName=n[2-$nodes] NodeHostname=$(hostname) Port=[17002-$((17000 + nodes))] CPUs=2
PartitionName=all Nodes=ALL Default=YES State=UP
CONF
  echo "NodeName=n1 Name=gpu File=$here/gpu[0-1]" >"$here/gres.conf"
  # what a node has and its neighbours have not: Slurm runs this before each task, and takes the variables that it prints
  cat >"$here/task-prolog.sh" <<PROLOG
#!/bin/bash
[[ \$SLURMD_NODENAME == "\$(cat $here/broken-node 2>/dev/null)" ]] && cat $here/broken-environment
true
PROLOG
  chmod +x "$here/task-prolog.sh"
  sleep 1
  slurmctld -D >/dev/null 2>&1 &
  pids+=($!)
  for number in $(seq "$nodes"); do
    slurmd -D -N "n$number" >/dev/null 2>&1 &
    pids+=($!)
    slurmd_of[number]=$!
  done
  for _ in $(seq 60); do
    [[ $(sinfo --noheader --Node --states=idle 2>/dev/null | wc -l) == "$nodes" ]] && return
    sleep 1
  done
  sinfo --Node --long
  tail -n 5 "$here"/log/*.log
  return 1
}
slurmd_of=()

# Break a node by variables of its tasks' environment, a line each.
break_node() {
  printf 'export %s\n' "${@:2}" >"$here/broken-environment"
  echo "$1" >"$here/broken-node"
}
heal() { rm -f "$here/broken-node"; }

tiny=(quick/smollm2-135m-qlora --set model=tiny-llama --set data.max_length=512 --set training.max_steps=5 --set device=cpu)
fleet() {
  local status=0
  printf '\n$ tunecheck fleet %s\n' "$(sed 's/ --set .*cpu//' <<<"$*")"
  OMP_NUM_THREADS=1 PYTHONPATH=$project/suite "$PYTHON" -m tunecheck.cli fleet "$@" || status=$?
  echo "exit status $status"
}
title() { printf '\n# %s\n' "$*"; }
newest() { find "$here/reports" -maxdepth 1 -name 'fleet-*' | sort | tail -n 1; }

set_up_slurm
sinfo --Node --format='%N %T %c %G'
if [[ ${1:-} == shell ]]; then
  bash
  exit
fi

ask=(--engine slurm --cpus 1 --at-once 2 --time 5min --wait 15min)
title "a healthy cluster: n1 with two cards, the others without"
fleet "${ask[@]}" --nodes 'n[1-3]' "${tiny[@]}"

title "n3 computes one product wrongly"
break_node n3 "PYTHONPATH=$project/benchmarks/fleet/broken" BROKEN=bit
fleet "${ask[@]}" --nodes 'n[1-4]' "${tiny[@]}"
echo "drain.txt: $(cat "$(newest)/drain.txt")"
sinfo --noheader --nodes="$(cat "$(newest)/drain.txt")" --format='sinfo takes it: %N %T'

title "n5 is slow"
break_node n5 "PYTHONPATH=$project/benchmarks/fleet/broken" BROKEN=slow
fleet "${ask[@]}" --at-once 1 --nodes "n[2-$nodes]" "${tiny[@]}"

title "n4 has a full disk"
mount -t tmpfs -o size=16k tmpfs "$here/small" # what the run saves takes more
break_node n4 "TMPDIR=$here/small"
fleet "${ask[@]}" --nodes 'n[2-5]' "${tiny[@]}"
heal

title "the job of n2 is cancelled while it trains"
(
  for _ in $(seq 300); do
    job=$(squeue --noheader --states=running --nodelist=n2 --format=%A | head -n 1)
    [[ -n $job ]] && break
    sleep 0.5
  done
  for _ in $(seq 300); do # its folder is new; it trains once there is a trace
    compgen -G "$(newest)/nodes/n2/*/*.jsonl" >/dev/null && break
    sleep 0.2
  done
  scancel "$job"
) &
fleet "${ask[@]}" --nodes 'n[2-5]' "${tiny[@]}"
wait $!
echo "to drain: '$(cat "$(newest)/drain.txt")'"

title "an administrator has drained n9"
scontrol update nodename=n9 state=drain reason=disk
fleet "${ask[@]}" --nodes 'n[8-9]' "${tiny[@]}"
scontrol update nodename=n9 state=resume

title "the GPUs of n1 do not work"
fleet "${ask[@]}" --nodes n1 "${tiny[@]:0:7}" # without device=cpu
echo "to drain: '$(cat "$(newest)/drain.txt")'"

title "the daemon of n6 is killed while its task runs"
(
  for _ in $(seq 300); do
    job=$(squeue --noheader --states=running --nodelist=n6 --format=%A | head -n 1)
    [[ -n $job ]] && break
    sleep 0.5
  done
  sleep 3
  kill -KILL "${slurmd_of[6]}"
  for pid in $(pgrep --full "slurmstepd: \[$job\."); do # of this cluster alone
    grep --quiet --text "SLURM_CONF=$SLURM_CONF" "/proc/$pid/environ" || continue
    tasks=$(pgrep --parent "$pid") || true
    kill -KILL "$pid" $tasks # the sessions die with their parents
  done
) &
fleet "${ask[@]}" --nodes 'n[5-7]' "${tiny[@]}"
wait $!
session=$(newest)

title "its daemon is back, and the same session goes on"
slurmd -D -N n6 >/dev/null 2>&1 &
pids+=($!)
for _ in $(seq 30); do [[ $(sinfo --noheader --nodes=n6 --format=%T) == idle ]] && break; sleep 1; done
fleet --resume "$session"

title "an interrupt (SIGTERM, as of a cancelled job) cancels what is queued"
OMP_NUM_THREADS=1 PYTHONPATH=$project/suite "$PYTHON" -m tunecheck.cli fleet "${ask[@]}" --at-once 9 --nodes 'n[2-5]' "${tiny[@]}" &
asking=$!
for _ in $(seq 300); do # no longer: it may have ended by itself
  { [[ $(squeue --noheader | wc -l) -ge 3 ]] || ! kill -0 "$asking" 2>/dev/null; } && break
  sleep 0.2
done
kill -TERM "$asking" 2>/dev/null || echo "it had ended before the signal"
wait "$asking" || echo "exit status $?"
sleep 2
echo "left in the queue: $(squeue --noheader | wc -l)"

title "what cannot be done is said"
fleet --engine slurm --partition none "${tiny[@]}"
fleet --engine slurm --nodes n77 "${tiny[@]}"
fleet --engine slurm --constraint h100 --nodes n2 "${tiny[@]}"

