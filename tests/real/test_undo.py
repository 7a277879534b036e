"""`ebbtide undo` on a real API server: what a service that is gone has left on its Nodes goes, conditions included."""

from __future__ import annotations

import json

import pytest

from harness import messages
from harness.kube import NODES, Object
from harness.wait import eventually
from harness.world import World, cordoned, marks

CONDITIONS = {"EbbtideDraining", "DrainInProgress", "Drained"}


def conditions(node: Object) -> set[str]:
    """Returns the types of a Node's conditions of a drain."""
    return {each["type"] for each in node["status"].get("conditions", [])} & CONDITIONS


def taints(node: Object) -> list[str]:
    """Returns the keys of a Node's taints, except that of the cordon."""
    keys = [each["key"] for each in node["spec"].get("taints", [])]
    return [key for key in keys if key != "node.kubernetes.io/unschedulable"]


@pytest.mark.versions
def test_what_is_left_on_a_node_goes(world: World) -> None:
    node = world.node()
    world.run("web")
    world.close_budget("web")
    flags = ("--taint", "going=soon:NoSchedule", "--events", "lifecycle", "--at-deadline", "leave")
    service = world.service(*flags, "--drain-timeout", "spot=10s")
    world.kube.patch(f"{NODES}/{node.name}", {"metadata": {"annotations": {"ebbtide/allow-test": "true"}}})
    world.send(messages.spot_warning(node.instance))
    eventually("the message is deleted", world.acknowledged)
    eventually("the conditions are set", lambda: conditions(world.see(node)) == CONDITIONS)
    service.terminate()
    before = world.see(node)
    assert cordoned(before) and taints(before) == ["going"], before["spec"]

    ours = ("undo", "--node", node.name, "--taint-key", "going", "--output", "json")
    shown = world.ask(*ours, "--dry-run")
    assert (shown.returncode, shown.stderr) == (0, "")
    (found,) = json.loads(shown.stdout)["nodes"]
    assert (found["node"], found["cordon"], found["taints"]) == (node.name, True, ["going=soon:NoSchedule"])
    assert set(found["conditions"]) == CONDITIONS
    assert world.see(node)["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]

    done = world.ask(*ours, "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    after = world.see(node)
    assert not cordoned(after)
    assert (taints(after), conditions(after), marks(after)) == ([], set(), ["ebbtide/allow-test"])
    assert json.loads(world.ask(*ours, "--yes").stdout)["nodes"] == []
