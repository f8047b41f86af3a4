#!/bin/sh
# The Debian packages nodectl, clusterctl, clusterctl-page and nodectl-twin, into build/deb. debian/README.md says what is in which.
#
#   scripts/deb.sh [DIRECTORY]       DEB_VERSION=0.1.1 gives them another version (tests of upgrades)
#
# Python packages come from build/wheelhouse, which is filled once from the package index and checked against the hashes
# of requirements.lock each time. Needs .venv (scripts/setup.sh core), dpkg-deb and strip.
set -eu
cd "$(dirname "$0")/.."
out=${1:-build/deb}
venv=.venv/bin/python
wheelhouse=build/wheelhouse
node_extras="nvidia cluster mqtt serial cli"
twin_extras="twin plots export"
version=${DEB_VERSION:-$($venv -c 'import foundation; print(foundation.__version__)')}
arch=$(dpkg --print-architecture)
work=build/deb-work
root=$work/all # everything, as it will lie on the machine
env=opt/nodectl
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
[ "$(/usr/bin/python3 -c 'import sys; print(*sys.version_info[:2])')" = "$($venv -c 'import sys; print(*sys.version_info[:2])')" ] || {
    echo "deb: /usr/bin/python3 and $venv are not the same version of Python" >&2
    exit 1
}
rm -rf "$work"
mkdir -p "$work" "$out"
rm -f "$out"/nodectl_*.deb "$out"/clusterctl_*.deb "$out"/clusterctl-page_*.deb "$out"/nodectl-twin_*.deb "$out"/.*.deb.part # of another version

# --- the Python packages of the lock, as files
# shellcheck disable=SC2086 # lists of words
$venv debian/locked.py $node_extras >"$work/node.lock"
# shellcheck disable=SC2086
$venv debian/locked.py $node_extras $twin_extras >"$work/all.lock"
if [ ! -f "$wheelhouse/lock" ] || ! cmp -s "$work/all.lock" "$wheelhouse/lock"; then
    mkdir -p "$wheelhouse"
    $venv -m pip download -q --no-deps --require-hashes --only-binary :all: -r "$work/all.lock" -d "$wheelhouse"
    cp "$work/all.lock" "$wheelhouse/lock"
fi

# --- ours, as a wheel: built from a copy, so that nothing of an earlier build gets in
mkdir "$work/source"
git ls-files -z -- foundation nodectl pmu firmware_bridge cluster_agent calibration twin lab systemd setup.py pyproject.toml README.md \
    LICENSE NOTICE docs debian | xargs -0 cp --parents -t "$work/source"
# LDSHARED: that of the interpreter may name libraries of the machine it was built on
LDSHARED="cc -shared" $venv -m pip wheel -q --no-index --no-deps --no-build-isolation -w "$work/wheel" "$work/source"

# --- the environment
/usr/bin/python3 -m venv --without-pip "$root/$env"
rm -f "$root/$env"/bin/activate* "$root/$env"/bin/Activate*
site=$(echo "$root/$env"/lib/python3.*/site-packages)
install_() { $venv -m pip --python "$root/$env/bin/python" install -q --no-index --no-deps --no-compile "$@"; }
compile_() { # with the paths of the installed files; never checked against the source, so nothing is ever written there
    $venv -m compileall -q --invalidation-mode unchecked-hash -s "$root" -p / "$site"
}
files() { (cd "$root" && find . -mindepth 1 \( -type f -o -type l \) | LC_ALL=C sort); }
install_ --find-links "$wheelhouse" --require-hashes -r "$work/node.lock"
install_ "$work"/wheel/*.whl
rm -rf "$root/$env/share/man" "$root/$env/share/clusterctl" # they go to /usr/share
compile_
files >"$work/node.files"
install_ --find-links "$wheelhouse" --require-hashes -r "$work/all.lock"
compile_
files >"$work/all.files"
sed -i "1s|^#!.*|#!/$env/bin/python|" $(grep -lI '^#!.*python' "$root/$env"/bin/* | grep -v '/python')
printf 'home = /usr/bin\ninclude-system-site-packages = false\nversion = %s\n' "$(/usr/bin/python3 -c 'import platform; print(platform.python_version())')" \
    >"$root/$env/pyvenv.cfg"
# ours alone: the libraries in wheels have been moved about by patchelf, and strip would break them
find "$site/nodectl" "$site/pmu" "$site/firmware_bridge" "$site/cluster_agent" "$site/twin" -name '*.so' -exec strip --strip-unneeded {} +
strip "$site/nodectl/nodectl-restorer" "$site/cluster_agent/hook/nodectl-hook" "$site/calibration/kernels/nodectl-kernels" "$site/firmware_bridge/controlpulp/boards/posix/controlpulp-posix"
find "$site" -type f -name '*.so*' -exec chmod 644 {} + # libraries are no programs

# --- which file belongs to which package
ours="$env/lib/python3.[0-9]*/site-packages"
LC_ALL=C comm -13 "$work/node.files" "$work/all.files" >"$work/nodectl-twin.files"
grep -E "^./$ours/(twin|lab)/" "$work/node.files" >>"$work/nodectl-twin.files"
grep -E "^./$ours/cluster_agent/page/" "$work/node.files" >"$work/clusterctl-page.files"
grep -E "^./$ours/cluster_agent/|^./$env/bin/clusterctl$" "$work/node.files" | LC_ALL=C comm -23 - "$work/clusterctl-page.files" >"$work/clusterctl.files"
LC_ALL=C sort "$work/nodectl-twin.files" "$work/clusterctl.files" "$work/clusterctl-page.files" >"$work/others.files"
LC_ALL=C comm -23 "$work/node.files" "$work/others.files" >"$work/nodectl.files"

