"""The quick start without AWS: examples/local/run on a real API server, with its pods' programs as processes."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

from harness import chart
from harness.control_plane import CONTEXT
from harness.helm import Release
from harness.kube import NODES, Object
from harness.process import Process, free_port
from harness.wait import eventually
from harness.world import World

EXAMPLE = Path(__file__).parents[2] / "examples" / "local"
NAME = "ebbtide-local"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAME}/deployments"


def parts() -> list[Object]:
    """Returns the example's simulated parts."""
    return list(yaml.safe_load_all((EXAMPLE / "parts.yaml").read_text()))


@contextmanager
def no_trace_after(world: World) -> Iterator[None]:
    """Removes what a failed test leaves."""
    try:
        yield
    finally:
        for service in world.services:
            service.kill()
        if leftovers(world):
            script(world, "--delete", "--yes")


def leftovers(world: World) -> list[str]:
    """Returns the objects whose names or namespaces are the example's, but for Events and Leases, which expire."""
    found = ((each["kind"], each["metadata"]) for each in world.kube.everything())
    return [
        f"{kind} {meta.get('namespace', '')}/{meta['name']}"
        for kind, meta in found
        if NAME in f"{meta.get('namespace', '')}/{meta['name']}" and kind not in ("Event", "Lease")
    ]


def inside(world: World) -> Path:
    """Returns the file with the shell's words that run a command like `exec` in the release's pod. It comes late."""
    return world.folder / "inside.sh"


def programs(world: World) -> Path:
    """Writes kubectl and helm into a folder: real, but for `kubectl exec`, which follows `inside`."""
    folder = world.folder / "programs"
    folder.mkdir(exist_ok=True)
    kubectl = f"""case " $* " in *" exec "*)
  until [ -e '{inside(world)}' ]; do sleep 0.1; done
  while [ "$1" != -- ]; do shift; done
  shift 2
  . '{inside(world)}'
esac
exec '{world.control_plane.kubectl.program}' "$@"
"""
    for name, text in (("kubectl", kubectl), ("helm", f"exec '{chart.tool('helm4')}' \"$@\"\n")):
        file = folder / name
        file.write_text(f"#!/bin/sh\n{text}")
        file.chmod(0o755)
    return folder


def environment(world: World) -> dict[str, str]:
    """Returns the environment of a user with these programs."""
    kubeconfig = world.control_plane.kubectl.kubeconfig
    return {"HOME": str(world.folder), "KUBECONFIG": str(kubeconfig), "PATH": f"{programs(world)}:{os.environ['PATH']}"}


