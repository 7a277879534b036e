"""Traces of the real program, read by the OpenTelemetry Collector's own module."""

from __future__ import annotations

from harness import messages
from harness.collector import collecting
from harness.wait import eventually
from harness.world import World, drained


def test_an_interruption_is_one_trace_that_the_log_names(world: World) -> None:
    node = world.node()
    world.run("web")
    action = world.hold(node.instance, heartbeat_timeout=120)
    with collecting() as collector:
        service = world.service("--otlp-endpoint", collector.url, "--cluster-name", "blue")
        world.send(messages.terminate_action(action))
        eventually("the node is drained", lambda: drained(world, node))
        eventually("the message is deleted", world.acknowledged)
        eventually("the trace arrives", collector.roots)
        eventually("the service is at rest", service.at_rest)
    (root,) = collector.roots()
    parts = collector.parts(root)
    assert [name for name in parts if name != "volumes"] == ["receive", "resolve", "cordon", "evict", "complete hook", "delete"]
    assert (root["name"], root["status"]) == ("interruption", "Ok")
    assert root["attributes"]["host.id"] == node.instance
    assert root["attributes"]["k8s.node.name"] == node.name
    assert root["resource"]["k8s.cluster.name"] == "blue"
    assert f"trace_id={root['trace']}" in service.process.log.read_text().replace('"', "")
