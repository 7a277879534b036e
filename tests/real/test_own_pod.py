"""The service drains its own node: it evicts its own pod last, ends gracefully, and another replica takes over."""

from __future__ import annotations

from harness import messages
from harness.recorder import COMPLETE
from harness.wait import eventually
from harness.world import World, drained

OURS = "ebbtide-0"

STOPS_AFTER = 3
"""Seconds until the other pods stop."""


def test_own_pod_is_evicted_last(world: World) -> None:
    node = world.node()
    world.run("web", 2, STOPS_AFTER)
    world.run_pod(OURS, node)
    world.node()
    first = world.service("--pod-namespace", world.name, "--pod-name", OURS)
    action = world.hold(node.instance, heartbeat_timeout=120)

    world.send(messages.terminate_action(action))

    first.wait_end()
    *others, own = world.audit.evictions(world.name)
    assert len(others) == 2, others
    assert own.name == OURS, "its own pod was not the last"
    apart = own.came_at - max(each.came_at for each in others)
    assert apart > STOPS_AFTER - 0.5, "its own pod was evicted before the others were gone"
    assert not world.audit.deletions(world.name)
    assert world.recorder.released(), "the service did not release its message"
    eventually("its message is visible", lambda: world.backlog().visible == 1)
    assert not world.recorder.of_token(COMPLETE, action.token), "the first service completed the hook"

    second = world.service("--pod-namespace", world.name, "--pod-name", "ebbtide-1")
    eventually("the hook is completed", lambda: world.completions(action))
    assert drained(world, node)
    eventually("the message is deleted", world.acknowledged)
    eventually("the service is at rest", second.at_rest)
    assert world.completions(action) == ["CONTINUE"]
    assert set(world.audit.evicted(world.name).values()) == {1}, world.audit.evicted(world.name)
    world.wait_running("web", 2)
