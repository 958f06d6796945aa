#!/usr/bin/env bash
# Everything that a GPU can show of this suite, in one command and in a limited time, as the suite's own output. See --help.
set -euo pipefail

usage() {
  cat <<'HELP'
usage: scripts/gpu-evidence.sh [options] [PART...]

parts, in the order of what their minutes are worth (all of them when none is named):
  constants    what the card takes for itself: context, libraries, cuBLAS workspaces
  quick        the quick tier
  quick-fp32   the same in fp32, where the numeric limits are narrow
  convergence  the adapters' 100 steps, without cuDNN attention
  cudnn        the same with cuDNN attention, which is off where it is known to give NaN
  memory       the memory tier
  full         LLaMA-7B, 300 of its 1000 steps (--whole: all)
  extended     500 steps of TinyLlama
  strategies   the comparisons of strategies
  peaks        six runs, each as configured and at the steps of the fallback chain on the GPU, without probes: 18 peaks
  cap          four strategies on Qwen2-0.5B under --vram-cap 8GiB: which fit, and where their fallback chains end

options:
  --minutes N   for all parts together, ending and tables included: nothing runs past it (default: 60)
  --resume      go on in DIR: sessions that came to their end there are kept and not run again
  --whole       nothing shortened
  --output DIR  default: reports/evidence/<card>
  --bundle DIR  without internet: wheels and weights from a folder made by scripts/offline-bundle.sh
  --rehearse    on the CPU with a tiny random model: the same way through, nothing of it is evidence
  --list        print the commands and run none
  --help        this text

It writes DIR/<part>/, the sessions' folders, DIR/parts.tsv, DIR/constants.json and DIR/README.md with the predictions
beside what was measured, and says at the end what is left. Without --resume a part that is run again takes the place of
its former folder.

exit status: that of the worst part, as scripts/gpu-test.sh has it; 4 for a usage error.
HELP
}

wrong() { echo "gpu-evidence.sh: $1 (--help lists what there is)" >&2; exit 4; }

all_parts=(constants quick quick-fp32 convergence cudnn memory full extended strategies peaks cap)
parts=() minutes=60 resume=no whole=no output='' bundle='' rehearse=no list=no
while (($#)); do
  case $1 in
    constants | quick | quick-fp32 | convergence | cudnn | memory | full | extended | strategies | peaks | cap) parts+=("$1") ;;
    --minutes) (($# > 1)) && [[ $2 =~ ^[1-9][0-9]*$ ]] || wrong "--minutes needs a whole number"; minutes=$2; shift ;;
    --output) (($# > 1)) || wrong "--output needs a folder"; output=$2; shift ;;
    --bundle) (($# > 1)) && [[ -d $2 ]] || wrong "--bundle needs a folder that exists"; bundle=$(realpath "$2"); shift ;;
    --resume) resume=yes ;;
    --whole) whole=yes ;;
    --rehearse) rehearse=yes ;;
    --list) list=yes ;;
    --help | -h) usage; exit 0 ;;
    *) wrong "unknown argument '$1'" ;;
  esac
  shift
done
((${#parts[@]})) || parts=("${all_parts[@]}")

SECONDS=0 # setting up counts too
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

# Seconds between asking a session to end and killing it; for the tables at the end, predictions included; and without
# which no session is begun.
ending=30 tables=60 shortest=60

# One session of a part, ended in time. DIR/PART/.done lists those that came to
# their end, so that a later session can go on.
step() {
  if [[ $list == yes ]]; then printf '%q ' "$@"; echo; return; fi
  local left=$((deadline - ending - tables - SECONDS)) status=0 done_file=$output/$part/.done key
  key=$(printf '%s\0' "$@" | sha256sum | cut -c 1-16)
  [[ $interrupted == no ]] || { unfinished=yes; return 0; }
  if grep -q "^$key " "$done_file" 2>/dev/null; then
    worsen "$(grep "^$key " "$done_file" | cut -d ' ' -f 2)"
    return
  fi
  if ((left < shortest)); then unfinished=yes; worsen 2; return; fi
  # in the foreground, so that Ctrl-C reaches it; when time is up pytest alone is told, and ends what it has started
  timeout --foreground --signal=INT --kill-after=$ending "$left" "$@" || status=$?
  if ((status == 124 || status == 137)); then
    unfinished=yes status=2
  elif ((status == 2)); then
    unfinished=yes interrupted=yes
  else
    mkdir -p "$output/$part" && echo "$key $status" >>"$done_file"
  fi
  worsen "$status"
}

rank() { case $1 in 0) echo 0 ;; 7) echo 1 ;; 6) echo 2 ;; 1) echo 3 ;; 4) echo 4 ;; 2) echo 5 ;; *) echo 6 ;; esac; }
worsen() { if (($(rank "$1") > $(rank "$part_status"))); then part_status=$1; fi; }

