"""Users' kubeconfigs: a program that prints credentials, like EKS's, and mistakes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from harness import kubeconfigs, messages
from harness.kubeconfigs import Program
from harness.wait import eventually
from harness.world import World, drained


def commands(world: World) -> list[tuple[str, ...]]:
    """Returns each command that calls the API server."""
    node = world.node().name
    queue = ("--queue-url", world.queue_url)
    return [
        ("simulate", "--kind", "spot", "--node", node),
        ("send", "--yes", "--kind", "spot", "--node", node, *queue),
        ("doctor", *queue),
    ]


def test_each_command_runs_the_credentials_program_once(world: World) -> None:
    program = Program(world, lasts=timedelta(hours=1))
    for number, command in enumerate(commands(world), 1):
        said = world.ask_with({"KUBECONFIG": str(program.kubeconfig)}, *command)
        # This error shows that the API server answered: the Node exists.
        answer = {
            "simulate": "created as AWS would send it",
            "send": "does not allow tests",
            "doctor": "ok        permissions api-server",
        }[command[0]]
        assert answer in said.stdout + said.stderr, said
        assert program.runs == number, command


def test_an_expiring_token_is_renewed_during_the_work(world: World) -> None:
    node = world.node()
    world.run("web", on=node)
    # The token always expires soon, so each call may renew it.
    program = Program(world, lasts=timedelta(seconds=50))
    service = world.service_with(
        {
            "KUBECONFIG": str(program.kubeconfig),
            "EBBTIDE_QUEUE_URL": world.queue_url,
            "AWS_ENDPOINT_URL": world.recorder.url,
            "EBBTIDE_CHECK_AT_START": "false",
        }
    )
    world.send(messages.spot_warning(node.instance))
    eventually("the node is drained", lambda: drained(world, node))
    eventually("the message is deleted", world.acknowledged)
    eventually("the service is at rest", service.at_rest)
    assert program.runs > 1


@pytest.mark.parametrize(
    ("user", "sentence"),
    [
        pytest.param(
            kubeconfigs.by_program("no-such-aws", "eks", "get-token"),
            "the kubeconfig's program `no-such-aws` is not on PATH; install it",
            id="missing",
        ),
        pytest.param(
            kubeconfigs.by_program("sh", "-c", "echo WORD; echo Token has expired >&2; exit 255"),
            "the kubeconfig's program `sh` ended with 255: Token has expired; run it yourself to see why",
            id="failing",
        ),
    ],
)
def test_a_failing_program_is_named(world: World, user: dict[str, object], sentence: str) -> None:
    kubeconfig = kubeconfigs.of(world, "nothing", user=user)
    for command in commands(world)[:2]:
        said = world.ask_with({"KUBECONFIG": str(kubeconfig)}, *command)
        assert (said.returncode, said.stdout, said.stderr) == (1, "", f"ebbtide: {sentence}\n")


def broken(world: World) -> Path:
    """Writes a kubeconfig with a mistake in the line below its token; returns its path."""
    file = world.folder / "broken.kubeconfig"
    file.write_text(f"users:\n- name: me\n  user:\n    token: {kubeconfigs.token(world)}\n   wrong\n")
    return file


def test_errors_about_a_kubeconfig_hide_its_token(world: World) -> None:
    file = broken(world)
    sentence = f"the kubeconfig {file} can't be read: line 5, column "
    for command in [*commands(world), ("run", "--queue-url", world.queue_url)]:
        # The service must not fall back to the cluster of its pod.
        in_a_pod = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
        said = world.ask_with({"KUBECONFIG": str(file), **in_a_pod}, *command)
        assert said.returncode == 1
        assert kubeconfigs.token(world) not in said.stdout + said.stderr, command
        if command[0] == "doctor":
            assert "failure   permissions settings" in said.stdout
            assert "ok        queue exists" in said.stdout, "AWS was not checked"
        else:
            assert said.stderr.startswith(f"ebbtide: {sentence}"), said.stderr


def test_the_cluster_is_checked_without_a_region(world: World) -> None:
    said = world.ask_with({"AWS_REGION": ""}, "doctor", "--queue-url", world.queue_url)
    assert said.returncode == 1
    assert "failure   credentials settings" in said.stdout, said.stdout
    assert "AWS's region is not known." in said.stdout
    assert "ok        permissions api-server" in said.stdout
    said = world.ask_with({"https_proxy": "nowhere:x"}, "doctor", "--queue-url", world.queue_url)
    assert "https_proxy names no proxy." in said.stdout
    assert "ok        permissions api-server" in said.stdout
