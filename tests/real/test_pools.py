"""Pools of nodes on one queue, each with settings of its own."""

from __future__ import annotations

from harness import messages
from harness.wait import always, eventually
from harness.world import World, cordoned, drained

GPU = "gpu; node-selector=accelerator; on=rebalance=drain; drain-timeout=rebalance=15s; at-timeout=rebalance=delete"
WEB = "web; node-selector=tier in (web, api); on=rebalance=report"


def test_each_pool_has_its_actions_and_times(world: World) -> None:
    labels = [{"accelerator": "nvidia"}, {"tier": "web"}, {}]
    gpu, web, other = world.several_nodes(3, lambda n: labels[n])
    for node in (gpu, web, other):
        world.run(f"app-{node.name}", on=node, grace=3)
    world.close_budget(f"app-{gpu.name}")
    service = world.service("--pool", GPU, "--pool", WEB)
    world.queues.send_together(world.queue, [messages.rebalance(node.instance) for node in (gpu, web, other)])
    eventually("a budget holds the first", lambda: world.audit.refused(world.name))
    eventually("the one in no pool is cordoned", lambda: world.cordoned_with_notice(other))
    assert [notice.get("pool") for node in (gpu, other) for notice in world.notices(node)] == ["gpu", None]
    # The work stays in the pool in which it began.
    world.kube.patch(f"/api/v1/nodes/{gpu.name}", {"metadata": {"labels": {"accelerator": None}}})
    eventually("its pods are deleted before its own time is over", lambda: drained(world, gpu))
    assert [each.name for each in world.audit.deletions(world.name)]
    always("the one that only reports is untouched", lambda: not world.notices(web) and not cordoned(world.see(web)), 3)
    assert not any(each.name.startswith(f"app-{node.name}") for node in (web, other) for each in world.audit.evictions(world.name))
    eventually("the service is at rest", service.at_rest)
