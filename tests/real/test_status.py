"""The status page of the real program: its report during a drain, and of two replicas together."""

from __future__ import annotations

import requests

from harness import messages
from harness.process import free_port
from harness.status import report
from harness.wait import eventually
from harness.world import World, drained


def test_the_page_shows_who_blocks_a_drain_and_its_end(world: World) -> None:
    node = world.node()
    world.run("web")
    world.run("db")
    world.close_budget("db")
    service = world.service("--at-deadline", "leave")
    assert report(service.status)["health"]["state"] == "ok"
    page = requests.get(service.status, timeout=30)
    assert page.headers["content-security-policy"].startswith("default-src 'none'")

    world.send(messages.spot_warning(node.instance))
    eventually("the drain is shown as blocked", lambda: report(service.status)["health"]["state"] == "blocked")
    (row,) = report(service.status)["interruptions"]
    assert (row["node"], row["kind"], row["phase"]) == (node.name, "spot", "draining")
    (drain,) = row["drains"]
    assert (drain["pods"], drain["gone"]) == (2, 1)
    (blocked,) = drain["blocked"]
    assert blocked["pod"].startswith(f"{world.name}/db-")

    world.open_budget("db")
    eventually("the node is drained", lambda: drained(world, node))
    eventually("the message is deleted", world.acknowledged)
    (row,) = report(service.status)["interruptions"]
    assert (row["phase"], row["ended"]["outcome"]) == ("ended", "drained")
    assert report(service.status)["health"]["state"] == "ok"
    (pool,) = report(service.status)["pools"]
    assert (pool["kind"], pool["interruptions"]) == ("spot", 1)


def two_replicas(world: World) -> list[str]:
    """Starts two replicas that show their work together; returns the addresses of their pages."""
    ports = [free_port(), free_port()]
    peers = ",".join(f"127.0.0.1:{port}" for port in ports)
    for name, port in zip(("first", "second"), ports, strict=True):
        own = ("--pod-namespace", world.name, "--pod-name", name, "--at-deadline", "leave")
        world.service("--status-address", f"127.0.0.1:{port}", "--status-peers", peers, *own)
    return [f"http://127.0.0.1:{port}" for port in ports]


def test_replicas_show_their_work_together(world: World) -> None:
    """One of two replicas gets the message: the command shows the reports of both, and all is well only if both say so."""
    node = world.node()
    world.run("web")
    urls = two_replicas(world)
    for url in urls:
        assert report(url)["health"]["text"] == "All is well. Nothing is being drained."
    world.send(messages.spot_warning(node.instance))
    eventually("the message is deleted", world.acknowledged)
    shown = []
    for url, others in zip(urls, ("second", "first"), strict=True):

        def both(url: str = url) -> bool:
            found = report(url)
            return [row["ended"] is not None for row in found["interruptions"]] == [True]

        eventually("the page shows the drain", both)
        found = report(url)
        assert [replica["name"] for replica in found["replicas"]][1:] == [others]
        assert found["health"]["text"].startswith("All is well. Nothing is being drained; the last interruption"), found["health"]
        shown.append(found["interruptions"][0]["id"])
    assert shown[0] == shown[1], "both show the same interruption"


def test_a_replica_knows_the_blocked_drain_of_one_that_has_died(world: World) -> None:
    node = world.node()
    world.run("db")
    world.close_budget("db")
    urls = two_replicas(world)
    world.send(messages.spot_warning(node.instance))
    for url in urls:
        eventually("each page shows that it is blocked", lambda url=url: report(url)["health"]["state"] == "blocked")
    (row,) = report(urls[0])["interruptions"]
    acts = row["replica"]
    at = ("first", "second").index(acts)
    survivor = urls[1 - at]
    world.services[at].kill()

    def knows() -> bool:
        found = report(survivor)
        rows = [(row["phase"], row["node"]) for row in found["interruptions"]]
        is_silent = found["replicas"][1]["silent"] is not None
        return is_silent and rows == [("elsewhere", node.name)] and found["health"]["state"] == "blocked"

    eventually("the survivor shows it from the Node's record and condition", knows)
    eventually("the survivor continues", lambda: [row["phase"] for row in report(survivor)["interruptions"]] == ["draining"])
    world.open_budget("db")
    eventually("the node is drained", lambda: drained(world, node))
    eventually("the message is deleted", world.acknowledged)
