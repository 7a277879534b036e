"""One run over a fleet: by the bare client, or by the service."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import requests

from harness.audit import Audit
from harness.aws import Aws
from harness.control_plane import ControlPlane
from harness.hooks import TERMINATING, Hook
from harness.messages import Event, spot_warning, terminate_action
from harness.process import Process
from harness.recorder import RECEIVE, Call, Recorder
from harness.service import Service
from harness.wait import eventually

from .fleet import NAMESPACE, Fleet, Member
from .numbers import Run, cost, look
from .options import QUICK, SPOT, Options
from .queue import QuickQueue

DELETE = "DeleteMessageBatch"

_EMPTY = "ReceiveMessage (empty)"
_CONCURRENT = "ReceiveMessage (concurrent)"
_IDLE_POLL = "ReceiveMessage (idle)"

_WITHIN = 900.0
_READY_WITHIN = 60.0
_HOOK_TIMEOUT = 600
_SENT_TOGETHER = 10
_IDLE = 20
"""Wait time in seconds of a long poll without a backlog. Each replica makes one every 20 s, storm or not."""
_CONCURRENT_WAIT = 1
"""Wait time in seconds of each concurrent receive during a backlog."""
_LOOKS = 0.02
"""Interval in seconds between checks for the middle of the evictions."""


@dataclass(frozen=True)
class Parts:
    """The parts that every run uses."""

    control_plane: ControlPlane
    aws: Aws
    service: Path
    roofline: Path
    folder: Path

    def cpu(self) -> dict[str, float]:
        """Returns the resources that each program has used so far."""
        used = {process.name: cost(process.pid).cpu for process in [*self.control_plane.processes, self.aws.process]}
        return used | {"recorder": time.process_time()}


def bare_client(parts: Parts, fleet: Fleet, options: Options) -> Run:
    """Runs the roofline: the same fleet, with a client that knows it already."""
    members = _noticed(fleet, options)
    run = Run("roofline", len(fleet.members), len(members), sum(len(member.pods) for member in members))
    audit = Audit(parts.control_plane.audit_log)
    before = parts.cpu()
    used = os.times().children_user + os.times().children_system
    done = subprocess.run(
        [parts.roofline],
        input="\n".join(member.node for member in members),
        env={"KUBECONFIG": str(parts.control_plane.kubeconfig), "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    began = json.loads(done.stdout)["began"]
    eventually("every pod is gone", lambda: fleet.pods() == len(fleet.members) * options.pods - run.pods, _WITHIN)
    run.gone = time.time() - began
    run.cpu = os.times().children_user + os.times().children_system - used
    run.others = {name: used - before[name] for name, used in parts.cpu().items()}
    look(run, audit.requests(), {member.node: began for member in members}, _nodes_of(members), began)
    return run


class ServiceRun:
    """Runs the service: its processes, its queue, and its messages."""

    def __init__(self, parts: Parts, fleet: Fleet, options: Options, name: str) -> None:
        self.parts, self.fleet, self.options = parts, fleet, options
        self.quick = QuickQueue(parts.aws.address) if options.queue == QUICK else None
        self.recorder = self.quick or Recorder(parts.aws.address)
        # The storm is real.
        self.recorder.interrupted = lambda: [member.instance for member in self.members]
        self.queue = parts.aws.queue(name)
        self.folder = parts.folder / name
        self.folder.mkdir()
        self.members = _noticed(fleet, options)
        self.sent: dict[str, float] = {}
        self.services: list[Service] = []
        pods = sum(len(member.pods) for member in self.members)
        self.run = Run("ebbtide", len(fleet.members), len(self.members), pods)

    def measure(self) -> Run:
        """Starts the service, sends the storm, waits until all work is done, and returns the results."""
        try:
            self._start()
            self._storm()
        finally:
            for service in self.services:
                service.kill()
            self.recorder.stop()
        return self.run

    def _start(self) -> None:
        url = f"{self.recorder.url}/{self.queue.split('/', 3)[3]}"
        for n in range(self.options.replicas):
            began = time.monotonic()
            service = Service(
                f"ebbtide-{n + 1}",
                self.parts.service,
                url,
                self.recorder.url,
                self.parts.control_plane.kubeconfig,
                self.folder,
                self.options.flags,
            )
            self.services.append(service)
            _wait_ready(service, began + _READY_WITHIN)
            self.run.ready = max(self.run.ready, time.monotonic() - began)
        # The first long poll marks the end of the start, whose cost is not part of the storm's.
        time.sleep(1)

    def _storm(self) -> None:
        pids = [service.process.pid for service in self.services]
        idle = [cost(pid) for pid in pids]
        audit = Audit(self.parts.control_plane.audit_log)
        before, calls_before = self.parts.cpu(), len(self.recorder.calls())
        batches = self._batches()
        began = time.time()
        if self.options.hang:
            threading.Thread(target=self._hang, args=(audit,), daemon=True).start()
        for batch in batches:
            # Sleeps on purpose: the notice must find an idle service.
            time.sleep(self.options.idle)
            self._send(batch)
            if self.options.one_by_one:
                self._wait_handled(len(self.sent))
        stay = (len(self.fleet.members) - len(self.members)) * self.options.pods
        if not self.options.moving:
            eventually("every pod is gone", lambda: self._runs() and self.fleet.pods() == stay, _WITHIN)
            self.run.gone = time.time() - began
        self._wait_handled(sum(len(batch) for batch in batches))
        if self.options.moving:
            eventually("every pod has moved", self.fleet.is_whole, _WITHIN)
            self.run.gone = time.time() - began
        eventually("the service is at rest", lambda: all(service.at_rest() for service in self.services))

        used = [cost(pid) for pid in pids]
        self.run.rss_idle = max(each.rss for each in idle)
        self.run.rss_peak = max(each.peak for each in used)
        self.run.cpu = sum(after.cpu - each.cpu for after, each in zip(used, idle, strict=True))
        self.run.others = {name: cpu - before[name] for name, cpu in self.parts.cpu().items()}
        look(self.run, audit.requests(), self.sent, _nodes_of(self.members), began)
        self.run.drains_took = self.run.gone - min(self.run.cordons, default=0.0)
        calls = self.recorder.calls()[calls_before:]
        self.run.receipts = sorted(call.at - began for call in calls for _ in range(call.messages))
        names = Counter(_name(call) for call in calls)
        self.run.idle_receives = names.pop(_IDLE_POLL, 0)
        self.run.empty_receives = names.pop(_CONCURRENT, 0)
        self.run.aws = dict(names)
        deletes = [call.at for call in calls if call.action == DELETE]
        self.run.queue_empty = max(deletes, default=began) - began
        self.run.deletes_took = max(deletes, default=began) - min(deletes, default=began)
        self.run.left = self._left()
        self.run.shares = [_received(service) for service in self.services]
        self._receipts(audit)

    def _batches(self) -> list[list[tuple[str | None, Event | str]]]:
        """Returns the messages in batches of ten, each with its node."""
        hook = None
        if self.options.kind != SPOT:
            hook = self.parts.aws.hook(self.queue.rpartition("/")[2], "drain", _HOOK_TIMEOUT, TERMINATING)
        messages: list[tuple[str | None, Event | str]] = []
        for member in self.members:
            event = self._event(member, hook)
            messages += [(member.node, event)] * self.options.copies
        messages += [(None, '{"not": "an event"')] * self.options.poison
        if self.options.copies > 1 or self.options.poison:
            random.Random(1).shuffle(messages)
        size = 1 if self.options.one_by_one else _SENT_TOGETHER
        return [messages[at : at + size] for at in range(0, len(messages), size)]

    def _event(self, member: Member, hook: Hook | None) -> Event:
        if hook:
            return terminate_action(self.recorder.actions.begin(hook, member.instance))
        return spot_warning(member.instance)

    def _send(self, batch: Sequence[tuple[str | None, Event | str]]) -> None:
        now = time.time()
        for node, _ in batch:
            if node:
                self.sent.setdefault(node, now)
        bodies = [message for _, message in batch]
        if self.quick:
            self.quick.send(bodies)
        else:
            self.parts.aws.send_together(self.queue, bodies)

    def _wait_handled(self, messages: int) -> None:
        def handled() -> bool:
            return self._runs() and self._deleted() >= messages

        eventually(f"{messages} messages are deleted", handled, _WITHIN)

    def _deleted(self) -> int:
        batches = (call for call in self.recorder.calls() if call.action == DELETE and call.status == 200)
        return sum(len(call.asked["Entries"]) for call in batches)

    def _left(self) -> int:
        """Returns the number of messages left in the queue."""
        if self.quick:
            return self.quick.holds()
        backlog = self.parts.aws.backlog(self.queue)
        return backlog.visible + backlog.in_flight

    def _runs(self) -> bool:
        for service in self.services:
            service.process.must_run()
        return True

    def _hang(self, audit: Audit) -> None:
        """Stops the API server in the middle of the evictions: connections stay open without answers."""
        server = _named(self.parts.control_plane.processes, "kube-apiserver")
        while 2 * sum(audit.evicted(NAMESPACE).values()) < self.run.pods:
            time.sleep(_LOOKS)
        server.signal(signal.SIGSTOP)
        self.run.hung_at = time.time()
        time.sleep(self.options.hang)
        server.signal(signal.SIGCONT)

    def _receipts(self, audit: Audit) -> None:
        """If notices were sent one by one, the receive before each cordon is the one that returned its message."""
        if not self.options.one_by_one:
            return
        received = [call.at for call in self.recorder.calls(RECEIVE) if call.messages]
        for request in audit.requests():
            if (request.verb, request.resource) == ("patch", "nodes"):
                before = [at for at in received if at < request.time]
                self.run.from_receipt.append(request.time - max(before))


def _noticed(fleet: Fleet, options: Options) -> list[Member]:
    return fleet.members[:: 2 if options.moving else 1][: options.notices]


def _nodes_of(members: Sequence[Member]) -> dict[str, str]:
    return {pod: member.node for member in members for pod in member.pods}


def _named(processes: Sequence[Process], name: str) -> Process:
    return next(process for process in processes if process.name == name)


def _name(call: Call) -> str:
    """Returns the name under which a call to AWS is counted."""
    if call.action != RECEIVE or call.messages:
        return call.action
    waits = float(call.asked.get("WaitTimeSeconds", 0))
    if waits >= _IDLE:
        return _IDLE_POLL
    return _CONCURRENT if waits >= _CONCURRENT_WAIT else _EMPTY


def _received(service: Service) -> int:
    of_messages = ((labels, value) for name, labels, value in service.metrics() if name == "ebbtide_messages_total")
    return int(sum(value for labels, value in of_messages if labels["outcome"] == "received"))


def _wait_ready(service: Service, by: float) -> None:
    """Waits until the service is ready. Checks more often than a test does, because this time is a result."""
    while True:
        try:
            if service.ready():
                return
        except requests.RequestException:
            pass
        if time.monotonic() > by:
            raise AssertionError(f"{service.name} is not ready: {service.process.tail(20)}")
        time.sleep(0.005)
