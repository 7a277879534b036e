"""The report of a failed test: the state of all its parts, so that nobody must repeat the test to understand it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby

from .kube import Object
from .recorder import RECEIVE, Call
from .world import MARK, World, cordoned

_LOG_LINES = 80
_COMPONENT_LINES = 6
_COMPONENT_WIDTH = 240
_CALLS = 80
_CONDITIONS = {"Ready", "EbbtideDraining"}


def of(world: World) -> str:
    """Returns the report. A part that can't be read says why, and the others follow."""
    parts: list[tuple[str, Callable[[World], Iterator[str]]]] = [
        ("nodes", _nodes),
        ("pods", _pods),
        ("budgets", _budgets),
        ("queue", _queue),
        ("lifecycle actions", _actions),
        ("AWS calls", _calls),
        ("evictions and deletions", _evictions),
        ("events", _events),
        ("services", _services),
        ("components", _components),
    ]
    lines: list[str] = []
    for title, part in parts:
        lines.append(f"== {title}")
        try:
            lines += part(world)
        except Exception as error:  # the report must not hide the test's failure
            lines.append(f"can't be read: {error!r}")
    lines.append(f"== logs in {world.folder} and {world.control_plane.audit_log.parent}")
    return "\n".join(lines)


def _nodes(world: World) -> Iterator[str]:
    for node in world.nodes:
        seen = world.see(node)
        conditions = {each["type"]: each["status"] for each in seen["status"].get("conditions", [])}
        left = {**seen["metadata"].get("labels", {}), **seen["metadata"].get("annotations", {})}
        left = {key: value for key, value in left.items() if key.startswith(MARK)}
        taints = [f"{taint['key']}:{taint['effect']}" for taint in seen["spec"].get("taints", [])]
        states = " ".join(f"{type}={status}" for type, status in conditions.items() if type in _CONDITIONS)
        yield f"{node.name} {node.instance} {states} cordoned={cordoned(seen)} {taints=} marks={left}"


def _pods(world: World) -> Iterator[str]:
    for pod in world.kube.items(f"/api/v1/namespaces/{world.name}/pods"):
        meta, node = pod["metadata"], pod["spec"].get("nodeName", "no node")
        going = f"terminating, gone by {meta['deletionTimestamp']}" if "deletionTimestamp" in meta else ""
        yield f"{meta['name']} on {node} {pod['status'].get('phase')} {going}"


def _budgets(world: World) -> Iterator[str]:
    for budget in world.kube.items(f"/apis/policy/v1/namespaces/{world.name}/poddisruptionbudgets"):
        status: Object = budget.get("status", {})
        numbers = {key: status.get(key) for key in ("disruptionsAllowed", "currentHealthy", "expectedPods")}
        yield f"{budget['metadata']['name']} {numbers}"


def _queue(world: World) -> Iterator[str]:
    yield str(world.backlog())


def _actions(world: World) -> Iterator[str]:
    for action in world.recorder.actions.all():
        yield str(action)


def _calls(world: World) -> Iterator[str]:
    """Yields the last calls. Adjacent routine calls, such as empty receives, are one line."""

    def routine(call: Call) -> str:
        keeps = "ChangeMessageVisibility" in call.action and "'VisibilityTimeout': 0" not in str(call.asked)
        empty = call.action == RECEIVE and not call.messages
        return call.action if call.status == 200 and (keeps or empty) else ""

    lines: list[str] = []
    for action, group in groupby(world.recorder.calls(), routine):
        calls = list(group)
        if action:
            lines.append(f"{calls[0].clock} to {calls[-1].clock}: {len(calls)} x {action}")
        else:
            lines += map(str, calls)
    yield from lines[-_CALLS:]


def _evictions(world: World) -> Iterator[str]:
    last = ""
    repeated = 0
    for request in world.audit.requests():
        if request.namespace != world.name or request.verb not in {"create", "delete"}:
            continue
        line = f"{request.status} {request.verb} {request.name}"
        repeated = repeated + 1 if line == last else 0
        last = line
        if repeated < 3:
            yield str(request)
        elif repeated == 3:
            yield "                            … and again"


def _events(world: World) -> Iterator[str]:
    about = {world.name, *(node.name for node in world.nodes)}
    for event in world.kube.items("/api/v1/events", fields="source=ebbtide"):
        subject = event["involvedObject"]
        if about & {subject.get("namespace"), subject["name"]}:
            told = f"{event['type']} {event['reason']} x{event.get('count')}: {event.get('message')}"
            yield f"{subject['kind']} {subject['name']} {told}"


def _services(world: World) -> Iterator[str]:
    for service in world.services:
        code = service.process.exit_code
        yield f"-- {service.name}: {'runs' if code is None else f'ended with {code}'}; the end of its log:"
        yield service.process.tail(_LOG_LINES)
        if code is None:
            yield f"-- {service.name}: tasks: { {kind: count for kind, count in service.tasks().items() if count} }"


def _components(world: World) -> Iterator[str]:
    for process in [world.aws.process, *world.control_plane.processes]:
        code = process.exit_code
        yield f"-- {process.name}: {'runs' if code is None else f'ENDED with {code}'}; the end of its log:"
        yield from (line[:_COMPONENT_WIDTH] for line in process.tail(_COMPONENT_LINES).splitlines())
