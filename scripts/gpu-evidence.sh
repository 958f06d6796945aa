#!/usr/bin/env bash
# Everything that a GPU can show of this suite, in one command and in a limited time, as the suite's own output. See --help.
set -euo pipefail

usage() {
  cat <<'HELP'
usage: scripts/gpu-evidence.sh [options] [PART...]

parts, in the order in which they run (all of them when none is named):
  constants    what the card takes for itself: context, libraries, cuBLAS workspaces
  quick        the quick tier
  cap          four strategies on Qwen2-0.5B under --vram-cap 8GiB: which fit, and where their ladders end
  peaks        six runs, each as asked and at the two rungs on the GPU, without probes: 18 peaks beside their predictions
  memory       the memory tier
  extended     500 steps of TinyLlama
  convergence  the adapters' 100 steps
  full         LLaMA-7B, 300 of its 1000 steps (--whole: all)
  strategies   the comparisons of strategies

options:
  --minutes N   for all parts together; what is not done by then is ended and said so (default: 25)
  --whole       nothing shortened
  --output DIR  default: reports/evidence/<card>
  --bundle DIR  without internet: wheels and weights from a folder made by scripts/offline-bundle.sh
  --rehearse    on the CPU with a tiny random model: the same way through, nothing of it is evidence
  --list        print the commands and run none
  --help        this text

It writes DIR/<part>/, the sessions' folders, DIR/parts.tsv, DIR/constants.json and DIR/README.md with the predictions
beside what was measured. A part that is run again takes the place of its former folder. Where DIR is read-only or time
is short, run the parts by themselves: DIR/README.md is written anew each time.

exit status: that of the worst part, as scripts/gpu-test.sh has it; 4 for a usage error.
HELP
}

wrong() { echo "gpu-evidence.sh: $1 (--help lists what there is)" >&2; exit 4; }

all_parts=(constants quick cap peaks memory extended convergence full strategies)
parts=() minutes=25 whole=no output='' bundle='' rehearse=no list=no
while (($#)); do
  case $1 in
    constants | quick | cap | peaks | memory | extended | convergence | full | strategies) parts+=("$1") ;;
    --minutes) (($# > 1)) && [[ $2 =~ ^[1-9][0-9]*$ ]] || wrong "--minutes needs a whole number"; minutes=$2; shift ;;
    --output) (($# > 1)) || wrong "--output needs a folder"; output=$2; shift ;;
    --bundle) (($# > 1)) && [[ -d $2 ]] || wrong "--bundle needs a folder that exists"; bundle=$(realpath "$2"); shift ;;
    --whole) whole=yes ;;
    --rehearse) rehearse=yes ;;
    --list) list=yes ;;
    --help | -h) usage; exit 0 ;;
    *) wrong "unknown argument '$1'" ;;
  esac
  shift
done
((${#parts[@]})) || parts=("${all_parts[@]}")

# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

common=(--require-gpu)
if [[ $rehearse == yes ]]; then
  common=(
    --set "model.architecture={model_type: llama, vocab_size: 512, hidden_size: 64, num_hidden_layers: 2, intermediate_size: 128, num_attention_heads: 4, num_key_value_heads: 2, tie_word_embeddings: true}"
    --set model.parameters=106816 --set 'model.sources=[{kind: random}]' --set allow_random_weights=true
    --set data.max_length=512 --set device=cpu --set training.max_steps=10 --set 'evaluation.at=[]'
    --set 'probes.oracle_steps=[0]' --set probes.resume_from=null --set checks={}
  )
fi
shorter=()
if [[ $whole == no && $rehearse == no ]]; then
  shorter=(--set training.max_steps=300 --set 'evaluation.at=[100, 200]' --set 'probes.oracle_steps=[0, 150]' --set probes.resume_from=280)
fi

# Runs of the part `peaks`: model, rows and tokens. Every row is padded to its full length, as the prediction takes it.
# 512 hold the rows of a random model too, whose tokenizer makes a token of each byte.
peaks=("smollm2-135m 1 128" "smollm2-135m 1 512" "smollm2-135m 4 512" "qwen2-0.5b 1 512" "qwen2-0.5b 4 512" "tinyllama-1.1b 1 512")

# One pytest session; its status counts, and a usage error is seen at once.
tier() {
  local name=$1
  shift
  step "$PYTHON" -m pytest "tiers/test_$name.py" -m "$name" -q "${common[@]}" "$@"
}

step() {
  if [[ $list == yes ]]; then printf '%q ' "$@"; echo; return; fi
  local left=$((deadline - SECONDS)) status=0
  [[ $interrupted == no ]] || return 0
  if ((left < 20)); then echo "no time left for: $*" >&2; worsen 6; return; fi
  # in the foreground, so that Ctrl-C reaches it; when time is up pytest alone is told, and ends what it has started
  timeout --foreground --signal=INT --kill-after=60 "$left" "$@" || status=$?
  ((status != 2)) || interrupted=yes
  ((status != 124)) || status=2
  worsen "$status"
}

rank() { case $1 in 0) echo 0 ;; 7) echo 1 ;; 6) echo 2 ;; 1) echo 3 ;; 4) echo 4 ;; 2) echo 5 ;; *) echo 6 ;; esac; }
worsen() { if (($(rank "$1") > $(rank "$part_status"))); then part_status=$1; fi; }

