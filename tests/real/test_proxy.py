"""A cluster that reaches AWS only through a proxy, and an API server behind a proxy."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from harness import kubeconfigs, messages
from harness.proxy import WORD, Proxy
from harness.queues import REGION
from harness.wait import eventually
from harness.world import World, drained


def test_all_aws_calls_use_the_proxy(world: World) -> None:
    node = world.node()
    world.run("web", on=node)
    proxy = Proxy(world.recorder, world.folder / "proxy")
    try:
        variables = {
            "EBBTIDE_QUEUE_URL": f"https://sqs.{REGION}.amazonaws.com{urlsplit(world.queue_url).path}",
            "HTTPS_PROXY": proxy.url,
            "SSL_CERT_FILE": str(proxy.authority),
            # The API server is on this machine.
            "NO_PROXY": "127.0.0.1",
            # The agent for credentials is on the node, which no proxy reaches.
            "HTTP_PROXY": proxy.url,
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": proxy.credentials_url,
            "AWS_ACCESS_KEY_ID": "",
            "AWS_SECRET_ACCESS_KEY": "",
            # The queue's URL names the region.
            "AWS_REGION": "",
        }
        services = ("autoscaling", "ec2", "events", "sqs", "sts")
        tunnels = {f"{name}.{REGION}.amazonaws.com:443" for name in services}
        # The start-up checks call every endpoint.
        service = world.checked_service(lambda: world.service_with(variables), lambda _: tunnels <= set(proxy.tunnels))
        action = world.hold(node.instance, heartbeat_timeout=60)
        world.send(messages.terminate_action(action))
        eventually("the node is drained", lambda: drained(world, node))
        eventually("the hook is completed", lambda: world.completions(action) == ["CONTINUE"])
        eventually("the message is deleted", world.acknowledged)
        eventually("the service is at rest", service.at_rest)
        assert set(proxy.tunnels) == tunnels
        assert set(proxy.plain) == {"/credentials"}
        assert WORD not in service.process.log.read_text()
    finally:
        proxy.stop()


def test_the_proxy_of_the_kubeconfig_is_used(world: World) -> None:
    node = world.node()
    proxy = Proxy(world.recorder, world.folder / "proxy")
    try:
        kubeconfig = kubeconfigs.of(world, "own-proxy", cluster={"proxy-url": proxy.url})
        variables = {
            "KUBECONFIG": str(kubeconfig),
            # Neither applies to a cluster with its own proxy, and kube's own client can't parse the second.
            "HTTPS_PROXY": "http://nowhere.invalid:3128",
            "NO_PROXY": "127.0.0.1,localhost,",
        }
        said = world.ask_with(variables, "simulate", "--kind", "spot", "--node", node.name)
        assert (said.returncode, said.stderr) == (0, "")
        assert set(proxy.tunnels) == {urlsplit(world.kube.url).netloc}
    finally:
        proxy.stop()


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        pytest.param(
            "HTTPS_PROXY",
            "socks5://user:word@proxy.example",
            "HTTPS_PROXY names no proxy; write it as http://HOST:PORT",
            id="proxy",
        ),
        pytest.param(
            "AWS_ENDPOINT_URL_SQS",
            "",
            "AWS_ENDPOINT_URL_SQS names no endpoint; write it as https://HOST",
            id="endpoint",
        ),
    ],
)
def test_invalid_urls_are_refused(world: World, variable: str, value: str, sentence: str) -> None:
    said = world.ask_with({variable: value}, "run", "--queue-url", world.queue_url)
    assert said.returncode == 1
    assert sentence in said.stderr
    assert "word" not in said.stderr + said.stdout
