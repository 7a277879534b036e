"""The service drains the node that it runs on: it goes last of all, in order, and another replica finishes its work."""

from __future__ import annotations

from harness import messages
from harness.recorder import COMPLETE
from harness.service import SHUTDOWN_WITHIN
from harness.wait import eventually
from harness.world import World, drained

OURS = "ebbtide-0"

STOPS_AFTER = 3
"""Seconds that the other pods take."""


def test_own_pod_goes_last(world: World) -> None:
    node = world.node()
    world.run("web", 2, STOPS_AFTER)
    world.run_pod(OURS, node)
    world.node()
    first = world.service("--pod-namespace", world.name, "--pod-name", OURS)
    action = world.hold(node.instance, heartbeat_timeout=120)

    world.send(messages.terminate_action(action))

    eventually("the web's pods are evicted", lambda: len(world.audit.evicted(world.name)) == 2)
    assert OURS in world.apps(node), "its own pod stays while others go"
    code = first.wait_end(STOPS_AFTER + SHUTDOWN_WITHIN)
    assert code == 0, f"it ended with {code}"
    *others, own = world.audit.evictions(world.name)
    assert own.name == OURS, "its own pod goes last"
    assert own.time - others[-1].time > STOPS_AFTER - 0.5, "its own pod goes when the others are gone"
    eventually("its message is released", lambda: world.backlog().visible == 1, within=2)
    assert not world.recorder.of_token(COMPLETE, action.token), "it leaves the hook to another"

    second = world.service("--pod-namespace", world.name, "--pod-name", "ebbtide-1")
    eventually("the hook is completed", lambda: world.completions(action), within=15)
    assert drained(world, node)
    eventually("the message is deleted", world.acknowledged)
    eventually("nothing is left going on", second.at_rest)
    assert world.completions(action) == ["CONTINUE"]
    assert set(world.audit.evicted(world.name).values()) == {1}, world.audit.evicted(world.name)
    world.wait_running("web", 2)
