"""The steps of docs/install.md, from the stack to a drain that the dashboard shows."""

from __future__ import annotations

import json
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

ALWAYS_SKIPPED = ["calls receive skipped"]
"""Checks that the doctor skips without a service: pods of these tests run none, and the service listens elsewhere."""


@contextmanager
def new_installation(world: World, **values: Object) -> Iterator[tuple[Release, list[Node], str]]:
    """Installs as in docs/install.md: the stack, the chart with the stack's outputs, the hooks.

    Yields the release, two nodes of a group, and the queue's URL at AWS. The release runs on the first node.
    """
    name, group = f"ebbtide-{world.name}", f"{world.name}-blue-a"
    stack = f"{world.name}-stack"
    outputs = world.aws.apply(stack, {"ClusterName": "blue", "Namespace": name, "DoctorPermissions": "true"})
    world.queue = outputs["QueueUrl"]
    of_stack = yaml.safe_load(outputs["HelmValues"])
    nodes = world.several_nodes(2)
    here = {"nodeSelector": {"kubernetes.io/hostname": nodes[0].name}}
    with installed("helm4", name, world.control_plane, world.folder, {**of_stack, **here, **values}) as release:
        eventually("both replicas run", lambda: len(running(release)) == 2)
        world.aws.hooks({"Groups": group})
        world.aws.attach(group, [node.instance for node in nodes])
        try:
            yield release, nodes, of_stack["queueUrl"]
        finally:
            # Before the uninstall removes its permissions: then the API server would refuse its calls.
            for service in world.services:
                service.kill()
            world.aws.remove(stack)


def running(release: Release) -> list[Object]:
    """Returns the running pods of a release."""
    return [pod for pod in release.pods() if pod["status"]["phase"] == "Running"]


def examined(world: World, release: Release) -> Report:
    """Returns the doctor's report in a pod of the release."""
    done = world.execute(release, "doctor", "--output", "json")
    assert not done.stderr, done.stderr
    return Report(done.returncode, json.loads(done.stdout)["checks"])


def not_ok(report: Report) -> list[str]:
    """Returns area, check and status of every check that is not ok."""
    checks = [check for check in report.checks if check["status"] != "ok"]
    return [f"{check['area']} {check['check']} {check['status']}" for check in checks]


def healthy(world: World, release: Release) -> Report:
    """Waits until the report has no fault, because pods and budgets of earlier tests may still exist; returns it."""

    def well() -> Report:
        report = examined(world, release)
        assert not_ok(report) == ALWAYS_SKIPPED, [check for check in report.checks if check["status"] != "ok"]
        return report

    report = eventually("the doctor finds no fault", well)
    assert report.code == 0
    return report


def no_fault(counts: dict[str, float]) -> bool:
    """Returns whether the start-up checks found no fault and skipped none."""
    return (counts["warning"], counts["failure"], counts["skipped"]) == (0, 0, 0)


def warnings(service: Service) -> list[str]:
    """Returns the warnings and errors in the service's log."""
    lines = service.process.log.read_text().splitlines()
    return [line for line in lines if " WARN " in line or " ERROR " in line]


def reports_no_fault(world: World, release: Release) -> bool:
    """Returns whether the doctor's text report has no fault."""
    done = world.execute(release, "doctor")
    assert done.returncode == 0, done.stdout
    assert f"0 warning, 0 failure, {len(ALWAYS_SKIPPED)} skipped" in done.stdout, done.stdout
    return True


def simulated(world: World, release: Release, node: Node) -> dict[str, Any]:
    """Returns the simulation of a spot warning for a node, from a pod of the release."""
    done = world.execute(release, "simulate", "--kind", "spot", "--node", node.name, "--output", "json")
    assert (done.returncode, done.stderr) == (0, "")
    (notice,) = json.loads(done.stdout)["notices"]
    assert isinstance(notice, dict)
    return notice


def the(release: Release, kind: str) -> Object:
    """Returns the chart's only object of a kind, as the API server returns it."""
    (found,) = [each for (its, _, _), each in release.made().items() if its == kind]
    return found


def rules_of(release: Release, world: World) -> Path:
    """Writes the release's alerts as the operator passes them to Prometheus; returns the file's path."""
    written = world.folder / "rules.yaml"
    written.write_text(yaml.safe_dump(the(release, "PrometheusRule")["spec"]))
    return written


