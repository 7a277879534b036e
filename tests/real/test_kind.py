"""examples/trial on kind, with real kubelets and containers. Never run yet; on-kind and a weekly workflow run it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import kind
from harness.aws import Aws
from test_trial import as_on_aws, cli, left, of, rows, start


@pytest.fixture
def world(folder: Path, aws: Aws) -> Iterator[kind.KindWorld]:
    """A world on the cluster of on-kind, which is deleted after the test."""
    kubeconfig, kubectl = (Path(os.environ[name]) for name in ("EBBTIDE_KIND", "EBBTIDE_KUBECTL"))
    cluster = kind.connect(kubeconfig, kubectl, folder)
    made = kind.KindWorld("kind", cluster, aws, Path(os.environ["EBBTIDE_BIN"]), folder)
    yield made
    for service in made.services:
        service.kill()


def test_the_trial_on_real_kubelets(world: kind.KindWorld) -> None:
    world.aws.rule("kind", {"source": [{"prefix": "aws."}]}, world.queues.queue_arn(world.queue))
    trial = kind.KindAws(world, whole=True)
    world.service()
    with cli(world, trial) as user:
        script = start(world, user, *of(world, trial))
        code = script.wait(2400)
    log = script.log.read_text()
    print(log)
    assert code == 0
    found = rows(log)
    assert not [check for check, (result, _) in found.items() if result == "not run" and "Events" not in check]
    as_on_aws(found)
    assert "DrainBlocked" in found["hook: Events"][1], "the budget did not hold a pod back"
    assert not left(world, trial)
