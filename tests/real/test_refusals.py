"""What the API server itself says of an eviction that more than one budget forbids, and of pods that come back to a cordoned node."""

from __future__ import annotations

from harness import manifests, messages
from harness.wait import eventually
from harness.world import World, drained


def test_two_budgets_of_a_pod_are_named_and_block_the_drain(world: World) -> None:
    node = world.node()
    world.run("web", on=node)
    world.close_budget("web")
    second = manifests.closed_budget("web") | {"metadata": {"name": "keep-web-too"}}
    world.kube.create(f"/apis/policy/v1/namespaces/{world.name}/poddisruptionbudgets", second)
    service = world.service("--on", "rebalance=drain")
    world.send(messages.rebalance(node.instance))

    def tells_both() -> bool:
        notes = [event["message"] for event in world.events("Node", node.name) if event["reason"] == "DrainBlocked"]
        return any("more than one PodDisruptionBudget" in note for note in notes)

    eventually("an Event names the reason", tells_both)
    assert {each.status for each in world.audit.evictions(world.name)} == {500}
    world.open_budget("web")
    world.kube.delete(f"/apis/policy/v1/namespaces/{world.name}/poddisruptionbudgets/keep-web-too")
    eventually("the node is drained", lambda: drained(world, node))
    eventually("the message is deleted", world.acknowledged)
    eventually("the service is at rest", service.at_rest)


def test_a_pod_that_tolerates_the_cordon_is_evicted_a_few_times(world: World) -> None:
    node = world.node()
    body = manifests.deployment("operator", 1, {"kubernetes.io/hostname": node.name}, 1, manifests.GRACE, False)
    body["spec"]["template"]["spec"]["tolerations"] = [{"operator": "Exists"}]
    world.kube.create(world.apps_path("deployments"), body)
    world.wait_running("operator", 1)
    service = world.service()
    action = world.hold(node.instance, 3600)
    world.send(messages.terminate_action(action))

    eventually("the hook is completed", lambda: world.completions(action) == ["CONTINUE"])
    eventually("the message is deleted", world.acknowledged)
    evicted = [each for each in world.audit.evictions(world.name) if each.status == 201]
    assert 2 <= len(evicted) <= 4, evicted
    (note,) = [event["message"] for event in world.events("Node", node.name) if event["reason"] == "DrainEnded"]
    assert "comes back to the cordoned node, and stays" in note
    eventually("the service is at rest", service.at_rest)
