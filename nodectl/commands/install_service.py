"""``nodectl install-service``: the units of an installation by pip, with the paths of that installation.

The Debian packages bring the same units. A unit in /etc covers the package's for ever, upgrade and purge included, so
where a package has them this command writes drop-ins alone, and takes away what an earlier version has written over
them. It writes only files that it can recognise as its own, so it may be called again after each upgrade, and
``--remove`` takes back just these.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import click

import nodectl
from foundation.directories import make_shared_directory
from foundation.shell.errors import NodectlError, UsageError
from foundation.shell.plain_text import echo
from nodectl.config import Config
from nodectl.write.restore import left_behind
from nodectl.write.saves import node_id
from pmu.system import node_lock_path

MARK: Final = "# Written by `nodectl install-service`. Change it by `systemctl edit`, not here.\n"
PROGRAMS: Final = "/opt/nodectl/bin/"
"""Where the units as shipped find the programs."""

HIDDEN: Final = ("/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/")
"""What the units do not see (ProtectHome=, PrivateTmp=)."""

RESTORER: Final = Path("/usr/lib/nodectl/nodectl-restorer")
"""Outside of the virtual environment, so that knobs are put back while that is away."""

UNIT_KINDS: Final = (".service", ".socket", ".timer")
RESTORES: Final = "nodectl-restore.service"
KEYS: Final = Path("/etc/nodectl/keys")

UNITS: Final = Path("/etc/systemd/system")
SYSUSERS: Final = Path("/etc/sysusers.d")
PACKAGED: Final = (Path("/usr/lib/systemd/system"), Path("/lib/systemd/system"))
"""Where packages have their units."""


@click.command("install-service")
@click.option("--head", is_flag=True, help="The head node's units (cluster agent, its metrics) and their user.")
@click.option("--jobs", is_flag=True, help="Also the drop-in of nodes that run the cluster's jobs.")
@click.option("--controller", is_flag=True, help="Also the drop-in of nodes with an SCMI controller ([scmi]).")
@click.option("--remove", is_flag=True, help="Stop and disable the units, and remove what was written.")
@click.option(
    "--root", type=click.Path(path_type=Path), default="/", help="Write below this directory, of an image for example."
)
def install_service(head: bool, jobs: bool, controller: bool, remove: bool, root: Path) -> None:
    """Install the systemd units of this installation and their users; nothing is enabled or started.

    Settings, keys and saved values are never written or removed. Without --head the units are those of a node. Where a
    Debian package has the units, only the drop-ins of --jobs and --controller are written.
    """
    for option, is_given in (("--jobs", jobs), ("--controller", controller)):
        if head and is_given:
            raise UsageError(f"{option} is for nodes, not for the head node")
    is_live = root == Path("/")
    if is_live and os.geteuid() != 0:
        raise UsageError("needs root: it writes /etc/systemd/system")
    if remove:
        _remove(head, root, is_live)
        return
    _check_programs("clusterctl" if head else "nodectl")
    files = list(_files(head, jobs, controller))
    has_changed = (
        _add_to_package(head, files, root, is_live) if _is_packaged(head, root) else _install(head, files, root)
    )
    if is_live:
        _take(head, is_packaged=_is_packaged(head, root))
    program, units = ("clusterctl", "clusterctl") if head else ("nodectl", "nodectl-restore nodectl-agent")
    unit = units.split()[-1]
    if is_live and has_changed and _is_active(unit):
        echo(f"{unit} runs as before: `systemctl restart {unit}` takes what was written")
    else:
        echo(f"next: `{program} config check`, then `systemctl enable --now {units}`")


def _install(head: bool, files: Iterable[tuple[Path, str]], root: Path) -> bool:
    """Write everything; returns whether any file has changed."""
    written = [_write(root / place.relative_to("/"), text) for place, text in files]
    if not head:
        _install_restorer(root / RESTORER.relative_to("/"))
    return any(written)


def _add_to_package(head: bool, files: Iterable[tuple[Path, str]], root: Path, is_live: bool) -> bool:
    """Write what a Debian package leaves to the site, the drop-ins; returns whether anything has changed."""
    drop_ins = [one for one in files if one[0].suffix == ".conf" and one[0].is_relative_to(UNITS)]
    written = [
        *_uncover(head, root, is_live),
        *(_write(root / place.relative_to("/"), text) for place, text in drop_ins),
    ]
    if not written:
        echo("nothing to write: the units are those of the Debian package")
    return any(written)


def _take(head: bool, is_packaged: bool) -> None:
    """Make this machine know what was written and the unit's user; on the head node also the place for its keys. A
    package has made user and place."""
    if not is_packaged:
        _run("systemd-sysusers", *(str(place) for place, _ in _files(head, False, False) if place.parent == SYSUSERS))
        if head:
            _run("install", "-d", "-m", "700", "-o", "clusterctl", "-g", "clusterctl", str(KEYS))
    _run("systemctl", "daemon-reload")


def _is_packaged(head: bool, root: Path) -> bool:
    """Whether a package has the units; ``UsageError`` where this installation is not that package's."""
    found, programs = _has_package(head, root), f"{sysconfig.get_path('scripts')}/"
    if found and programs != PROGRAMS:
        raise UsageError(
            f"{found}: a Debian package has these units, for the programs in {PROGRAMS}: use that installation"
            f" ({PROGRAMS}nodectl install-service), or purge the package first; this one is {programs}"
        )
    return bool(found)


def _has_package(head: bool, root: Path) -> str:
    """The unit of a Debian package; "" if there is none."""
    unit = "clusterctl.service" if head else "nodectl-agent.service"
    there = (place / unit for place in PACKAGED)
    return next((str(path) for path in there if (root / path.relative_to("/")).exists()), "")