def prometheus() -> str:
    """Returns the path of Prometheus, which the first call may download."""
    script = Path(watching.__file__).with_name("watching")
    folder = subprocess.run([str(script), "--tools"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    return f"{folder}/prometheus"


def test_a_new_installation_drains_and_the_dashboard_shows_it(world: World) -> None:
    program = prometheus()
    watched = {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}, "dashboard": {"enabled": True}}
    with new_installation(world, **watched) as (release, (_, node), queue_url):
        assert queue_url.startswith("https://sqs.eu-west-1.amazonaws.com/"), f"not AWS's own URL: {queue_url}"
        world.run("web", 2, on=node, stops_after=2)
        world.run("db", on=node, stops_after=2)

        # Check: by hand and at the start of the service.
        report = healthy(world, release)
        assert ("groups", "hooks") in {(check["area"], check["check"]) for check in report.checks}
        eventually("the doctor reports no fault", lambda: reports_no_fault(world, release))
        service = world.checked_service(lambda: world.installed_service(release), no_fault)

        place = release.namespace, f"{release.namespace}/{the(release, 'PodMonitor')['metadata']['name']}"
        with watching.scraping(program, service.address, str(world.folder), rules_of(release, world), *place) as seen:
            # Test: simulate and send.
            predicted = simulated(world, release, node)
            going = {pod["metadata"]["name"] for app in ("web", "db") for pod in world.pods_of(app)}
            assert {pod["name"] for pod in predicted["pods"]} == going
            world.control_plane.kubectl.output("annotate", "node", node.name, f"{ALLOW}=true")
            sent = world.ask("send", "--yes", "--kind", "spot", "--node", node.name, "--queue-url", queue_url)
            assert sent.returncode == 0, sent.stderr

            eventually("the node is drained", lambda: drained(world, node))
            eventually("the message is deleted", world.acknowledged)
            eventually("the service is at rest", service.at_rest)
            assert set(world.audit.evicted(world.name)) == going
            assert not world.audit.deletions(world.name)

            # Dashboard and metrics show the drain.
            seen.see_it_over()
            problems = watching.Problems()
            watching.check_first_panel(seen, problems)
            watching.check_alerts(seen, problems, planned=set())
            assert not problems, problems
            assert not warnings(service)

            # The user uncordons the node.
            world.control_plane.kubectl.output("uncordon", node.name)
            world.control_plane.kubectl.output("annotate", "node", node.name, f"{ALLOW}-")

            # The chart's alert tells this release's metrics from those of others.
            down = 'ALERTS{alertname="EbbtideDown"}'
            assert not seen.scraped(down)
            service.terminate()
            eventually("the alert fires", lambda: seen.scraped(down))


def test_the_doctors_remedy_repairs_a_role(world: World) -> None:
    with new_installation(world, settings={"collectLeases": True}) as (release, _, _):
        report = healthy(world, release)
        leases = [check["found"] for check in report.checks if check["check"] == "leases"]
        own = release.namespace
        assert leases == [
            "list, delete in kube-node-lease",
            f"create in {own}",
            f"get, update ebbtide-collector in {own}",
        ]
        cluster = f"{RBAC}/clusterroles/{release.full_name}"
        nodes = f"{RBAC}/namespaces/kube-node-lease/roles/{release.full_name}-leases"
        turn = f"{RBAC}/namespaces/{own}/roles/{release.full_name}-collector"
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
            # The remedy can be pasted into the role.
            before, rule = said.split(f"Add to {role}:\n")
            assert "\n" not in before.strip(), f"more than one sentence: {before}"
            world.kube.patch(path, {"rules": [*without(whole, resource, verbs), *yaml.safe_load(rule)]})
            healthy(world, release)


def without(rules: list[Object], resource: str, verbs: list[str]) -> list[Object]:
    """Returns a role's rules without these verbs on a resource."""
    left = []
    for rule in rules:
        stay = [verb for verb in rule["verbs"] if rule["resources"] != [resource] or verb not in verbs]
        if stay:
            left.append({**rule, "verbs": stay})
    return left


def faulty(world: World, release: Release, expected: str) -> Report:
    """Waits until the report has only this fault, because the API server learns of a role after a delay; returns it."""

    def found() -> Report:
        report = examined(world, release)
        assert sorted(not_ok(report)) == sorted([*ALWAYS_SKIPPED, expected]), not_ok(report)
        return report

    return eventually(f"the doctor finds {expected}", found)
