"""Key pairs of the links between nodes and their cluster agent (CURVE: Curve25519, in Z85 text of 40 characters).

A key file is TOML with ``public`` and ``secret``. Whoever reads the secret *is* that node, so a file that others than
its owner may read is refused rather than used.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path
from typing import Final

import msgspec

from foundation.shell.errors import NodectlError, plain_reason
from foundation.shell.plain_text import read_text
from foundation.shell.settings import decode_toml

_Z85 = re.compile(r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")

A_PAIR: Final = (
    "make one with `clusterctl keys new` on the head node; a node's (or a person's) pair is copied to this file"
)
OF_THE_AGENT: Final = (
    "copy the line `public = ...` of cluster.key on the head node into it: that is the cluster agent's key"
)


class KeyFileError(NodectlError):
    """A key cannot be read or written; the message names the file and what to do."""


class KeyPair(msgspec.Struct, frozen=True):
    """Public and secret key, in Z85."""

    public: str
    secret: str


def is_key(text: str) -> bool:
    """Whether this is the text of a key."""
    return _Z85.fullmatch(text) is not None


def read_pair(path: Path) -> KeyPair:
    """The key pair of a file that only its owner can read."""
    text = _text(path, A_PAIR)
    mode = path.stat().st_mode
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise KeyFileError(f"{path}: others may read this secret key (mode {mode & 0o777:o}): run `chmod 600` on it")
    try:
        pair = decode_toml(text, KeyPair)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise KeyFileError(f"{path}: not a key file: {plain_reason(str(error))}; {A_PAIR}") from None
    if not is_key(pair.public) or not is_key(pair.secret):
        raise KeyFileError(f"{path}: not a key file: a key has 40 characters of Z85; {A_PAIR}")
    return pair


def read_public(key_or_path: str, fix: str = OF_THE_AGENT) -> str:
    """A public key: given as text, or the ``public`` of a file. ``fix``, for the message: how to get one."""
    if is_key(key_or_path):
        return key_or_path
    path = Path(key_or_path)
    try:
        public = decode_toml(_text(path, fix), dict[str, str]).get("public", "")
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise KeyFileError(f"{path}: not a key file: {plain_reason(str(error))}; {fix}") from None
    if not is_key(public):
        raise KeyFileError(f"{path}: has no public key; {fix}")
    return public


def write_pair(path: Path, pair: KeyPair) -> None:
    """Write a new file with mode 0600 from its first byte on; never overwrite one."""
    quoted = f"public = '{pair.public}'\nsecret = '{pair.secret}'\n"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = create_private(path)
    except FileExistsError:
        raise KeyFileError(f"{path}: exists already; a key is never overwritten: remove it first") from None
    except OSError as error:
        raise KeyFileError(f"{path}: cannot write the key: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "w") as file:  # closing it writes again what a full disk refused, and raises again
            file.write(quoted)
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink()
        raise KeyFileError(f"{path}: cannot write the key: {error.strerror}") from None


def create_private(path: Path) -> int:
    """Create a file with mode 0600 and return its descriptor; ``FileExistsError`` if anything is there, a link too.

    It belongs to the owner of its directory. Otherwise root, adding a key to the directory of the cluster agent's user,
    would leave a file that the cluster agent cannot read.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        owner = path.parent.stat()
        if os.geteuid() == 0 != owner.st_uid:
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
    except BaseException:
        os.close(descriptor)
        path.unlink()
        raise
    return descriptor


def _text(path: Path, fix: str) -> str:
    try:
        return read_text(path)
    except OSError as error:
        raise KeyFileError(f"{path}: cannot read the key: {error.strerror}; {fix}") from None
