"""The file of settings of ``clusterctl elastic``: which engines there are, and how long their work may take to end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from foundation.shell.settings import ConfigError, checked, line_of, read_toml

PATH: Final = Path("/etc/nodectl/elastic.toml")


class DaskSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``scheduler`` "": there is none. ``start`` and ``stop``: commands in which {node} is the node's name."""

    scheduler: str = ""
    start: list[str] = []
    stop: list[str] = []


class KubernetesSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``kubeconfig`` "": there is none. ``names``: of nodes that are called otherwise there."""

    kubeconfig: str = ""
    context: str = ""
    names: dict[str, str] = {}


class ElasticSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``grace_s``: from the request to end until work is ended; ``limit_s``: until a job starts, whatever is left.
    ``state``: a directory for what was drained. Both times are the published ones (REGALE D2.3 §2.3)."""

    grace_s: Annotated[float, Meta(ge=0, le=3600)] = 5.0
    limit_s: Annotated[float, Meta(gt=0, le=3600)] = 15.0
    state: str = "/var/lib/clusterctl/elastic"
    dask: DaskSettings = DaskSettings()
    kubernetes: KubernetesSettings = KubernetesSettings()


def read_settings(path: Path) -> ElasticSettings:
    """``ConfigError`` in one line where the file cannot be read, is wrong, or names no engine."""
    text, given = read_toml(path)
    found = checked(given, ElasticSettings, lambda key: f"{path}:{line_of(text, key)}")
    if found.grace_s > found.limit_s:
        raise ConfigError(f"{path}: grace_s {found.grace_s:g} is longer than limit_s {found.limit_s:g}")
    if not (found.dask.scheduler or found.kubernetes.kubeconfig):
        raise ConfigError(f"{path}: no engine is named: set scheduler in [dask], or kubeconfig in [kubernetes]")
    return found