def _uncover(head: bool, root: Path, is_live: bool) -> list[bool]:
    """Remove the files of this command that cover those of the package; True for each."""
    covers = [place for place, _ in _files(head, False, False) if _ours(root / place.relative_to("/")) is not None]
    for place in covers:
        _unlink(root / place.relative_to("/"))
    if is_live:
        for place in covers:
            if (UNITS / "multi-user.target.wants" / place.name).is_symlink():
                _run("systemctl", "reenable", place.name)  # its link leads to the file that has gone
    return [True] * len(covers)


def _files(head: bool, jobs: bool, controller: bool) -> Iterator[tuple[Path, str]]:
    """Where each file goes, and its text."""
    source = _shipped()
    prefix = "clusterctl" if head else "nodectl-"
    shipped = [unit for kind in UNIT_KINDS for unit in source.glob(f"{prefix}*{kind}")]
    places = {unit: UNITS / unit.name for unit in sorted(shipped)}
    users = sorted(source.glob(f"{'clusterctl' if head else 'nodectl'}*.sysusers"))
    places |= {file: SYSUSERS / f"{file.stem}.conf" for file in users}
    for name in (["jobs.conf"] if jobs else []) + (["controller.conf"] if controller else []):
        places[source / name] = UNITS / "nodectl-agent.service.d" / name
    for file, place in places.items():
        yield place, MARK + file.read_text().replace(PROGRAMS, f"{sysconfig.get_path('scripts')}/")


def _shipped() -> Path:
    """The units: in the package, or in the checkout that it was installed from (pip install -e)."""
    package = Path(nodectl.__file__).parent
    return next(place for place in (package / "systemd", package.parent / "systemd") if place.is_dir())


def _check_programs(name: str) -> None:
    """``UsageError`` where systemd could not start the program, or another user could change what root starts."""
    program = Path(sysconfig.get_path("scripts")) / name
    if not program.exists():
        raise UsageError(f"{program} is not there: install nodectl into a virtual environment, e.g. /opt/nodectl")
    if str(program).startswith(HIDDEN):
        raise UsageError(f"{program}: services see neither homes nor /tmp: install into /opt/nodectl")
    for place in (program, *program.parents):
        found = place.stat()
        is_shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
        if found.st_uid != 0 or is_shared:
            raise UsageError(f"{place}: another user than root may change it, and root would run it: install as root")


def _write(path: Path, text: str) -> bool:
    """Write the file if it differs; returns whether it did. Refuses to overwrite what is not ours."""
    before = _ours(path)
    if before == text:
        echo(f"unchanged {path}")
        return False
    try:
        make_shared_directory(path.parent)
        replacement = path.with_name(f".{path.name}.new")
        replacement.write_text(text)
        replacement.chmod(0o644)
        replacement.replace(path)
    except OSError as error:
        raise NodectlError(f"{path}: cannot write: {error.strerror}") from None
    echo(f"wrote {path}")
    return True


def _ours(path: Path) -> str | None:
    """The text of a file that this command wrote; None if there is none; ``UsageError`` if it is somebody else's."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise NodectlError(f"{path}: cannot read: {error}") from None
    if not text.startswith(MARK):
        raise UsageError(f"{path}: was not written by this command: move it away, or keep it and do without")
    return text


def _install_restorer(path: Path) -> None:
    """Copy the program that the units call after the agent's end."""
    try:
        make_shared_directory(path.parent)
        replacement = path.with_name(f".{path.name}.new")
        shutil.copyfile(Path(nodectl.__file__).parent / RESTORER.name, replacement)
        replacement.chmod(0o755)
        replacement.replace(path)
    except OSError as error:
        raise NodectlError(f"{path}: cannot write: {error.strerror}") from None


def _remove_restorer(path: Path) -> None:
    with contextlib.suppress(OSError):  # not there, or its directory has other files
        path.unlink()
        path.parent.rmdir()


def _remove(head: bool, root: Path, is_live: bool) -> None:
    """Remove what this command wrote."""
    places = {place: root / place.relative_to("/") for place, _ in _files(head, not head, not head)}
    found = {place: path for place, path in places.items() if _ours(path) is not None}
    units = [place.name for place in found if place.suffix in UNIT_KINDS]
    if is_live and units:
        _stop(units)
    for path in found.values():
        _unlink(path)
    if is_live and found:
        _run("systemctl", "daemon-reload")
    if units and not head and not _has_package(head, root):
        _remove_restorer(root / RESTORER.relative_to("/"))
    echo("settings, keys, state and users are kept" if found else "nothing was installed")


def _stop(units: list[str]) -> None:
    """Stop and disable the units. ``NodectlError`` while knobs are moved: what puts them back stays until it has."""
    if others := [unit for unit in units if unit != RESTORES]:
        _run("systemctl", "stop", *others)
    lock = node_lock_path()
    if left := left_behind(Config().state_dir, node_id(lock), lock):
        raise NodectlError(f"{left}; the units are stopped, and stay until then (docs/restore.md)")
    _run("systemctl", "disable", "--now", *units)


def _unlink(path: Path) -> None:
    """Remove a file, and the folder of drop-ins that it leaves empty."""
    path.unlink()
    echo(f"removed {path}")
    if path.parent.name.endswith(".service.d") and not any(path.parent.iterdir()):
        path.parent.rmdir()


def _is_active(unit: str) -> bool:
    return subprocess.run(["systemctl", "is-active", "--quiet", unit]).returncode == 0


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise NodectlError(f"{command[0]} is missing: these are units of systemd") from None
    if done.returncode != 0:
        raise NodectlError(f"{' '.join(command)}: {done.stderr.strip() or f'exit status {done.returncode}'}")