run_part() {
  local config model rows tokens
  case $1 in
    constants) step "$PYTHON" scripts/card-constants.py "${output:-DIR}/constants.json" ;;
    quick) tier quick ;;
    quick-fp32) tier quick --set training.precision=fp32 ;;
    convergence) tier convergence -k "not strategies" --set training.cudnn_attention=false ;;
    cudnn) tier convergence -k "not strategies" --set training.cudnn_attention=true ;;
    memory) tier memory ;;
    full) tier full "${shorter[@]}" ;;
    extended) tier extended -k tinyllama ;;
    strategies)
      # the tiny model has no biases, and the seven facts are cut into blocks of a length of their own
      local which=strategies
      [[ $rehearse == no ]] || which='strategies and not bitfit and not seven'
      tier convergence -k "$which"
      tier extended -k "$which" ;;
    peaks)
      for config in "${peaks[@]}"; do
        read -r model rows tokens <<<"$config"
        [[ $rehearse == no ]] || { tokens=512 model=smollm2-135m; }
        tier quick --set "model=$model" --set "training.micro_batch_size=$rows" --set probes.rungs=gpu \
          --set training.precision=bf16 --set data.pad_to_sequence_len=true --set probes.repeat_steps=0 \
          --set probes.generate=false --set allow_random_weights=true --set "data.max_length=$tokens"
      done ;;
    cap) tier extended --vram-cap 8GiB -k "instructions-full or instructions-freeze or instructions-adapter" ;;
  esac
}

if [[ $list == yes ]]; then
  PYTHON=python
else
  if [[ -n $bundle ]]; then set_up_from_bundle "$bundle" || exit; else set_up; fi
  if [[ -z $output ]]; then
    card=$("$PYTHON" -c 'from tunecheck.hardware import probe; c = probe().visible_gpus; print((c[0].name or "unknown") if c else "")')
    [[ -n $card ]] || wrong "this machine shows no GPU: \`tunecheck doctor\` says why; --rehearse goes the same way on the CPU, with --output"
    output=reports/evidence/$(tr '[:upper:] ' '[:lower:]-' <<<"$card" | tr -cd 'a-z0-9-')
  fi
  output=$(realpath -m "$output")
  if [[ $rehearse == yes && $output == "$project"/reports/evidence* ]]; then wrong "a rehearsal is no evidence: name another --output"; fi
  mkdir -p "$output"
fi
deadline=$((minutes * 60)) worst=0 interrupted=no undone=()

for part in "${parts[@]}"; do
  if [[ $list == no ]] && { [[ $interrupted == yes ]] || ((deadline - ending - tables - SECONDS < shortest)); }; then
    undone+=("$part") # what an earlier session left of it stays as it is
    worst=2
    continue
  fi
  echo "== $part"
  started=$SECONDS part_status=0 unfinished=no
  if [[ $list == no ]]; then
    [[ $resume == yes ]] || rm -rf "${output:?}/$part"
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
  [[ $unfinished == no ]] || undone+=("$part")
  if (($(rank "$part_status") > $(rank "$worst"))); then worst=$part_status; fi
done
if [[ $list == no ]]; then
  timeout "$((deadline > SECONDS ? deadline - SECONDS : 1))" "$PYTHON" scripts/evidence-tables.py "$output" || worst=1
  if ((${#undone[@]})); then
    echo "left: ${undone[*]}; go on with: scripts/gpu-evidence.sh --resume --output $output ${undone[*]}"
  fi
fi
exit "$worst"
