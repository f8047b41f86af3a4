"""What the user of the node agent's service cannot do, and what the settings of such a service must not combine."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from foundation.shell.errors import UsageError
from nodectl.commands import service_account
from nodectl.commands.run import configure, open_writer
from nodectl.commands.service_account import problems
from nodectl.config import Cluster, Config, Jobs, Scmi
from nodectl.writer_process.remote_writer import WriterLostError

NOBODY = "nobody"


def open_folder(folder: Path) -> Path:
    """The folder, open to everybody from the top."""
    for one in (folder, *folder.parents):
        if one.stat().st_mode & 0o001 == 0:
            one.chmod(one.stat().st_mode | 0o001)
    return folder


def test_a_key_that_the_services_user_may_not_read_is_named_with_what_to_do(tmp_path: Path) -> None:
    key = open_folder(tmp_path) / "node.key"
    key.write_text("secret")
    key.chmod(0o600)
    config = Config(cluster=Cluster(url="tcp://head:7410", key=str(key)))
    ((at, problem),) = problems(config, NOBODY)
    assert at == ("cluster", "key") and f"`chown {NOBODY}:`" in problem and str(key) in problem
    assert list(problems(config, "root")) == []
    key.chmod(0o644)
    assert list(problems(config, NOBODY)) == []
    tmp_path.chmod(0o700)
    assert len(list(problems(config, NOBODY))) == 1, "a folder on the way to it is closed"


def test_a_controller_and_jobs_need_their_drop_ins(tmp_path: Path) -> None:
    config = Config(scmi=Scmi(url="scmi+shm:/run/scmi.sock"), cluster=Cluster(url="tcp://head:7410", key="", jobs=True))
    found = dict(problems(config, NOBODY))
    assert found.keys() == {("scmi", "url"), ("cluster", "jobs")}
    assert "--controller" in found["scmi", "url"] and "--jobs" in found["cluster", "jobs"]
    assert dict(problems(config, "root")).keys() == {("jobs", "user")}
    named = msgspec.structs.replace(config, jobs=Jobs(user="nobody"))
    assert list(problems(named, "root")) == []
    assert any(line.startswith("jobs: run as nobody, ") for line in service_account.remarks(named, "root"))
    as_root = msgspec.structs.replace(config, jobs=Jobs(user="root"))
    assert any("docs/security.md" in line for line in service_account.remarks(as_root, "root"))


def test_a_user_that_is_missing_and_settings_that_it_may_not_read_are_named(tmp_path: Path) -> None:
    assert "no such user" in next(problems(Config(), "nobody-of-that-name"))[1]
    settings = open_folder(tmp_path) / "nodectl.toml"
    settings.touch(0o600)
    assert "chmod a+r" in next(problems(Config(), NOBODY, settings))[1]


def test_doctor_says_who_moves_knobs_for_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_account, "find_root_files", lambda: ["/sys/class/powercap/intel-rapl:0/energy_uj"])
    assert service_account.remarks(Config(), "") == []
    writes = "service: nodectl-agent runs as root and starts a writer of its own, which moves knobs for it"
    assert service_account.remarks(Config(), "root") == [writes]
    controlled = Config(scmi=Scmi(url="scmi+shm:/run/controller"))
    assert service_account.remarks(controlled, "root") == ["service: nodectl-agent runs as root and moves knobs itself"]
    assert service_account.remarks(Config(), NOBODY) == [
        "service: nodectl-agent runs as nobody; nodectl-writer moves knobs for it, and opens 1 sensor file"
        " that only root may read"
    ]


@pytest.mark.parametrize(
    "config",
    [
        Config(mode="optimize", scmi=Scmi(url="scmi+shm:/run/scmi.sock")),
        Config(mode="optimize", cluster=Cluster(url="tcp://head:7410", jobs=True)),
    ],
)
def test_an_agent_with_a_controller_or_with_jobs_takes_no_writer_of_a_service(config: Config) -> None:
    with pytest.raises(UsageError, match=r"--writer: .*leave it out; the service: `nodectl install-service"):
        open_writer(config, None, "/run/nodectl/writer.socket")


def test_a_run_that_only_looks_goes_on_without_the_writer_of_its_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = str(tmp_path / "writer.socket")
    assert open_writer(Config(mode="monitor"), None, nowhere) is None
    assert "no writer listens there" in (said := capsys.readouterr().err) and "is not read" in said
    assert open_writer(Config(mode="monitor"), None, None) is None
    with pytest.raises(WriterLostError):
        open_writer(Config(mode="optimize"), None, nowhere)


def test_a_services_state_directory_is_the_default_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "nodectl.toml"
    settings.touch()
    monkeypatch.setenv("STATE_DIRECTORY", f"{tmp_path}/agent:{tmp_path}/other")
    assert configure(settings, {}).state_dir == f"{tmp_path}/agent"
    settings.write_text(f'state_dir = "{tmp_path}/mine"')
    assert configure(settings, {}).state_dir == f"{tmp_path}/mine"