def script(world: World, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the script to its end, without a terminal."""
    return subprocess.run(
        [str(EXAMPLE / "run"), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment(world),
        timeout=300,
        check=False,
    )


def container(world: World, name: str) -> Object:
    """Waits until a Deployment's pod runs; returns its container."""
    pods = f"/api/v1/namespaces/{NAME}/pods"

    def runs() -> Object | None:
        found = world.kube.items(pods, labels=f"app={name}")
        return next((pod["spec"]["containers"][0] for pod in found if pod["status"]["phase"] == "Running"), None)

    made: Object = eventually(f"{name}'s pod runs", runs)
    return made


def start_moto(world: World) -> tuple[Process, str]:
    """Runs the command of moto's pod, on a free port of loopback; returns its process and URL."""
    made = container(world, "moto")
    port = str(free_port())
    variables = {each["name"]: each["value"] for each in made["env"]} | {"ADDRESS": "127.0.0.1", "PORT": port}
    assert made["command"][0] == "python3"
    command = [sys.executable, *made["command"][1:]]
    return Process("moto", command, world.folder / "moto.log", variables), f"http://127.0.0.1:{port}"


def start_kwok(world: World) -> Process:
    """Runs kwok with the arguments and the rights of its pod."""
    token = world.control_plane.kubectl.output("create", "token", "kwok", "--namespace", NAME).strip()
    kubeconfig = world.control_plane.kubeconfig_of("local-kwok", world.kube, token)
    program = Path(os.environ["EBBTIDE_CONTROL_PLANE"]) / "kwok"
    made = container(world, "kwok")
    config = world.folder / "kwok.yaml"
    path = f"/api/v1/namespaces/{NAME}/configmaps/kwok"
    config.write_text(eventually("kwok's ConfigMap is there", lambda: world.kube.get(path))["data"]["kwok.yaml"])
    assert f"--config={made['volumeMounts'][0]['mountPath']}/{config.name}" == made["args"][0]
    here = [f"--kubeconfig={kubeconfig}", f"--server-address=127.0.0.1:{free_port()}", f"--config={config}"]
    return Process(
        "kwok", [str(program), *here, *made["args"][1:]], world.folder / "kwok.log", {"HOME": str(world.folder)}
    )


def start_service(world: World, release: Release, endpoint: str) -> None:
    """Runs Ebbtide like the release's pods, with AWS at `endpoint`, and lets `kubectl exec` run commands likewise."""
    eventually("the release's pods run", lambda: [pod for pod in release.pods() if pod["status"]["phase"] == "Running"])
    variables = release.variables()
    assert variables["AWS_ENDPOINT_URL"] == "http://moto:5000"
    assert variables["EBBTIDE_QUEUE_URL"].startswith("http://moto:5000/")
    given = {"AWS_ENDPOINT_URL": endpoint}
    world.installed_service(release, given=given)
    kubeconfig = world.control_plane.kubeconfig_of(NAME, world.kube, release.token())
    words = [f"{key}={value}" for key, value in (variables | given | {"KUBECONFIG": str(kubeconfig)}).items()]
    written = world.folder / "inside.part"
    written.write_text(f'exec env -i {shlex.join([*words, str(world.binary)])} "$@"\n')
    written.rename(inside(world))


def test_the_quick_start_drains_a_simulated_node_and_leaves_nothing(world: World) -> None:
    bystander = world.node()  # where the parts' pods run
    release = Release("helm4", NAME, world.control_plane, world.folder)
    with ExitStack() as stack:
        log = world.folder / "run.log"
        command = [str(EXAMPLE / "run"), "--yes", "--image", "registry.example/you/ebbtide:of-this-test"]
        running = Process("run", command, log, environment(world))
        stack.callback(running.stop)

        moto, endpoint = start_moto(world)
        stack.callback(moto.stop)
        kwok = start_kwok(world)
        stack.callback(kwok.stop)
        stack.enter_context(no_trace_after(world))  # needs kwok, which ends the pods
        eventually("the release is installed", lambda: world.kube.find(f"{DEPLOYMENTS}/{NAME}"))
        start_service(world, release, endpoint)

        assert running.wait(180) == 0, log.read_text()
        said = log.read_text()
        assert f"Cluster: context {CONTEXT}, {world.kube.url}" in said
        pod = release.pods()[0]["spec"]["containers"][0]
        assert pod["image"] == "registry.example/you/ebbtide:of-this-test"

        # The drain, as the script has seen it and as the API server has it.
        seen = re.findall(r"^ *\d+ s  (.*)$", said, re.MULTILINE)
        assert seen[-1] == f"{NAME}-1 is cordoned, Drained; pods: 0 on {NAME}-1, 3 on {NAME}-2", seen
        assert world.audit.evicted(NAME).total() == 3, "not each pod was evicted once"
        assert f"node/{NAME}-1" in said.split("--- 5.")[1], "no Event is shown"
        cordoned = [node["metadata"]["name"] for node in world.kube.items(NODES) if node["spec"].get("unschedulable")]
        assert cordoned == [f"{NAME}-1"]
        assert world.see(bystander)["metadata"].get("annotations", {}).keys() <= {"kwok.x-k8s.io/node"}

        # kwok has the rights that it needs, and no others.
        kwok_user = f"system:serviceaccount:{NAME}:kwok"
        used = {(each.verb, each.resource) for each in world.audit.requests() if each.user == kwok_user}
        (rules,) = (each["rules"] for each in parts() if each["kind"] == "ClusterRole")
        granted = {pair for rule in rules for pair in itertools.product(rule["verbs"], rule["resources"])}
        used = {(verb, resource) for verb, resource in used if not resource.startswith("/")}
        assert granted == used | {("update", "leases")}, sorted(used)  # the renewal, after ten seconds

        world.services[0].terminate()
        deleted = script(world, "--delete", "--yes")
        assert deleted.returncode == 0, deleted.stderr
        eventually("nothing is left", lambda: not leftovers(world))


@pytest.mark.parametrize("arguments", [(), ("--delete",)], ids=["install", "delete"])
def test_without_a_yes_nothing_changes(world: World, arguments: tuple[str, ...]) -> None:
    refused = script(world, *arguments)
    assert refused.returncode == 1
    assert f"Cluster: context {CONTEXT}, {world.kube.url}" in refused.stdout
    assert "nothing was changed" in refused.stderr
    changes = [request for request in world.audit.requests() if request.user == "admin" and NAME in request.uri]
    assert not [str(request) for request in changes if request.verb not in ("get", "list", "watch")]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--context", "another", "--yes"), "another"),
        (("--image", "no-tag"), "--image needs a tag"),
        (("--image", "here:5000/no-tag"), "--image needs a tag"),
        (("--never",), "unknown argument --never"),
    ],
    ids=["context", "image", "port", "unknown"],
)
def test_a_wrong_argument(world: World, arguments: tuple[str, ...], told: str) -> None:
    refused = script(world, *arguments)
    assert refused.returncode != 0
    assert told in refused.stderr
    assert not leftovers(world)


def test_the_parts_have_the_versions_of_the_tests() -> None:
    deployments = {each["metadata"]["name"]: each["spec"] for each in parts() if each["kind"] == "Deployment"}
    images = {name: each["template"]["spec"]["containers"][0]["image"] for name, each in deployments.items()}
    here = Path(__file__).parent
    (moto,) = re.findall(r"^moto==([\w.]+)", (here / "requirements.txt").read_text(), re.MULTILINE)
    (kwok,) = re.findall(r"sigs\.k8s\.io/kwok (v\S+)", (here / "control-plane" / "kwok" / "go.mod").read_text())
    assert images == {"moto": f"docker.io/motoserver/moto:{moto}", "kwok": f"registry.k8s.io/kwok/kwok:{kwok}"}
