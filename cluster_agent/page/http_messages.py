"""HTTP/1.1, as far as a page that only reads needs it: requests without a body, answers with one.

All that is not understood with certainty is refused, since a proxy in front may read it otherwise: a second Host or
user header, spaces before a colon, a body, line ends without CR. Sources: RFC 9110, RFC 9112.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

MOST_BYTES: Final = 8192
"""Ours: of a request, with all its headers."""

MOST_LINE: Final = 2048
"""Ours: of its first line."""

MOST_FIELDS: Final = 32
"""Ours: parameters of a query."""

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VERSION: Final = re.compile(r"HTTP/[0-9]\.[0-9]")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")

HEADERS: Final = (
    "Content-Security-Policy: default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options: nosniff",
    "Referrer-Policy: no-referrer",
    "Cross-Origin-Resource-Policy: same-origin",
    "Cross-Origin-Opener-Policy: same-origin",
    "Cache-Control: no-store",
)


class RefusedRequestError(Exception):
    """What is wrong with a request, and the status that says so."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class HttpRequest(msgspec.Struct, frozen=True):
    """A GET or HEAD. ``path`` is decoded and begins with a slash; names of ``headers`` are in small letters."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    is_kept_alive: bool

    @property
    def host(self) -> str:
        """The name or address of the Host header, without a port."""
        host = self.headers.get("host", "")
        return host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]


def request_of(head: bytes) -> HttpRequest:
    """A request from all its bytes up to and with the empty line; ``RefusedRequestError`` if it is none for us."""
    try:
        lines = head.decode("ascii").removesuffix("\r\n\r\n").split("\r\n")
    except UnicodeDecodeError:
        raise RefusedRequestError(HTTPStatus.BAD_REQUEST, "a character that is not of ASCII") from None
    if any(not line.replace("\t", " ").isprintable() for line in lines):
        raise RefusedRequestError(HTTPStatus.BAD_REQUEST, "a control character")
    method, target, version = _first(lines[0])
    headers = _fields(lines[1:])
    if method not in ("GET", "HEAD"):
        raise RefusedRequestError(HTTPStatus.METHOD_NOT_ALLOWED, "this page only reads: GET and HEAD")
    if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
        raise RefusedRequestError(HTTPStatus.BAD_REQUEST, "a request with a body")
    if version == "HTTP/1.1" and not headers.get("host"):
        raise RefusedRequestError(HTTPStatus.BAD_REQUEST, "no Host")
    path, _, query = target.partition("?")
    wanted = {word.strip().lower() for word in headers.get("connection", "").split(",")}
    is_kept_alive = version == "HTTP/1.1" and "close" not in wanted
    return HttpRequest(method, path_of(path), _query(query), headers, is_kept_alive)


def path_of(text: str) -> str:
    """A path with its escapes decoded. No path of ours has a dot alone between slashes."""
    path = _decoded(text)
    if not path.startswith("/"):
        raise RefusedRequestError(HTTPStatus.BAD_REQUEST, "a path begins with /")
    if {".", ".."} & set(path.split("/")):
        raise RefusedRequestError(HTTPStatus.NOT_FOUND, "no such page")
    return path


def answer(
    status: HTTPStatus, kind: str, body: bytes, is_kept_alive: bool, more: tuple[str, ...] = (), with_body: bool = True
) -> bytes:
    """A whole answer; ``with_body=False`` for HEAD."""
    lines = (
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        *HEADERS,
        *more,
        *(() if is_kept_alive else ("Connection: close",)),
    )
    head = "\r\n".join(lines).encode() + b"\r\n\r\n"
    return head + body if with_body else head


def refusal(error: RefusedRequestError, with_body: bool = True) -> bytes:
    """The answer to a request that is refused; the connection is closed after it."""
    more = ("Allow: GET, HEAD",) if error.status == HTTPStatus.METHOD_NOT_ALLOWED else ()
    body = f"{error.status.value} {error.status.phrase}: {error}\n".encode()
    return answer(error.status, "text/plain; charset=utf-8", body, False, more, with_body)


def events_begin() -> bytes:
    """The head of a stream of events, which ends with the connection."""
    lines = ("HTTP/1.1 200 OK", "Content-Type: text/event-stream; charset=utf-8", *HEADERS, "X-Accel-Buffering: no")
    return "\r\n".join((*lines, "Connection: close")).encode() + b"\r\n\r\n"


def event(data: bytes) -> bytes:
    """One event; ``data`` is one line."""
    return b"data: " + data + b"\n\n"


def _first(line: str) -> tuple[str, str, str]:
    if len(line) > MOST_LINE:
        raise RefusedRequestError(HTTPStatus.REQUEST_URI_TOO_LONG, f"an address has {MOST_LINE} characters at most")
    parts = line.split(" ")
    if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]) or not _VERSION.fullmatch(parts[2]):
        raise RefusedRequestError(HTTPStatus.BAD_REQUEST, "no request of HTTP/1.1")
    if parts[2] not in ("HTTP/1.0", "HTTP/1.1"):
        raise RefusedRequestError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "HTTP/1.1 alone is understood here")
    return parts[0], parts[1], parts[2]


def _fields(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name):
            raise RefusedRequestError(HTTPStatus.BAD_REQUEST, "a header that is none")
        key, value = name.lower(), value.strip(" \t")
        if key in found and key in ("host", "content-length", "transfer-encoding"):
            raise RefusedRequestError(HTTPStatus.BAD_REQUEST, f"two headers {key}")
        found[key] = f"{found[key]}, {value}" if key in found else value
    return found


def _query(text: str) -> dict[str, str]:
    """By name; of several the last."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
    except ValueError:
        raise RefusedRequestError(HTTPStatus.BAD_REQUEST, "a query that is none") from None
    return dict(pairs)


def _decoded(text: str) -> str:
    if _BAD_ESCAPE.search(text):
        raise RefusedRequestError(HTTPStatus.BAD_REQUEST, "a % that begins no escape")
    try:
        path = unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise RefusedRequestError(HTTPStatus.BAD_REQUEST, "a path that is not UTF-8") from None
    if "\0" in path:
        raise RefusedRequestError(HTTPStatus.BAD_REQUEST, "a path with a zero byte")
    return path
