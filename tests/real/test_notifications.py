"""Notifications of the real program to a real receiver: signed, by their schema, once in each phase."""

from __future__ import annotations

import json
from pathlib import Path

from jsonschema import Draft202012Validator

from harness import messages, receiver
from harness.service import Service
from harness.wait import eventually
from harness.world import World, drained

SCHEMA = Path(__file__).parents[2] / "docs" / "notification.schema.json"
LEAVE = ("--at-deadline", "leave")


def counted(service: Service, result: str) -> float:
    """Returns the number of notifications with this result."""
    samples = service.samples("ebbtide_notifications_total")
    (found,) = (value for labels, value in samples if labels["result"] == result)
    return found


def test_a_node_is_told_of_once_in_each_phase_across_processes(world: World) -> None:
    node = world.node()
    world.run("web")
    world.run("db")
    world.close_budget("db")
    action = world.hold(node.instance, heartbeat_timeout=120)
    with receiver.listening() as receives:
        first = world.service(*receives.flags("all"), *LEAVE)
        world.send(messages.terminate_action(action))
        eventually("the block is told", lambda: receives.phases() == ["notice", "blocked"])
        first.terminate()
        second = world.service(*receives.flags("all"), *LEAVE)
        eventually("the second process goes on", lambda: world.deliveries() >= 2)
        world.open_budget("db")
        eventually("the node is drained", lambda: drained(world, node))
        eventually("the message is deleted", world.acknowledged)
        eventually("the end is told", lambda: receives.phases()[-1] == "done")
        eventually("the service is at rest", second.at_rest)
        told = receives.told
    assert receives.unsigned == 0
    assert receives.phases().count("notice") == receives.phases().count("done") == 1, receives.phases()
    validator = Draft202012Validator(json.loads(SCHEMA.read_text()))
    for each in told:
        validator.validate(each)
        assert (each["node"], each["instance"], each["kind"]) == (node.name, node.instance, "asg-terminate")
        assert each["key"] == f"ebbtide/{node.instance}"
        assert each["id"] == f"{node.instance}/{each['message']}/{each['phase']}"
    (pod,) = told[1]["blocked"]
    assert pod["pod"].startswith(f"{world.name}/db-")
    assert told[-1]["outcome"] == "drained"
    assert world.completions(action) == ["CONTINUE"]


def test_a_receiver_that_redirects_delays_nothing_and_no_log_has_its_url(world: World) -> None:
    node = world.node()
    world.run("web")
    with receiver.listening() as receives:
        receives.status = 307
        service = world.service(*receives.flags("all"), "--log", "debug")
        world.send(messages.spot_warning(node.instance))
        eventually("the node is drained", lambda: drained(world, node))
        eventually("the message is deleted", world.acknowledged)
        eventually("both are counted", lambda: counted(service, "refused") == 2)
        eventually("the service is at rest", service.at_rest)
    log = service.process.log.read_text()
    assert log.count("a notification was not delivered; not repeated for ten minutes") == 1
    assert "a redirect, which is not followed" in log
    assert "hidden-path" not in log
