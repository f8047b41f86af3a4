"""Pods of Kubernetes on a node: no new ones, and an eviction for each that is there.

Through the official Python client, whose answers are read as JSON, since a hundred pods take it half a second to make
into objects. An eviction respects PodDisruptionBudgets (answer 429); one that is refused until the grace would exceed
the limit is deleted, with its grace. The kind of an eviction is requested of the server: 1.20 knows ``policy/v1beta1``
alone. Source: kubectl drain; https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec

from cluster_agent.elastic.elastic_settings import KubernetesSettings
from cluster_agent.elastic.engines import Cleared, Deadline, EngineError

ANSWER_S: Final = 3.0
"""Ours: so long an answer may take; then the request is made again, until the limit."""
LOOK_S: Final = 0.25
LAST_S: Final = 0.75
"""Ours: so long before the limit what is left is ended at once."""
AT_ONCE: Final = 16
PAGE: Final = 500


class _Owner(msgspec.Struct):
    kind: str = ""


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    annotations: dict[str, str] | None = None
    owner_references: list[_Owner] | None = None


class _Status(msgspec.Struct):
    phase: str = ""


class Pod(msgspec.Struct):
    """What counts of a pod."""

    metadata: _Meta = msgspec.field(default_factory=_Meta)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def is_elastic(self) -> bool:
        """Not one that is made again at once (of a DaemonSet), that the kubelet has from a file, or that is over."""
        owners = self.metadata.owner_references or []
        is_static = "kubernetes.io/config.mirror" in (self.metadata.annotations or {})
        is_over = self.status.phase in ("Succeeded", "Failed")
        return not (is_static or is_over or any(owner.kind == "DaemonSet" for owner in owners))


class _Next(msgspec.Struct, rename={"token": "continue"}):
    token: str = ""


class _Pods(msgspec.Struct):
    items: list[Pod] = []
    metadata: _Next = msgspec.field(default_factory=_Next)


class _Spec(msgspec.Struct):
    unschedulable: bool = False


class _Node(msgspec.Struct):
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _Resource(msgspec.Struct):
    name: str = ""
    group: str = ""
    version: str = ""


class _Resources(msgspec.Struct):
    resources: list[_Resource] = []


class _Going:
    """A pod that was requested to end."""

    def __init__(self) -> None:
        self.since_s: float | None = None
        """None: every request was refused."""
        self.is_over_grace = False


class KubernetesPods:
    """``EngineError`` for a kubeconfig that cannot be used."""

    name = "kubernetes"
    piece = "pod"

    def __init__(self, settings: KubernetesSettings) -> None:
        from kubernetes import client, config

        self._settings = settings
        where = f"kubeconfig {settings.kubeconfig}"
        made = client.Configuration()
        try:
            load: Any = config.load_kube_config
            load(settings.kubeconfig, settings.context or None, made, persist_config=False)
        except Exception as error:  # it raises what its parser does, too
            raise EngineError(f"{where}: {_first_line(error)}") from None
        made.retries = False  # a silent server would be silent four times
        made.connection_pool_maxsize = AT_ONCE
        self._api: Any = client.CoreV1Api(client.ApiClient(made, pool_threads=1))
        self._server = made.host
        self._version = ""

    # --- the engine

    def is_open(self, node: str, deadline: Deadline) -> bool | None:
        """Whether new pods come there."""
        status, body = self._until(deadline, self._api.read_node, self._called(node))
        if status == 404:
            return None
        return not self._read(body, _Node).spec.unschedulable

    def close(self, node: str, deadline: Deadline) -> None:
        """Cordon."""
        self._cordon(node, True, deadline)

    def open(self, nodes: Sequence[str], deadline: Deadline) -> dict[str, str]:
        """Uncordon."""
        failed: dict[str, str] = {}
        for node in nodes:
            try:
                self._cordon(node, False, deadline)
            except EngineError as error:
                failed[node] = str(error)
        return failed

    def clear(self, nodes: Sequence[str], grace_s: float, deadline: Deadline) -> dict[str, Cleared]:
        """Evict, look again for pods that were bound late, and delete at once what is left at the limit."""
        found = {node: Cleared() for node in nodes if self.is_open(node, deadline) is not None}
        going: dict[str, dict[str, _Going]] = {node: {} for node in found}
        ends = functools.partial(self._end, grace_s=grace_s, deadline=deadline)
        with ThreadPoolExecutor(AT_ONCE) as threads:
            while True:
                now_s = time.monotonic()
                left = {node: self._pods(node, deadline) for node in found}
                for node, pods in left.items():
                    _count(found[node], going[node], {pod.metadata.uid for pod in pods}, grace_s, now_s)
                if not any(left.values()) or not deadline.left_s:
                    break
                known = [going[node].setdefault(pod.metadata.uid, _Going()) for node in left for pod in left[node]]
                list(threads.map(ends, itertools.chain(*left.values()), known))
                time.sleep(min(LOOK_S, deadline.left_s))
        for node, pods in left.items():
            found[node].left = len(pods)
        return found

    # --- requests

    def _called(self, node: str) -> str:
        return self._settings.names.get(node, node)

    def _cordon(self, node: str, closed: bool, deadline: Deadline) -> None:
        patch = {"spec": {"unschedulable": closed or None}}
        status, _ = self._until(deadline, self._api.patch_node, self._called(node), patch)
        if status == 404 and closed:
            raise EngineError(f"Kubernetes at {self._server} has no node {self._called(node)} any more")

    def _pods(self, node: str, deadline: Deadline) -> list[Pod]:
        while True:
            found, token = list[Pod](), ""
            while True:
                more: dict[str, Any] = {"field_selector": f"spec.nodeName={self._called(node)}", "limit": PAGE}
                if token:
                    more["_continue"] = token
                status, body = self._until(deadline, self._api.list_pod_for_all_namespaces, counts=(410,), **more)
                if status == 410:  # the list has expired between two of its pages
                    break
                page = self._read(body, _Pods)
                found += [pod for pod in page.items if pod.is_elastic]
                token = page.metadata.token
                if not token:
                    return found

    def _end(self, pod: Pod, going: _Going, grace_s: float, deadline: Deadline) -> None:
        """An eviction, again with the next look if it was refused; a deletion when the grace would exceed the limit
        otherwise; one without a grace at the end."""
        is_last = deadline.left_s <= LAST_S
        if going.since_s is not None and not is_last:
            return
        meta, grace = pod.metadata, 0 if is_last else math.ceil(grace_s)
        body: dict[str, Any]
        try:
            if deadline.left_s < grace_s + LAST_S + LOOK_S:
                body = {"gracePeriodSeconds": grace, "preconditions": {"uid": meta.uid}}
                status, _ = self._ask(deadline, self._api.delete_namespaced_pod, meta.name, meta.namespace, body=body)
            else:
                body = {
                    "apiVersion": f"policy/{self._eviction(deadline)}", "kind": "Eviction",
                    "metadata": {"name": meta.name, "namespace": meta.namespace},
                    "deleteOptions": {"gracePeriodSeconds": grace},
                }  # fmt: skip
                evict = self._api.create_namespaced_pod_eviction
                status, _ = self._ask(deadline, evict, meta.name, meta.namespace, body)
        except EngineError:  # silence: with the next look
            return
        if status < 300 and going.since_s is None:
            going.since_s = time.monotonic()
        going.is_over_grace |= is_last

    def _eviction(self, deadline: Deadline) -> str:
        if not self._version:
            status, body = self._until(deadline, self._api.get_api_resources)
            known = self._read(body, _Resources).resources if status == 200 else []
            self._version = next((one.version for one in known if one.name == "pods/eviction" and one.version), "v1")
        return self._version

    def _until(
        self, deadline: Deadline, asks: Any, *given: Any, counts: Sequence[int] = (404,), **more: Any
    ) -> tuple[int, bytes]:
        """Ask until there is an answer that means something: of success, or with a status that ``counts``."""
        while True:
            try:
                status, body = self._ask(deadline, asks, *given, **more)
            except EngineError:
                if not deadline.left_s:
                    raise
            else:
                if status < 300 or status in counts:
                    return status, body
                if status in (401, 403) or not deadline.left_s:
                    raise EngineError(f"Kubernetes at {self._server}: {status} {_reason(body)}")
            time.sleep(min(LOOK_S, deadline.left_s))

    def _ask(self, deadline: Deadline, asks: Any, *given: Any, **more: Any) -> tuple[int, bytes]:
        from kubernetes import client

        rest: Any = client.rest
        if not (left_s := deadline.left_s):
            raise EngineError(f"Kubernetes at {self._server} has not answered within the limit")
        timeout_s = max(min(left_s, ANSWER_S), 0.1)
        try:
            answer = asks(*given, _preload_content=False, _request_timeout=(timeout_s, timeout_s), **more)
        except rest.ApiException as error:
            if not error.status:  # the client's own, of a TLS that fails
                reason = error.reason or error
                raise EngineError(f"Kubernetes at {self._server} does not answer: {_first_line(reason)}") from None
            body: str | bytes = error.body or b""
            return int(error.status), body.encode() if isinstance(body, str) else body
        except (rest.urllib3.exceptions.HTTPError, OSError) as error:
            raise EngineError(f"Kubernetes at {self._server} does not answer: {_first_line(error)}") from None
        return answer.status, answer.data

    def _read(self, body: bytes, kind: Any) -> Any:
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise EngineError(f"Kubernetes at {self._server}: an answer that is none: {_first_line(error)}") from None


def _count(found: Cleared, going: dict[str, _Going], there: set[str], grace_s: float, now_s: float) -> None:
    """Pods that are gone since the last look: cut off are those that were there until their grace was nearly over."""
    for uid, one in list(going.items()):
        late = one.since_s is not None and now_s - one.since_s > grace_s - 2 * LOOK_S
        one.is_over_grace |= late and uid in there
        if uid not in there:
            del going[uid]
            found.cut += one.is_over_grace
            found.ended += not one.is_over_grace


def _reason(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body or b"{}").get("message", ""))[:200]
    except (msgspec.MsgspecError, AttributeError, ValueError, RecursionError):
        return ""


def _first_line(error: object) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
