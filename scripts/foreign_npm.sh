#!/bin/sh
# axe-core of npm, which the tests of pages run in Chromium: it finds what makes a page hard to use without a mouse or
# without good eyes. One file, build/foreign-npm/axe.min.js, of one version, by its hash; nothing of it is installed.
set -eu
cd "$(dirname "$0")/.."
target=build/foreign-npm
version=4.10.3
sha512=5e6edba515e70d25f6604d9815f064d859c5d1ea7ab661bbc4f87c88779ef0c21cae0abbeb636471ef39e9d62d2582e4b88a1866f19f4ecfcf6d986275e4dc12
[ -f "$target/axe.min.js" ] && [ "$(cat "$target/complete" 2>/dev/null)" = "$version $sha512" ] && exit 0
command -v npm >/dev/null || { echo "foreign_npm: npm is not here" >&2; exit 1; }
rm -rf "$target"
mkdir -p "$target"
# Without an answer npm would wait for minutes.
(cd "$target" && timeout 60 npm pack --silent --fetch-retries=1 "axe-core@$version" >/dev/null 2>&1) || {
    echo "foreign_npm: axe-core $version could not be downloaded" >&2
    rm -rf "$target"
    exit 1
}
archive="$target/axe-core-$version.tgz"
printf '%s  %s\n' "$sha512" "$archive" | sha512sum -c --quiet || {
    echo "foreign_npm: axe-core $version has not the hash that is expected" >&2
    rm -rf "$target"
    exit 1
}
tar -xzf "$archive" -C "$target" --strip-components=1 package/axe.min.js package/LICENSE
rm "$archive"
printf '%s' "$version $sha512" >"$target/complete"
