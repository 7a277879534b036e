"""The way of a new user, as docs/install.md tells it: from nothing to a drain that the dashboard shows."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import watching
import yaml

from harness.doctor import Report
from harness.helm import Release, installed
from harness.kube import Object
from harness.service import Service
from harness.wait import eventually
from harness.world import Node, World, drained

ALLOW = "ebbtide/allow-test"

RBAC = "/apis/rbac.authorization.k8s.io/v1"

NEVER_TOLD = ["calls receive skipped"]
"""What the doctor skips where no service is: in these tests a pod is none, and the service listens elsewhere."""


@contextmanager
def new_installation(world: World, **values: Object) -> Iterator[tuple[Release, list[Node], str]]:
    """The steps of docs/install.md to the check: the stack, the chart with what the stack says, the hooks.

    Gives the release, two nodes of a group, on the first of which it runs, and the queue's URL as AWS has it.
    """
    name, group = f"ebbtide-{world.name}", f"{world.name}-blue-a"
    stack = f"{world.name}-stack"
    outputs = world.aws.apply(stack, {"ClusterName": "blue", "Namespace": name})
    world.queue = outputs["QueueUrl"]
    arguments = shlex.split(outputs["HelmArguments"])
    (url,) = (each.removeprefix("queueUrl=") for each in arguments if each.startswith("queueUrl="))
    nodes = world.several_nodes(2)
    here = {"nodeSelector": {"kubernetes.io/hostname": nodes[0].name}}
    with installed("helm4", name, world.control_plane, world.folder, {**here, **values}, arguments) as release:
        eventually("both replicas run", lambda: len(running(release)) == 2)
        world.aws.hooks({"Groups": group})
        world.aws.attach(group, [node.instance for node in nodes])
        try:
            yield release, nodes, url
        finally:
            # Before its rights are taken away: then it would be refused.
            for service in world.services:
                service.kill()
            world.aws.remove(stack)


def running(release: Release) -> list[Object]:
    """The pods of a release that run."""
    return [pod for pod in release.pods() if pod["status"]["phase"] == "Running"]


def examined(world: World, release: Release) -> Report:
    """What the doctor says in a pod of the release."""
    done = world.execute(release, "doctor", "--output", "json")
    assert not done.stderr, done.stderr
    return Report(done.returncode, json.loads(done.stdout)["checks"])


def not_ok(report: Report) -> list[str]:
    """Area, check and status of every line that is not ok."""
    checks = [check for check in report.checks if check["status"] != "ok"]
    return [f"{check['area']} {check['check']} {check['status']}" for check in checks]


def healthy(world: World, release: Release) -> Report:
    """The report, once nothing is wrong: pods and budgets of earlier tests may still be going."""

    def well() -> Report:
        report = examined(world, release)
        assert not_ok(report) == NEVER_TOLD, [check for check in report.checks if check["status"] != "ok"]
        return report

    report = eventually("the doctor finds nothing wrong", well)
    assert report.code == 0
    return report


def no_fault(counts: dict[str, float]) -> bool:
    """Whether the checks at the start found nothing wrong, and left nothing out."""
    return (counts["warning"], counts["failure"], counts["skipped"]) == (0, 0, 0)


def warnings(service: Service) -> list[str]:
    """The lines of its log that ask for attention."""
    lines = service.process.log.read_text().splitlines()
    return [line for line in lines if " WARN " in line or " ERROR " in line]


def says_that_all_is_well(world: World, release: Release) -> bool:
    """Whether the doctor tells it to people."""
    done = world.execute(release, "doctor")
    assert done.returncode == 0, done.stdout
    assert f"0 warning, 0 failure, {len(NEVER_TOLD)} skipped" in done.stdout, done.stdout
    return True


def explained(world: World, release: Release, node: Node) -> dict[str, Any]:
    """What a pod of the release says that a spot warning for a node would lead to."""
    done = world.execute(release, "explain", "--kind", "spot", "--node", node.name, "--output", "json")
    assert (done.returncode, done.stderr) == (0, "")
    (notice,) = json.loads(done.stdout)["notices"]
    assert isinstance(notice, dict)
    return notice


def the(release: Release, kind: str) -> Object:
    """The one object of a kind that the chart made, as the API server has it."""
    (found,) = [each for (its, _, _), each in release.made().items() if its == kind]
    return found


def rules_of(release: Release, world: World) -> Path:
    """The release's alerts, as the operator gives them to a Prometheus."""
    written = world.folder / "rules.yaml"
    written.write_text(yaml.safe_dump(the(release, "PrometheusRule")["spec"]))
    return written


