#!/usr/bin/env bash
# Everything that a GPU machine without internet needs, in one folder or in parts of it. See --help.
set -euo pipefail

usage() {
  cat <<'HELP'
usage: scripts/offline-bundle.sh [options] --output DIR     gather a bundle, where there is internet
       scripts/offline-bundle.sh --join PARTS --output DIR  verify its parts and put them together, where there is none

then, on that machine:  scripts/gpu-test.sh --bundle DIR TIER...

options:
  --output DIR           folder to make; it must not exist yet
  --python-version X.Y   Python of the target (default: that of this machine)
  --platform TAG         platform of the target's wheels, several allowed (default: manylinux of glibc 2.17 to 2.28, x86_64)
  --without NAME         a package that the target has, e.g. torch; several allowed
  --model NAME           weights to take along, a file in configs/models; several allowed (default: smollm2-135m)
  --weights NAME=FOLDER  weights from a folder with config.json, model.safetensors and tokenizer; several allowed
  --no-model             no weights but those of --weights
  --constraints FILE     the exact versions of all wheels (default: constraints.txt)
  --part-size SIZE       leave parts of at most this size, e.g. 60M, with their SHA-256 digests, instead of one folder
  --join PARTS           folder with such parts
  --help                 this text

examples:
  scripts/offline-bundle.sh --python-version 3.12 --without torch --output /media/stick/tunecheck
  scripts/offline-bundle.sh --model tinyllama-1.1b --part-size 60M --output parts
  scripts/offline-bundle.sh --join parts --output bundle
HELP
}

wrong() { echo "offline-bundle.sh: $1 (--help lists what there is)" >&2; exit 4; }
failed() { echo "offline-bundle.sh: $1" >&2; exit 1; }

bootstrap=${BOOTSTRAP_PYTHON:-python3} output='' join='' part_size='' python_version='' constraints=''
platforms=() without=() models=() weights=() no_model=no
while (($#)); do
  case $1 in
    --help | -h) usage; exit 0 ;;
    --no-model) no_model=yes; shift; continue ;;
    --output | --python-version | --platform | --without | --model | --weights | --constraints | --part-size | --join)
      (($# > 1)) || wrong "$1 needs a value" ;;
    *) wrong "unknown argument '$1'" ;;
  esac
  case $1 in
    --output) output=$2 ;;
    --python-version) python_version=$2 ;;
    --platform) platforms+=("$2") ;;
    --without) without+=("$2") ;;
    --model) models+=("$2") ;;
    --weights) [[ $2 == ?*=?* && -d ${2#*=} ]] || wrong "--weights $2: write NAME=FOLDER, with a folder that exists"
      weights+=("${2%%=*}=$(realpath "${2#*=}")") ;;
    --constraints) [[ -f $2 ]] || wrong "--constraints: there is no file $2"; constraints=$(realpath "$2") ;;
    --part-size) [[ $2 =~ ^[0-9]+[KMG]$ ]] || wrong "--part-size $2: write it like 60M (K, M or G)"; part_size=$2 ;;
    --join) [[ -f $2/SHA256SUMS ]] || wrong "--join $2: no parts are there, SHA256SUMS is missing"; join=$(realpath "$2") ;;
  esac
  shift 2
done
[[ -n $output ]] || wrong "--output is missing"
[[ ! -e $output ]] || wrong "--output $output exists already: name another folder, or remove it"
mkdir -p "$(dirname "$output")"
output=$(realpath "$output")
# shellcheck source=scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Made beside its place and moved there when it is whole.
unfinished=$output.unfinished
rm -rf "$unfinished"
mkdir "$unfinished"
trap 'rm -rf "$unfinished"' EXIT

gather_wheels() {
  local wanted=$unfinished/wanted.txt name target=(--only-binary=:all: --python-version "$python_version")
  for name in "${platforms[@]}"; do target+=(--platform "$name"); done
  for name in "${without[@]}"; do
    grep -qiE "^$name==" "$constraints" || failed "--without $name: $constraints has no such package"
  done
  grep -E '^[A-Za-z0-9]' "$constraints" | grep -viE "^($(IFS='|'; echo "${without[*]:-none at all}"))==" >"$wanted" || true
  # torch alone is asked for with what it needs: on Linux that is a CUDA stack that the constraints do not list.
  if grep -q '^torch==' "$wanted"; then
    "$bootstrap" -m pip download --quiet --disable-pip-version-check --dest "$unfinished/wheels" "${target[@]}" \
      --constraint "$constraints" "$(grep '^torch==' "$wanted")" || failed "pip could not gather torch and its libraries"
  fi
  "$bootstrap" -m pip download --quiet --disable-pip-version-check --dest "$unfinished/wheels" "${target[@]}" \
    --no-deps --requirement "$wanted" || failed "pip could not gather all wheels for Python $python_version"
  rm "$wanted"
}

gather_weights() {
  local name found
  for name in "${models[@]}"; do
    found=$("$PYTHON" -m tunecheck.cli fetch "$name" | tail -n 1) || failed "the weights of $name could not be fetched"
    mkdir -p "$unfinished/models/$name"
    cp -RL "$found/." "$unfinished/models/$name"
  done
  for found in "${weights[@]}"; do
    mkdir -p "$unfinished/models/${found%%=*}"
    cp -RL "${found#*=}/." "$unfinished/models/${found%%=*}"
  done
}

split_up() {
  local parts=$unfinished.parts
  rm -rf "$parts"
  mkdir "$parts"
  tar -C "$unfinished" -cf - . | split -b "$part_size" -d -a 4 - "$parts/bundle.tar."
  rm -rf "$unfinished"
  unfinished=$parts
  (cd "$parts" && sha256sum bundle.tar.* >SHA256SUMS)
}

join_parts() {
  verify_sums "$join" || failed "the parts in $join are not what they were: copy the ones named above again"
  (cd "$join" && cut -c 67- SHA256SUMS | LC_ALL=C sort | tr '\n' '\0' | xargs -0 cat) | tar -C "$unfinished" -xf -
  verify_sums "$unfinished" || failed "the files named above are damaged although their parts are not: make the bundle again"
}

if [[ -n $join ]]; then
  join_parts
else
  : "${constraints:=$project/constraints.txt}"
  : "${python_version:=$("$bootstrap" -c 'import sys; print("%d.%d" % sys.version_info[:2])')}"
  ((${#platforms[@]})) || platforms=(manylinux_2_28_x86_64 manylinux_2_27_x86_64 manylinux_2_24_x86_64 manylinux2014_x86_64 manylinux_2_17_x86_64)
  [[ $no_model == yes || ${#models[@]} -gt 0 || ${#weights[@]} -gt 0 ]] || models=(smollm2-135m)
  ((${#models[@]} == 0)) || set_up
  mkdir -p "$unfinished/wheels"
  gather_wheels
  gather_weights
  printf '%s\n' "$python_version" >"$unfinished/python-version"
  printf '%s\n' "${without[@]}" >"$unfinished/without"
  (cd "$unfinished" && find . -type f ! -name SHA256SUMS -print0 | LC_ALL=C sort -z | xargs -0 sha256sum >"$unfinished.sums")
  mv "$unfinished.sums" "$unfinished/SHA256SUMS"
  [[ -z $part_size ]] || split_up
fi
mv "$unfinished" "$output"
echo "$output: $(du -sh "$output" | cut -f 1), $(find "$output" -type f | wc -l) files"
