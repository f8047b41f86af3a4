"""Images that all tests share are built once, and again when what they are built from changes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from firmware_bridge.controlpulp import rv32
from tests.firmware import images


def test_an_image_is_built_once_and_again_when_a_source_or_a_flag_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(images.FIRMWARE, tmp_path / "firmware")
    built: list[tuple[str, ...]] = []

    def build(output: Path, *flags: str) -> Path:
        built.append(flags)
        output.touch()
        return output

    monkeypatch.setattr(rv32, "build", build)
    monkeypatch.setattr(images, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(images, "ROOT", tmp_path)
    monkeypatch.setattr(images, "FIRMWARE", tmp_path / "firmware")
    image = images.image.__wrapped__  # as in another process
    first, other = image("-DA=1"), image("-DA=2")
    assert (image("-DA=1"), first == other, built) == (first, False, [("-DA=1",), ("-DA=2",)])
    for source in ("src/control.c", "boards/rv32/build.sh"):
        with (tmp_path / "firmware" / source).open("a") as file:
            file.write("\n")
        assert image("-DA=1") not in (first, other)
    assert len(built) == 4