def prometheus() -> str:
    """Where the program is; fetched if need be."""
    script = Path(watching.__file__).with_name("watching")
    folder = subprocess.run([str(script), "--tools"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    return f"{folder}/prometheus"


def test_from_nothing_to_a_drain_on_the_dashboard(world: World) -> None:
    program = prometheus()
    watched = {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}, "dashboard": {"enabled": True}}
    with new_installation(world, **watched) as (release, (_, node), queue_url):
        assert queue_url.startswith("https://sqs.eu-west-1.amazonaws.com/"), "the URL is AWS's own"
        world.run("web", 2, on=node, stops_after=2)
        world.run("db", on=node, stops_after=2)

        # The check, by hand and at the start of the service.
        report = healthy(world, release)
        assert ("groups", "hooks") in {(check["area"], check["check"]) for check in report.checks}
        eventually("the doctor says that all is well", lambda: says_that_all_is_well(world, release))
        service = world.checked_service(lambda: world.installed_service(release), no_fault)

        place = release.namespace, f"{release.namespace}/{the(release, 'PodMonitor')['metadata']['name']}"
        with watching.scraping(program, service.address, str(world.folder), rules_of(release, world), *place) as seen:
            # The test.
            foretold = explained(world, release, node)
            going = {pod["metadata"]["name"] for app in ("web", "db") for pod in world.pods_of(app)}
            assert {pod["name"] for pod in foretold["pods"]} == going
            world.control_plane.kubectl.output("annotate", "node", node.name, f"{ALLOW}=true")
            sent = world.ask("send", "--kind", "spot", "--node", node.name, "--queue-url", queue_url)
            assert sent.returncode == 0, sent.stderr

            eventually("the node is drained", lambda: drained(world, node))
            eventually("the message is deleted", world.acknowledged)
            eventually("the service is at rest", service.at_rest)
            assert set(world.audit.evicted(world.name)) == going
            assert not world.audit.deletions(world.name)

            # What is seen of it.
            seen.see_it_over()
            problems = watching.Problems()
            watching.check_first_panel(seen, problems)
            watching.check_alerts(seen, problems, planned=set())
            assert not problems, problems
            assert not warnings(service)

            # And back.
            world.control_plane.kubectl.output("uncordon", node.name)
            world.control_plane.kubectl.output("annotate", "node", node.name, f"{ALLOW}-")

            # The chart's alert knows this release's metrics from others'.
            down = 'ALERTS{alertname="EbbtideDown"}'
            assert not seen.scraped(down)
            service.terminate()
            eventually("it is missed", lambda: seen.scraped(down))


def test_the_doctors_remedy_repairs_a_role_without_a_rule(world: World) -> None:
    with new_installation(world, settings={"collectLeases": True}) as (release, _, _):
        report = healthy(world, release)
        leases = [check["found"] for check in report.checks if check["check"] == "leases"]
        own = release.namespace
        assert leases == [
            "list, delete in kube-node-lease",
            f"create in {own}",
            f"get, update ebbtide-lease-collector in {own}",
        ]
        cluster = f"{RBAC}/clusterroles/{release.full_name}"
        nodes = f"{RBAC}/namespaces/kube-node-lease/roles/{release.full_name}-leases"
        turn = f"{RBAC}/namespaces/{own}/roles/{release.full_name}-lease-collector"
        for path, resource, verbs, sentence, role in [
            (cluster, "pods/eviction", ["create"], "no pod is evicted.", "the ClusterRole"),
            (nodes, "leases", ["delete"], "leaked Leases stay.", "a Role in kube-node-lease"),
            (turn, "leases", ["get", "update"], "no replica becomes the collector", f"a Role in {own}"),
        ]:
            whole = world.kube.get(path)["rules"]
            world.kube.patch(path, {"rules": without(whole, resource, verbs)})

            lost = faulty(world, release, f"permissions {resource} failure")

            assert lost.code == 1
            said = lost.said("permissions", resource)
            assert f"Not allowed to {', '.join(verbs)} {resource}" in said
            assert sentence in said
            # What it says can be pasted.
            before, rule = said.split(f"Add to {role}:\n")
            assert "\n" not in before.strip(), "one sentence"
            world.kube.patch(path, {"rules": [*without(whole, resource, verbs), *yaml.safe_load(rule)]})
            healthy(world, release)


def without(rules: list[Object], resource: str, verbs: list[str]) -> list[Object]:
    """Rules of a role that give all but these verbs on a resource."""
    left = []
    for rule in rules:
        stay = [verb for verb in rule["verbs"] if rule["resources"] != [resource] or verb not in verbs]
        if stay:
            left.append({**rule, "verbs": stay})
    return left


def faulty(world: World, release: Release, expected: str) -> Report:
    """The report, once it has this one fault: the API server learns of a role's change in its own time."""

    def found() -> Report:
        report = examined(world, release)
        assert sorted(not_ok(report)) == sorted([*NEVER_TOLD, expected]), not_ok(report)
        return report

    return eventually(f"the doctor finds {expected}", found)
