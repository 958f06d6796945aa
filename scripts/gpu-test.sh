#!/usr/bin/env bash
# Run tiers: everything from a bare checkout to the verdict. See --help.
set -euo pipefail

usage() {
  cat <<'HELP'
usage: scripts/gpu-test.sh [options] TIER...

tiers:
  quick         ten steps, before every commit
  convergence   100 steps: the adapters learn, the checkpoint resumes
  memory        4-bit training under its memory ceiling (GPU)
  extended      500 steps, stability (GPU)
  full          LLaMA-7B, 1000 steps (GPU)
  all           all of them, in this order

options:
  --check-vram          show what each tier needs and what this machine has, first
  --vram-cap SIZE       treat every GPU as one of this size, e.g. 8GiB
  --require-gpu         no GPU, and every skip for lack of one, is a failure
  --fail-on-regression  a figure that is worse than in previous sessions is a failure
  --continue-on-error   go on with the next tier after one that did not pass
  --verbose             pytest's own lines for every check
  --bundle DIR          without internet: wheels and weights from a folder made by scripts/offline-bundle.sh
  --set KEY=VALUE       override a key of every run, e.g. --set training.seed=1
  -k EXPRESSION         only what matches, as pytest has it: names of runs and checks
  --help                this text

examples:
  scripts/gpu-test.sh quick
  scripts/gpu-test.sh --check-vram --continue-on-error all
  scripts/gpu-test.sh --require-gpu memory extended
  scripts/gpu-test.sh --check-vram --vram-cap 8GiB memory
  scripts/gpu-test.sh --bundle /media/stick/tunecheck quick
  NO_COLOR=1 scripts/gpu-test.sh convergence --set training.seed=3

exit status: that of the worst tier. 0 pass; 1 a check failed; 6 inconclusive; 7 nothing ran because this machine is too
small; 2 interrupted; 4 usage or configuration error; 5 -k matches nothing in any tier.
HELP
}

wrong() { echo "gpu-test.sh: $1 (--help lists what there is)" >&2; exit 4; }

all_tiers=(quick convergence memory extended full)
tiers=() pytest_options=() cap=() bundle='' check_vram=no continue_on_error=no verbose=no
while (($#)); do
  case $1 in
    quick | convergence | memory | extended | full) tiers+=("$1") ;;
    all) tiers=("${all_tiers[@]}") ;;
    --check-vram) check_vram=yes ;;
    --vram-cap) (($# > 1)) || wrong "--vram-cap needs a size, such as 8GiB"; cap=(--vram-cap "$2"); shift ;;
    --bundle) (($# > 1)) && [[ -d $2 ]] || wrong "--bundle needs a folder that exists"; bundle=$(realpath "$2"); shift ;;
    --require-gpu | --fail-on-regression) pytest_options+=("$1") ;;
    --continue-on-error) continue_on_error=yes ;;
    --verbose) verbose=yes ;;
    --set) (($# > 1)) || wrong "--set needs KEY=VALUE"; pytest_options+=(--set "$2"); shift ;;
    -k) (($# > 1)) || wrong "-k needs an expression, such as qlora"; pytest_options+=(-k "$2"); shift ;;
    --help | -h) usage; exit 0 ;;
    *) wrong "unknown argument '$1'" ;;
  esac
  shift
done
((${#tiers[@]})) || wrong "no tier is given"

# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
if [[ -t 1 && -z ${NO_COLOR:-} ]]; then bold=$'\e[1m' plain=$'\e[0m'; else bold='' plain=''; fi
if [[ -n $bundle ]]; then set_up_from_bundle "$bundle" || exit; else set_up; fi
[[ $verbose == yes ]] && pytest_options+=(-v) || pytest_options+=(-q)
if [[ $check_vram == yes ]]; then "$PYTHON" -m tunecheck.cli list --needs "${tiers[@]/#/--tier=}" "${cap[@]}" || exit 4; fi

# How bad a status is, worst last; anything unknown is worse still. 5, -k names no run of that tier, counts if no tier has one.
rank() { case $1 in 5) echo 0 ;; 0) echo 1 ;; 7) echo 2 ;; 6) echo 3 ;; 1) echo 4 ;; 4) echo 5 ;; 2) echo 6 ;; *) echo 7 ;; esac; }

worst=5 before=''
for tier in "${tiers[@]}"; do
  echo "${bold}== $tier${plain}"
  started=$SECONDS status=0
  # what is in two tiers runs once
  "$PYTHON" -m pytest tiers -m "$tier$before" "${cap[@]}" "${pytest_options[@]}" || status=$?
  before+=" and not $tier"
  echo "${bold}== $tier: status $status, $((SECONDS - started)) s${plain}"
  (($(rank "$status") > $(rank "$worst"))) && worst=$status
  ((status == 2)) && break
  if [[ $continue_on_error == no && ! $status =~ ^[057]$ ]]; then break; fi
done
exit "$worst"
