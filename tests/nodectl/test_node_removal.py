"""The Debian package's scripts and `install-service` on a node whose units are the package's."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.nodectl.booted_node import CLUSTERCTL, FOUND_UW, NODE, NODECTL, REST_W, UNITS, Site, boot, comes
from tests.sealed_systemd import ROOT, install, sealed_systemd

pytestmark = pytest.mark.timeout(3600)  # wheels are built, once, which is long on a busy machine

SCRIPTS = ROOT / "debian" / "nodectl"


def package(stage: Path, lib: Path) -> None:
    """What the package has in /usr/lib next to the environment, and its scripts in /srv."""
    (lib / "systemd/system").mkdir(parents=True, exist_ok=True)
    (lib / "sysusers.d").mkdir(exist_ok=True)
    for unit in (*UNITS.glob("nodectl-*.service"), *UNITS.glob("nodectl-*.socket")):
        shutil.copy(unit, lib / "systemd/system" / unit.name)
    shutil.copy(UNITS / "nodectl.sysusers", lib / "sysusers.d/nodectl.conf")
    for script in ("prerm", "postrm", "postinst"):
        shutil.copy(SCRIPTS / script, stage / script)


def script(site: Site, name: str, *arguments: str) -> tuple[int, str]:
    # a container's policy may forbid that packages start or stop anything
    allowed = '[ ! -e /usr/sbin/policy-rc.d ] || mount --bind /bin/true /usr/sbin/policy-rc.d; exec sh "$@"'
    done = site.run("sh", "-ec", allowed, "sh", f"/srv/{name}", *arguments)
    return done.returncode, done.stdout + done.stderr


def test_a_node_that_its_cluster_holds_is_not_removed_and_a_purge_keeps_what_knobs_were(tmp_path: Path) -> None:
    settings = NODE.replace("jobs = true\n", "").partition("[metrics]")[0]
    site = boot(tmp_path, settings, jobs=False)
    package(tmp_path, tmp_path / "usr-lib")

    def is_there() -> bool:
        # under its own name: this node's /sys is not the kernel's
        return site.run("sh", "-c", "[ -s /run/nodectl/captured*.jsonl ]").returncode == 0

    with site:
        comes(site, lambda: site.is_capped_to(500.0), "the first grant")
        assert site.run(CLUSTERCTL, "budget", "set", "200").returncode == 0
        comes(site, lambda: site.is_capped_to(200.0), "a cap within the budget")
        status, said = script(site, "prerm", "remove")
        assert status == 1 and "held" in said and "not removed" in said and "--leave-cluster" in said, said
        assert site.limit_w <= 200.0 - REST_W and is_there()
        assert script(site, "postinst", "abort-remove")[0] == 0
        comes(site, lambda: site.is_capped_to(200.0), "the agent that ran before")

        # removed by force, or by the scripts of an earlier version: the record is all that is left
        assert site.run("systemctl", "stop", "nodectl-agent").returncode == 0
        assert is_there()
        status, said = script(site, "postrm", "purge")
        assert status == 0 and "/run/nodectl keeps what they were" in said, said
        assert is_there()
        assert site.run("test", "-e", "/var/lib/nodectl").returncode == 1
        left = site.run("/usr/lib/nodectl/nodectl-restorer", "restore", "--leave-cluster")
        assert left.returncode == 0 and site.limit_w == FOUND_UW / 1e6, left.stdout + left.stderr
        assert script(site, "prerm", "remove")[0] == 0, "nothing is moved any more"
        status, said = script(site, "postrm", "purge")
        assert status == 0 and "keeps" not in said
        assert site.run("test", "-e", "/run/nodectl").returncode == 1


def test_install_service_on_a_packaged_node_writes_drop_ins_alone_and_uncovers_the_units_of_the_package(
    tmp_path: Path,
) -> None:
    site = sealed_systemd(tmp_path, Site)
    install(tmp_path)
    (tmp_path / "etc/systemd/system/nodectl-test.target").write_text("[Unit]\nDefaultDependencies=no\n")

    def written() -> set[str]:
        listed = site.run("sh", "-c", "cd /etc/systemd/system && find . -type f -o -type l").stdout.split()
        return {name.removeprefix("./") for name in listed if re.search("nodectl-(?!test)", name)}

    with site:
        comes(site, lambda: site.run("systemctl", "list-units").returncode == 0, "systemd")
        before = written()
        done = site.run(NODECTL, "install-service", "--jobs")
        assert done.returncode == 0 and len(written() - before) > 6, done.stderr
        assert site.run("systemctl", "enable", "nodectl-agent").returncode == 0
        package(tmp_path, tmp_path / "lib")
        assert site.run("cp", "-a", "/srv/lib/.", "/usr/lib/").returncode == 0
        share = tmp_path / "share"
        share.mkdir()
        shutil.copy(UNITS / "jobs.conf", share / "jobs.conf")

        done = site.run(NODECTL, "install-service", "--jobs")
        assert done.returncode == 0, done.stderr
        link = "multi-user.target.wants/nodectl-agent.service"
        assert written() - before == {"nodectl-agent.service.d/jobs.conf", link}
        shown = site.run("systemctl", "cat", "nodectl-agent").stdout
        assert "/lib/systemd/system/nodectl-agent.service" in shown and "KillMode=process" in shown
        assert site.run("systemctl", "is-enabled", "nodectl-agent").stdout == "enabled\n"
        assert "nothing to write" in site.run(NODECTL, "install-service").stdout
        assert site.run(NODECTL, "install-service", "--remove").returncode == 0
        assert written() - before == {link}
        assert site.run("test", "-x", "/usr/lib/nodectl/nodectl-restorer").returncode == 0, "it is the package's"

        # an upgrade or a purge of the package takes away what an earlier version wrote over its units
        drop_in = "/etc/systemd/system/nodectl-agent.service.d"
        cover = (
            "cd /lib/systemd/system && for unit in nodectl-*; do"
            " { echo '# Written by `nodectl install-service`. Change it by `systemctl edit`, not here.'; cat $unit; }"
            f" > /etc/systemd/system/$unit; done; mkdir -p {drop_in};"
            " { head -n 1 /etc/systemd/system/nodectl-agent.service; echo '# old'; }"
            f" > {drop_in}/jobs.conf; mount -t tmpfs tmpfs /usr/share; mkdir /usr/share/nodectl;"
            " cp /srv/share/jobs.conf /usr/share/nodectl/"
        )
        assert site.run("sh", "-ec", cover).returncode == 0
        status, said = script(site, "postinst", "configure")
        assert status == 0, said
        assert written() - before == {"nodectl-agent.service.d/jobs.conf", link}
        text = site.run("cat", f"{drop_in}/jobs.conf").stdout
        assert text.startswith("# Written by") and "KillMode=process" in text, "the drop-in is that of this version"
        assert site.run("sh", "-ec", cover).returncode == 0
        assert site.run("rm", "-rf", "/opt/nodectl").returncode == 0, "a purge removes first"
        status, said = script(site, "postrm", "purge")
        assert status == 0, said
        assert written() - before - {link} == set()
