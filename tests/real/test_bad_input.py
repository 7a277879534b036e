"""What can't be read costs itself alone: it is deleted, and its neighbours are handled."""

from __future__ import annotations

import json

from harness import messages
from harness.wait import eventually
from harness.world import World, drained


def unreadable(instance: str) -> list[str]:
    """Bodies that are broken, each in its own way."""
    event = messages.spot_warning(instance)
    return [
        "hello",
        " ",
        "null",
        "[]",
        "{}",
        "[" * 20_000,
        "\u00e9\u4e2d\U0001f30a" * 1_000,
        json.dumps(event)[:-20],
        json.dumps(event | {"detail": "text"}),
        json.dumps(event | {"detail": {}}),
        json.dumps(event | {"detail": {"instance-id": 7}}),
        json.dumps(event | {"detail": {"instance-id": "../../nodes"}}),
        json.dumps(event | {"time": "yesterday"}),
        json.dumps({key: value for key, value in event.items() if key != "detail"}),
        json.dumps(messages.sns("hello")),
        json.dumps(messages.sns("{}")),
        json.dumps(messages.sns(messages.sns("{}"))),
        json.dumps(event | {"detail": {"padding": "x" * 200_000}}),
    ]


def unconcerned(instance: str) -> list[str]:
    """Bodies that are well formed and ask nothing."""
    event = messages.spot_warning(instance)
    return [
        json.dumps(event | {"detail-type": "EC2 Spot Instance Request Fulfillment"}),
        json.dumps(event | {"source": "aws.s3", "detail-type": "Object Created"}),
        json.dumps(messages.set_up_notification("drain", "group")),
        json.dumps(messages.state_change(instance, "running")),
    ]


def each_key_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object, as log collectors want it: of two equal keys most of them keep one, and some refuse the line."""
    keys = [key for key, _ in pairs]
    assert len(keys) == len(set(keys)), f"a key comes twice in a log line: {dict(pairs)}"
    return dict(pairs)


def test_bad_input_costs_itself_alone(world: World) -> None:
    first, last, bystander = world.node(), world.node(), world.node()
    for node in (first, last, bystander):
        world.run(f"web-{node.name}", on=node)
    service = world.service("--log-format", "json")

    world.send(messages.spot_warning(first.instance))
    world.send(*unreadable(bystander.instance), *unconcerned(bystander.instance))
    world.send(messages.spot_warning(last.instance))

    eventually("both neighbours are drained", lambda: drained(world, first) and drained(world, last))
    eventually("every message is deleted", world.acknowledged)
    eventually("the service is at rest", service.at_rest)
    assert service.ready()
    assert world.apps(bystander), "a node that only bad messages named keeps its pods"
    for line in service.process.log.read_text().splitlines():
        json.loads(line, object_pairs_hook=each_key_once)
