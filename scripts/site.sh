#!/bin/sh
# The site of the docs, in build/site, by MkDocs in an environment of its own (build/site-venv, docs/generator/site.lock).
set -eu
cd "$(dirname "$0")/.."
venv=build/site-venv
lock=docs/generator/site.lock
if ! cmp -s "$lock" "$venv/complete"; then
    rm -rf "$venv"
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --require-hashes -r "$lock"
    cp "$lock" "$venv/complete"
fi
NO_MKDOCS_2_WARNING=1 "$venv/bin/mkdocs" build -q
echo "build/site/index.html; its search needs it served: python3 -m http.server -d build/site"
