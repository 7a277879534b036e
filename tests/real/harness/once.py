"""What was done more than once, read from the records of AWS and the API server after the processes were killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl, urlsplit

from .audit import Request
from .hooks import Action
from .recorder import COMPLETE, HEARTBEAT, Call, Recorder

EVICT = "pods/eviction"


def repeated(requests: Sequence[Request]) -> dict[str, list[Request]]:
    """Returns the accepted evictions of each pod that had more than one, in the order of their answers."""
    accepted: dict[str, list[Request]] = {}
    for request in requests:
        if request.resource == EVICT and request.status == 201:
            accepted.setdefault(request.name, []).append(request)
    return {pod: evictions for pod, evictions in accepted.items() if len(evictions) > 1}


def needless(requests: Sequence[Request], began: Mapping[str, Sequence[float]], nodes: Mapping[str, str]) -> list[str]:
    """Returns the repeated evictions by a process that could know of the earlier one.

    A process knows of an eviction that it was answered itself, and of those before its last list of the node's pods: a
    list shows which pods are terminating. Between the two a process can't know: replicas don't talk to each other, and
    a killed process tells nobody what it asked for. `began` has the starts of each user's processes, `nodes` the
    node of each pod.
    """
    found = []
    for pod, evictions in repeated(requests).items():
        for place, again in enumerate(evictions[1:], 1):
            start = max(at for at in began[again.user] if at <= again.came_at)
            earlier = [each for each in evictions[:place] if each.time < again.came_at]
            lists = [each.came_at for each in requests if _lists(each, again.user, nodes[pod])]
            knew = [at for at in lists if start <= at < again.came_at]
            for first in earlier:
                own = first.user == again.user and first.came_at >= start
                if own or any(at > first.time for at in knew):
                    found.append(f"{pod}: {first.user} {first.at}, then {again.user} {again.came}")
    return found


def _lists(request: Request, user: str, node: str) -> bool:
    if (request.user, request.verb, request.resource) != (user, "list", "pods"):
        return False
    selected = dict(parse_qsl(urlsplit(request.uri).query)).get("fieldSelector", "")
    return f"spec.nodeName={node}" in selected.split(",")


def completed_twice(recorder: Recorder, actions: Sequence[Action]) -> list[str]:
    """Returns the actions that were not completed exactly once by effect, or again by a process that had its answer."""
    found = []
    for action in actions:
        calls = recorder.of_token(COMPLETE, action.token)
        if [call.asked["LifecycleActionResult"] for call in calls if call.status == 200] != ["CONTINUE"]:
            found.append(f"{action}: {[str(call) for call in calls]}")
        found += [f"{action}: {count} by {caller}" for caller, count in _by_caller(calls).items() if count > 1]
    return found


def beats_after_completion(recorder: Recorder, actions: Sequence[Action]) -> list[str]:
    """Returns the heartbeats after a completion, except the one by which another process learns of it from AWS."""
    found = []
    for action in actions:
        (done,) = (call for call in recorder.of_token(COMPLETE, action.token) if call.status == 200)
        late = [call for call in recorder.of_token(HEARTBEAT, action.token) if call.at > done.at]
        for caller, count in _by_caller(late).items():
            if caller == done.caller or count > 1:
                found.append(f"{action}: {count} by {caller} after the completion by {done.caller}")
    return found


def _by_caller(calls: Sequence[Call]) -> Counter[str]:
    return Counter(call.caller for call in calls)
