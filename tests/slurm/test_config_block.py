"""A configuration that may have passwords is shown to nobody else while it is replaced."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

from cluster_agent.errors import ClusterError
from cluster_agent.slurm.config_block import FileChange


def test_a_copy_is_for_its_writer_alone_until_it_has_its_owner_and_goes_if_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "oar.conf", list[int]()
    path.write_text('DB_BASE_PASSWD="secret"\n')
    path.chmod(0o640)
    left = tmp_path / ".oar.conf.nodectl"
    left.symlink_to(tmp_path / "elsewhere")

    def refuse(*_: object) -> NoReturn:
        seen.extend(one.stat().st_mode & 0o777 for one in tmp_path.iterdir() if one != path)
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patched:
        for name in ("chown", "fchown"):
            patched.setattr(os, name, refuse)
        with pytest.raises(ClusterError, match="cannot write it: Operation not permitted"):
            FileChange(path, path.read_text(), "new\n").carry_out()
    assert seen == [0o600]
    assert list(tmp_path.iterdir()) == [path] and path.read_text() == 'DB_BASE_PASSWD="secret"\n'
    FileChange(path, path.read_text(), "new\n").carry_out()
    assert path.read_text() == "new\n" and path.stat().st_mode & 0o777 == 0o640
