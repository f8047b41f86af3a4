"""An API server of Kubernetes with nodes and pods, as far as draining needs it; after its published API and the source
of kubectl drain, not recorded from a real one. EMULATED.

Pods end some time after the request, or when their grace is over. ``faults`` answer the next requests wrongly.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit


@dataclass
class EmulatedPod:
    """``ends_s``: how long it takes to end after SIGTERM. ``guarded``: how often a budget refuses its eviction; -1:
    always."""

    name: str
    node: str
    ends_s: float = 0.1
    owner: str = "ReplicaSet"
    guarded: int = 0
    phase: str = "Running"
    mirror: bool = False
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    until_s: float | None = None
    was_cut: bool = False

    def as_json(self) -> dict[str, Any]:
        """As in a PodList."""
        return {
            "metadata": {
                "name": self.name, "namespace": "default", "uid": self.uid,
                "annotations": {"kubernetes.io/config.mirror": "x"} if self.mirror else {},
                "ownerReferences": [{"kind": self.owner, "name": "o", "uid": "u", "apiVersion": "v1"}],
            },
            "spec": {"nodeName": self.node, "containers": [{"name": "c"}]},
            "status": {"phase": self.phase},
        }  # fmt: skip


class EmulatedKubernetes:
    """``with EmulatedKubernetes(["n01"], at) as server``; ``server.kubeconfig`` leads there."""

    def __init__(self, nodes: list[str], at: Path, eviction: str = "v1") -> None:
        self.closed = dict.fromkeys(nodes, False)
        self.pods: dict[str, EmulatedPod] = {}
        self.ended: list[EmulatedPod] = []
        self.late: list[EmulatedPod] = []
        """Pods that the scheduler had decided on before the node was closed: bound with the first eviction."""
        self.faults: list[int | str] = []
        """Statuses of the next answers, "silence" or "garbage"."""
        self.requests: Counter[str] = Counter()
        self.eviction = eviction
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.kubeconfig = at / "kubeconfig"
        self.kubeconfig.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
            "clusters": [{"name": "k", "cluster": {"server": f"http://127.0.0.1:{self._server.server_port}"}}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        }))  # fmt: skip

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    def run(self, pod: EmulatedPod) -> None:
        """It is bound to its node."""
        with self._lock:
            self.pods[pod.name] = pod

    def _end(self, pod: EmulatedPod, grace_s: float) -> None:
        until_s = time.monotonic() + min(pod.ends_s, grace_s)
        if pod.until_s is None or until_s < pod.until_s:
            pod.until_s, pod.was_cut = until_s, pod.ends_s > grace_s

    def _pass_time(self) -> None:
        now_s = time.monotonic()
        for pod in [one for one in self.pods.values() if one.until_s is not None and one.until_s <= now_s]:
            self.ended.append(self.pods.pop(pod.name))

    def answer(self, verb: str, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        """One request."""
        words = path.strip("/").split("/")
        with self._lock:
            self._pass_time()
            if words == ["api", "v1"]:
                return 200, {"resources": [{"name": "pods/eviction", "group": "policy", "version": self.eviction,
                                            "kind": "Eviction"}]}  # fmt: skip
            if words[2] == "nodes":
                if words[3] not in self.closed:
                    return 404, _status(404, f'nodes "{words[3]}" not found')
                if verb == "PATCH":
                    self.closed[words[3]] = bool(body["spec"]["unschedulable"])
                spec = {"unschedulable": True} if self.closed[words[3]] else {}
                return 200, {"metadata": {"name": words[3]}, "spec": spec}
            if words[2] == "pods":
                node = query["fieldSelector"][0].removeprefix("spec.nodeName=")
                found = [pod.as_json() for pod in self.pods.values() if pod.node == node]
                at, most = int(query.get("continue", ["0"])[0]), int(query["limit"][0])
                more = {"continue": str(at + most)} if len(found) > at + most else {}
                return 200, {"metadata": more, "items": found[at : at + most]}
            return self._to_pod(verb, words, body)

    def _to_pod(self, verb: str, words: list[str], body: Any) -> tuple[int, Any]:
        pod = self.pods.get(words[5])
        if pod is None:
            return 404, _status(404, f'pods "{words[5]}" not found')
        if verb == "DELETE":
            if body.get("preconditions", {}).get("uid", pod.uid) != pod.uid:
                return 409, _status(409, "the UID in the precondition does not match")
            self._end(pod, body["gracePeriodSeconds"])
            return 200, pod.as_json()
        for one in self.late:
            self.pods[one.name] = one
        self.late = []
        if body["apiVersion"] != f"policy/{self.eviction}":
            return 400, _status(400, f"no kind Eviction in {body['apiVersion']}")
        if pod.guarded:
            pod.guarded -= pod.guarded > 0
            return 429, _status(429, "Cannot evict pod as it would violate the pod's disruption budget.")
        self._end(pod, body["deleteOptions"]["gracePeriodSeconds"])
        return 201, _status(201, "")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                parts = urlsplit(self.path)
                kind = "eviction" if parts.path.endswith("/eviction") else parts.path.split("/")[3:4] or ["api"]
                server.requests[f"{self.command} {kind if isinstance(kind, str) else kind[0]}"] += 1
                fault = server.faults.pop(0) if server.faults else 0
                if fault == "silence":
                    server._over.wait(60)
                    return
                status, found = (
                    (int(fault), _status(int(fault), "as planned")) if fault and fault != "garbage"
                    else server.answer(self.command, parts.path, parse_qs(parts.query), json.loads(body or b"{}"))
                )  # fmt: skip
                text = b"<html>" if fault == "garbage" else json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PATCH = do_DELETE = _do  # noqa: N815  (http.server's names)

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        return Handler


def _status(code: int, message: str) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "code": code, "message": message}
