# Set-up shared by the scripts: the active virtual environment or .venv, made and filled when it lacks something.
# Sourced, not run. Sets PYTHON and project.
# shellcheck shell=bash

project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$project" || exit
unset PYTHONDONTWRITEBYTECODE # each process of a session would compile the suite anew, and each worker the tests

set_up() {
  local venv=${VIRTUAL_ENV:-$project/.venv} stamp want
  use_environment "$venv"
  stamp=$venv/.tunecheck-installed
  want=$(cat pyproject.toml constraints.txt | sha256sum)
  if [[ ! -f $stamp || $(<"$stamp") != "$want" ]]; then
    echo "installing tunecheck and what it needs (once; a few minutes where torch has to be downloaded)"
    install_torch --no-compile
    pip_install --no-compile --constraint constraints.txt --editable '.[train,dev]'
    compile_packages
    printf '%s\n' "$want" >"$stamp"
  fi
}

# Set PYTHON to that of this virtual environment, which is made when it is missing.
use_environment() {
  if [[ ! -x $1/bin/python ]]; then
    echo "setting up $1"
    "${BOOTSTRAP_PYTHON:-python3}" -m venv "$1"
  fi
  PYTHON=$1/bin/python
}

pip_install() { "$PYTHON" -m pip install --quiet --disable-pip-version-check "$@"; }

# torch by its exact version and by itself: where a wheel lies at hand, this spelling takes it.
install_torch() { pip_install "$@" "$(grep '^torch==' constraints.txt)"; }

# All packages, in 45 s of processor time that pip would take from one processor alone. Without it every process under
# PYTHONDONTWRITEBYTECODE, which containers like to set, would compile what it imports (21 s instead of 9 s until the
# training libraries are there). Some packages hold files that are no Python yet.
compile_packages() {
  "$PYTHON" -m compileall -qq -j 0 "$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" || true
}

# The same from a bundle of scripts/offline-bundle.sh, without internet. The target's own packages stay in sight where
# the bundle leaves some out; tunecheck itself runs from the checkout.
set_up_from_bundle() {
  local bundle=$1 venv=${VIRTUAL_ENV:-$project/.venv} stamp want name found options=()
  check_bundle "$bundle" || return
  if [[ ! -x $venv/bin/python ]]; then
    echo "setting up $venv from $bundle"
    [[ -z $(<"$bundle/without") ]] || options=(--system-site-packages)
    "${BOOTSTRAP_PYTHON:-python3}" -m venv "${options[@]}" "$venv"
    ((${#options[@]} == 0)) || show_outer_packages "$venv"
  fi
  PYTHON=$venv/bin/python
  found=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  if [[ $found != "$(<"$bundle/python-version")" ]]; then
    echo "$bundle holds wheels for Python $(<"$bundle/python-version"), $PYTHON is $found: set BOOTSTRAP_PYTHON to" \
      "another Python and remove $venv, or make the bundle with --python-version $found" >&2
    return 4
  fi
  while read -r name; do
    [[ -z $name ]] || "$PYTHON" -c 'import importlib.metadata as m, sys; m.version(sys.argv[1])' "$name" 2>/dev/null || {
      echo "$bundle leaves out $name, and $PYTHON has none: install it, or make the bundle without --without $name" >&2
      return 4
    }
  done <"$bundle/without"
  stamp=$venv/.tunecheck-installed
  want=$(sha256sum <"$bundle/SHA256SUMS")
  if [[ ! -f $stamp || $(<"$stamp") != "$want" ]]; then
    "$PYTHON" -m pip install --quiet --disable-pip-version-check --no-index --no-deps "$bundle"/wheels/*.whl || return 4
    printf '%s\n' "$want" >"$stamp"
  fi
  export HF_HUB_OFFLINE=1
  [[ ! -d $bundle/models ]] || export TUNECHECK_MODELS=${TUNECHECK_MODELS:-$bundle/models}
}

# An environment made with --system-site-packages sees those of the base Python. Where python3 itself lives in a virtual
# environment, as in many GPU images, torch is in that one: its folders are added behind the new environment's own.
show_outer_packages() {
  local own
  own=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "${BOOTSTRAP_PYTHON:-python3}" -c 'import site, sys
if sys.prefix != sys.base_prefix:
    for folder in site.getsitepackages():
        print(f"import site; site.addsitedir({folder!r})")' >"$own/outer-packages.pth"
}

check_bundle() {
  if compgen -G "$1/bundle.tar.*" >/dev/null; then
    echo "$1 holds a bundle in parts: put them together by scripts/offline-bundle.sh --join $1 --output FOLDER" >&2
    return 4
  fi
  if [[ ! -f $1/SHA256SUMS || ! -d $1/wheels ]]; then
    echo "$1 is no bundle of scripts/offline-bundle.sh: SHA256SUMS or wheels/ is missing" >&2
    return 4
  fi
  verify_sums "$1" || { echo "$1 is damaged: copy the files named above again" >&2; return 4; }
}

# Whether every file that SHA256SUMS in this folder lists is there and unchanged; names on standard error those that are not.
verify_sums() {
  (cd "$1" && sha256sum --check --quiet SHA256SUMS 2>&1 | grep -v '^sha256sum: WARNING' >&2; exit "${PIPESTATUS[0]}")
}