run_part() {
  local config model rows tokens
  case $1 in
    constants) step "$PYTHON" scripts/card-constants.py "${output:-DIR}/constants.json" ;;
    quick) tier quick ;;
    cap) tier extended --vram-cap 8GiB -k "instructions-full or instructions-freeze or instructions-adapter" ;;
    peaks)
      for config in "${peaks[@]}"; do
        read -r model rows tokens <<<"$config"
        [[ $rehearse == no ]] || { tokens=512 model=smollm2-135m; }
        tier quick --set "model=$model" --set "training.micro_batch_size=$rows" --set probes.rungs=true \
          --set training.precision=bf16 --set data.pad_to_sequence_len=true --set probes.repeat_steps=0 \
          --set probes.generate=false --set allow_random_weights=true --set "data.max_length=$tokens"
      done ;;
    memory) tier memory ;;
    extended) tier extended -k tinyllama ;;
    convergence) tier convergence -k "not strategies" ;;
    full) tier full "${shorter[@]}" ;;
    strategies)
      # the tiny model has no biases, and the seven facts are cut into blocks of a length of their own
      local which=strategies
      [[ $rehearse == no ]] || which='strategies and not bitfit and not seven'
      tier convergence -k "$which"
      tier extended -k "$which" ;;
  esac
}

if [[ $list == yes ]]; then
  PYTHON=python
else
  if [[ -n $bundle ]]; then set_up_from_bundle "$bundle" || exit; else set_up; fi
  if [[ -z $output ]]; then
    card=$("$PYTHON" -c 'from suite.hardware import probe; c = probe().visible_gpus; print((c[0].name or "unknown") if c else "")')
    [[ -n $card ]] || wrong "this machine shows no GPU: \`tunecheck doctor\` says why; --rehearse goes the same way on the CPU, with --output"
    output=reports/evidence/$(tr '[:upper:] ' '[:lower:]-' <<<"$card" | tr -cd 'a-z0-9-')
  fi
  output=$(realpath -m "$output")
  if [[ $rehearse == yes && $output == "$project"/reports/evidence* ]]; then wrong "a rehearsal is no evidence: name another --output"; fi
  mkdir -p "$output"
fi
SECONDS=0 deadline=$((minutes * 60)) worst=0 interrupted=no

for part in "${parts[@]}"; do
  echo "== $part"
  started=$SECONDS part_status=0
  if [[ $list == no ]]; then
    rm -rf "${output:?}/$part"
    export TUNECHECK_REPORTS=$output/$part
  fi
  run_part "$part"
  [[ $list == yes ]] && continue
  # what may name this machine's folders, and what can be made again
  find "$output/$part" \( -name '*.log' -o -name 'history.sqlite*' -o -name report.html \) -delete 2>/dev/null || true
  touch "$output/parts.tsv"
  { grep -v "^$part	" "$output/parts.tsv" || true; printf '%s\t%s\t%s\n' "$part" "$part_status" "$((SECONDS - started))"; } >"$output/parts.new"
  mv "$output/parts.new" "$output/parts.tsv"
  echo "== $part: status $part_status, $((SECONDS - started)) s"
  if (($(rank "$part_status") > $(rank "$worst"))); then worst=$part_status; fi
  [[ $interrupted == no ]] || break
done
[[ $list == yes ]] || "$PYTHON" scripts/evidence-tables.py "$output" || worst=1
exit "$worst"
