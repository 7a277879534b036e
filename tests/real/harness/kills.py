"""Kills a replica at the n-th call of a kind, as AWS or the API server sees it: moments that no sleep would find."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from . import roles
from .audit import Request
from .kube import NAMESPACES
from .recorder import RECEIVE, Call
from .service import Service
from .world import World

BEFORE, AFTER = "before", "after"

_LOOKS = 0.005
"""Interval in seconds between looks at the audit log: shorter than a call."""


@dataclass(frozen=True)
class Point:
    """The moment at which a process is killed: at this call of a kind, counted from now, by any replica."""

    kind: str
    """An action of AWS, or verb and resource at the API server, or `aws` or `kube` for any call."""
    count: int
    when: str = AFTER
    """Before the call's effect, or after it and before its answer. Calls to the API server are seen after theirs."""

    def __str__(self) -> str:
        return f"{self.when} {self.kind} no. {self.count}"


class Replica:
    """A place in the Deployment: one process at a time, always with the same ServiceAccount."""

    def __init__(self, world: World, name: str, flags: tuple[str, ...]) -> None:
        self.world, self.name, self.flags = world, name, flags
        accounts = f"{NAMESPACES}/{world.name}/serviceaccounts"
        world.kube.create(accounts, {"metadata": {"name": name}})
        self.user = f"system:serviceaccount:{world.name}:{name}"
        roles.grant(world.kube, self.user)
        answer = world.kube.create(f"{accounts}/{name}/token", {"spec": {"expirationSeconds": 7200}})
        plane = world.control_plane
        self.kubeconfig = plane.kubeconfig_of(f"{world.name}-{name}", world.kube, answer["status"]["token"])
        self.started: list[Service] = []

    def start(self) -> None:
        """Starts a process; does not wait until it is ready."""
        world = self.world
        name = f"{self.name}{len(self.started) + 1}"
        endpoint = world.recorder.url
        service = Service(name, world.binary, world.queue_url, endpoint, self.kubeconfig, world.folder, self.flags)
        self.started.append(service)
        world.services.append(service)

    @property
    def service(self) -> Service:
        """Returns the process that runs, or was killed last."""
        return self.started[-1]


class Trap:
    """Watches the calls of replicas, and kills the caller at the point that is set."""

    def __init__(self, world: World, replicas: list[Replica], look: Callable[[str, dict[str, Any]], None]) -> None:
        """`look` sees each call to AWS before its effect."""
        self.world, self.replicas, self.look = world, replicas, look
        self.killed: queue.Queue[Replica] = queue.Queue()
        self._lock = threading.Lock()
        self._point: Point | None = None
        self._left = 0

    def set(self, point: Point) -> None:
        """Waits for this point from now on."""
        with self._lock:
            self._point, self._left = point, point.count

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Counts calls until the end of the block."""
        end = threading.Event()
        follower = threading.Thread(target=self._follow, args=(end,), daemon=True)
        self.world.recorder.before, self.world.recorder.after = self._before, self._after
        follower.start()
        try:
            yield
        finally:
            end.set()
            follower.join()

    def _before(self, caller: str, action: str, asked: dict[str, Any]) -> None:
        self.look(action, asked)
        self._meet(self._at(caller), action, "aws", BEFORE)

    def _after(self, call: Call) -> None:
        # A receive without messages is no moment that matters.
        if call.status == 200 and (call.action != RECEIVE or call.messages):
            self._meet(self._at(call.caller), call.action, "aws", AFTER)

    def _follow(self, end: threading.Event) -> None:
        while not end.wait(_LOOKS):
            for request in self.world.audit.more():
                replica = next((each for each in self.replicas if each.user == request.user), None)
                with contextlib.suppress(ConnectionError):
                    self._meet(replica, kind(request), "kube", AFTER)

    def _at(self, caller: str) -> Replica | None:
        return next((each for each in self.replicas if each.service.name == caller), None)

    def _meet(self, replica: Replica | None, kind: str, any_of: str, when: str) -> None:
        """Counts a call; at the point kills its caller and hangs up on it."""
        with self._lock:
            point = self._point
            if replica is None or point is None or point.kind not in (kind, any_of) or point.when != when:
                return
            if replica.service.process.exit_code is not None:
                return  # a call of a process that was killed just now
            self._left -= 1
            if self._left:
                return
            self._point = None
            replica.service.kill()
        self.killed.put(replica)
        raise ConnectionError(f"{replica.service.name} was killed")


def kind(request: Request) -> str:
    """Returns verb, resource and status, such as `create pods/eviction 201`."""
    return f"{request.verb} {request.resource} {request.status}"
