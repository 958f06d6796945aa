#!/usr/bin/env bash
# Build the documentation as a site: scripts/docs-site.sh. `python3 -m http.server --directory build/docs-site/site` shows it.
# A warning is an error, and so is a link that leads nowhere. MkDocs has an environment of its own, .venv-docs, pinned in
# docs/requirements.txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

environment=.venv-docs
if ! cmp -s docs/requirements.txt "$environment/requirements.txt"; then
  rm -rf "$environment"
  "${PYTHON:-python3}" -m venv "$environment"
  "$environment/bin/pip" install --quiet --disable-pip-version-check --requirement docs/requirements.txt
  cp docs/requirements.txt "$environment/requirements.txt"
fi

# what pages link to beside pages lies at the same place in the site
pages=build/docs-site/pages
rm -rf "$pages"
mkdir -p "$pages"
git ls-files -z --cached --others --exclude-standard -- '*.md' docs kit reports configs suite/tunecheck/core/premises.py |
  xargs -0 -I{} sh -c '[ ! -f "$1" ] || printf "%s\0" "$1"' _ {} |
  xargs -0 cp --parents --target-directory "$pages"

export NO_MKDOCS_2_WARNING=1
exec "$environment/bin/mkdocs" build --strict # --quiet would not count its warnings
