# Set-up shared by the scripts: the active virtual environment or .venv, made and filled when it lacks something.
# Sourced, not run. Sets PYTHON.

project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$project"

set_up() {
  local venv=${VIRTUAL_ENV:-$project/.venv} stamp want
  if [[ ! -x $venv/bin/python ]]; then
    echo "setting up $venv"
    "${BOOTSTRAP_PYTHON:-python3}" -m venv "$venv"
  fi
  PYTHON=$venv/bin/python
  stamp=$venv/.tunecheck-installed
  want=$(cat pyproject.toml constraints.txt | sha256sum)
  if [[ ! -f $stamp || $(<"$stamp") != "$want" ]]; then
    echo "installing tunecheck and what it needs (once; a few minutes where torch has to be downloaded)"
    # torch by its exact version first: where a wheel lies at hand, this spelling takes it
    "$PYTHON" -m pip install --quiet --disable-pip-version-check "$(grep '^torch==' constraints.txt)"
    "$PYTHON" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
    printf '%s\n' "$want" >"$stamp"
  fi
}
