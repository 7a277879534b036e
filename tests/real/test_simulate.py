"""The service handles a message of `ebbtide send` as `ebbtide simulate` predicts."""

from __future__ import annotations

import json
import time
from typing import Any

from harness.hooks import TERMINATING
from harness.recorder import COMPLETE
from harness.wait import eventually
from harness.world import Node, World, cordoned, marks

HEARTBEAT_TIMEOUT = 30
"""Heartbeat timeout in seconds, Auto Scaling's minimum: the deadline is 27 s after the message."""

SHORT_GRACE = 4
"""Grace period in seconds that fits into the timeout."""

ALLOW = "ebbtide/allow-test"

FLAGS = ("--evict-daemonsets", "--events", "none", f"--drain-timeout=asg-terminate={HEARTBEAT_TIMEOUT}s")


def simulated(world: World, *flags: str) -> dict[str, Any]:
    """Returns the simulation of a message's only notice."""
    done = world.ask("simulate", "--output", "json", *flags)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    (notice,) = json.loads(done.stdout)["notices"]
    assert isinstance(notice, dict)
    return notice


def full_node(world: World) -> Node:
    """Adds a node with pods of two tiers, one of which a budget holds."""
    node = world.node()
    world.run("web", 2, on=node, stops_after=1)
    world.run("db", on=node, stops_after=1, grace=SHORT_GRACE)
    world.close_budget("db")
    world.run_daemons("agent", 1)
    return node


def app(pod: dict[str, Any]) -> str:
    """Returns the app of a pod, the prefix of its name."""
    name: str = pod["name"]
    return name.split("-")[0]


def test_the_service_does_what_simulate_predicts(world: World) -> None:
    node = full_node(world)
    group = f"{world.name}-group"
    world.aws.hook(group, "drain", HEARTBEAT_TIMEOUT, TERMINATING)
    wanted = ("--kind", "asg-terminate", "--node", node.name, "--group", group, "--hook", "drain")

    notice = simulated(world, *wanted, *FLAGS)
    asked = {request.verb for request in world.audit.requests()}
    assert asked <= {"get", "list"}, f"simulate does more than read: {asked}"
    assert not cordoned(world.see(node))
    assert not marks(world.see(node)), "simulate left marks"
    assert world.acknowledged(), "simulate sent a message"
    assert [app(pod) for pod in notice["pods"]] == ["db", "web", "web", "agent"]
    (held,) = (pod for pod in notice["pods"] if pod["held_back_by"])
    assert app(held) == "db", held
    assert notice["hook"]["heartbeat_timeout_seconds"] == HEARTBEAT_TIMEOUT

    service = world.service(*FLAGS)
    world.annotate(node, ALLOW, "true")
    begin = time.time()
    sent = world.ask("send", "--yes", *wanted, "--queue-url", world.queue_url)
    assert sent.returncode == 0, sent.stderr
    eventually("the message is deleted", world.acknowledged)
    eventually("the service is at rest", service.at_rest)

    evicted, deletions = world.audit.evicted(world.name), world.audit.deletions(world.name)
    going = {pod["name"] for pod in notice["pods"]}
    assert set(evicted) | {each.name for each in deletions} == going, f"{evicted} {deletions}"
    assert [each.name for each in deletions] == [held["name"]]
    tried = {app({"name": each.name}): each.came_at for each in reversed(world.audit.evictions(world.name))}
    half = notice["deadline"]["in_seconds"] / 2
    assert tried["agent"] - begin > half - 1.5, f"the second tier came {tried['agent'] - begin:.1f} s after the message"

    (completion,) = world.recorder.calls(COMPLETE)
    assert completion.error == "ValidationError", f"the made-up token was accepted: {completion}"

    log = service.process.tail(1000)
    assert "a test: this notice was made by ebbtide send" in log
    (line,) = (line for line in sent.stdout.splitlines() if "message ID" in line)
    assert line.split()[-1] in log, "the log does not have the message's ID"


def test_send_refuses_a_node_that_does_not_allow_tests(world: World) -> None:
    node = world.node()
    world.run("web", on=node)
    wanted = ("--kind", "spot", "--node", node.name)

    assert [app(pod) for pod in simulated(world, *wanted)["pods"]] == ["web"]
    refused = world.ask("send", "--yes", *wanted, "--queue-url", world.queue_url)

    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.endswith(f"kubectl annotate node {node.name} {ALLOW}=true\n"), refused.stderr
    assert not [call for call in world.recorder.calls("SendMessage")]
    assert world.acknowledged()
    # The error message ends with a command that works as it is.
    world.control_plane.kubectl.output("annotate", "node", node.name, f"{ALLOW}=true")
    sent = world.ask("send", "--yes", *wanted, "--queue-url", world.queue_url)
    assert sent.returncode == 0, sent.stderr
    assert world.backlog().visible == 1