# --- the packages
place() { install -D -m "$1" "$2" "$tree/$3"; }
place_manual() { # NAME SECTION
    gzip -9nc "docs/man/$1.$2" >"$work/manual.gz"
    place 644 "$work/manual.gz" "usr/share/man/man$2/$1.$2.gz"
}
place_completion() { # PROGRAM: what click writes for bash
    env "_$(echo "$1" | tr a-z A-Z)_COMPLETE=bash_source" ".venv/bin/$1" >"$work/completion"
    place 644 "$work/completion" "usr/share/bash-completion/completions/$1"
}
for package in nodectl clusterctl clusterctl-page nodectl-twin; do
    tree=$work/$package
    mkdir -p "$tree/DEBIAN"
    (cd "$root" && xargs -d '\n' cp -a --parents -t "../$package") <"$work/$package.files"
    case $package in
    nodectl)
        place 644 debian/nodectl/nodectl.toml etc/nodectl/nodectl.toml
        for unit in systemd/nodectl-*.service systemd/nodectl-*.socket; do place 644 "$unit" "lib/systemd/system/$(basename "$unit")"; done
        for name in jobs controller; do place 644 "systemd/$name.conf" "usr/share/nodectl/$name.conf"; done
        place 644 systemd/nodectl.sysusers usr/lib/sysusers.d/nodectl.conf
        # outside of the environment, so that knobs are put back while that is away
        place 755 "$(echo "$tree"/$ours/nodectl/nodectl-restorer)" usr/lib/nodectl/nodectl-restorer
        mkdir -p "$tree/usr/bin"
        ln -s "/$env/bin/nodectl" "$tree/usr/bin/nodectl"
        place_manual nodectl 1
        place_manual nodectl.toml 5
        place_completion nodectl
        place 644 CHANGELOG.md usr/share/doc/nodectl/CHANGELOG.md
        for page in configuration operations restore security; do place 644 "docs/$page.md" "usr/share/doc/nodectl/$page.md"; done
        ;;
    clusterctl)
        place 644 debian/clusterctl/cluster.toml etc/nodectl/cluster.toml
        for unit in systemd/clusterctl*.service systemd/clusterctl*.timer; do
            [ "$unit" = systemd/clusterctl-page.service ] || place 644 "$unit" "lib/systemd/system/$(basename "$unit")"
        done
        place 644 systemd/clusterctl.sysusers usr/lib/sysusers.d/clusterctl.conf
        mkdir -p "$tree/usr/bin"
        ln -s "/$env/bin/clusterctl" "$tree/usr/bin/clusterctl"
        place 755 "$(echo "$tree"/$ours/cluster_agent/hook/nodectl-hook)" usr/lib/nodectl/nodectl-hook
        place_manual clusterctl 1
        place_manual nodectl-hook 8
        place_manual cluster.toml 5
        place_completion clusterctl
        for file in docs/monitoring/*/*; do place 644 "$file" "usr/share/clusterctl/${file#docs/monitoring/}"; done
        for page in cluster dashboards ledger models slurm; do place 644 "docs/$page.md" "usr/share/doc/clusterctl/$page.md"; done
        ;;
    clusterctl-page)
        place 644 systemd/clusterctl-page.service lib/systemd/system/clusterctl-page.service
        place 644 systemd/clusterctl-page.sysusers usr/lib/sysusers.d/clusterctl-page.conf
        place 644 docs/page.md usr/share/doc/clusterctl-page/page.md
        ;;
    esac
    place 644 debian/copyright "usr/share/doc/$package/copyright"
    printf '%s (%s) unstable; urgency=medium\n\n  * See /usr/share/doc/nodectl/CHANGELOG.md.\n\n -- %s  %s\n' "$package" "$version" \
        "$(sed -n 's/^Maintainer: //p' "debian/$package/control")" "$(git log -1 --format=%cD)" | gzip -9nc >"$work/changelog.gz"
    place 644 "$work/changelog.gz" "usr/share/doc/$package/changelog.gz"
    [ ! -f "debian/$package/lintian-overrides" ] ||
        place 644 "debian/$package/lintian-overrides" "usr/share/lintian/overrides/$package"
    for script in postinst prerm postrm; do
        [ ! -f "debian/$package/$script" ] || place 755 "debian/$package/$script" "DEBIAN/$script"
    done
    [ ! -f "debian/$package/conffiles" ] || place 644 "debian/$package/conffiles" DEBIAN/conffiles
    find "$tree" -type d -exec chmod 755 {} +
    find "$tree" -type f -perm /022 -exec chmod go-w {} +
    (cd "$tree" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | LC_ALL=C sort -z | xargs -0 md5sum) >"$work/md5sums"
    place 644 "$work/md5sums" DEBIAN/md5sums
    size=$(du -ks --exclude=DEBIAN "$tree" | cut -f1)
    sed "s/@VERSION@/$version/g; s/@ARCH@/$arch/; s/@SIZE@/$size/" "debian/$package/control" >"$tree/DEBIAN/control"
done
scripts/deb_pack.sh "$work" "$out" "$version" "$arch"
