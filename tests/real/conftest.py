"""Fixtures: the real parts once for each run, a world for each test, and a report for each failure."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType

import cfn_template
import pytest

from harness import control_plane, report
from harness.aws import Aws
from harness.control_plane import ControlPlane
from harness.elasticmq import ElasticMq
from harness.queues import Queues
from harness.world import World

collect_ignore = [] if "EBBTIDE_KIND" in os.environ else ["test_kind.py"]
"""Tests that need a cluster of kind, which on-kind creates."""


def pytest_configure() -> None:
    """Treats SIGTERM like ctrl-C, so that fixtures stop all processes; and ctrl-C itself, which a shell ignores for what it starts in
    the background, and with it all that the tests start."""

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Folder of the run's state and logs; kept if a test fails."""
    made = Path(tempfile.mkdtemp(prefix="ebbtide-real-"))
    yield made
    if request.session.testsfailed:
        print(f"\nlogs are kept in {made}")
    else:
        shutil.rmtree(made)


@pytest.fixture(scope="session")
def real_control_plane(folder: Path) -> Iterator[ControlPlane]:
    """Control plane of all tests."""
    home = folder / "control-plane"
    home.mkdir()
    programs, kubectl = (Path(os.environ[name]) for name in ("EBBTIDE_CONTROL_PLANE", "EBBTIDE_KUBECTL"))
    running = control_plane.start(programs, kubectl, home)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def aws(folder: Path) -> Iterator[Aws]:
    """moto for all tests."""
    running = Aws(folder)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def elasticmq(folder: Path) -> Iterator[ElasticMq]:
    """ElasticMQ for all tests that use it."""
    running = ElasticMq(Path(os.environ["EBBTIDE_ELASTICMQ"]), folder)
    yield running
    running.stop()


@pytest.fixture
def queues(request: pytest.FixtureRequest, aws: Aws) -> Queues:
    """Implementation of SQS for a test: moto, or both one after the other with the mark `both_queues`."""
    queues: Queues = request.getfixturevalue("elasticmq") if getattr(request, "param", "") == "elasticmq" else aws
    return queues


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs the tests with the mark `both_queues` on moto and on ElasticMQ; the latter is slow but for `quick=True`."""
    mark = metafunc.definition.get_closest_marker("both_queues")
    if mark:
        slow = () if mark.kwargs.get("quick") else pytest.mark.slow
        metafunc.parametrize("queues", ["moto", pytest.param("elasticmq", marks=slow)], indirect=True)


@pytest.fixture
def world(
    request: pytest.FixtureRequest, folder: Path, real_control_plane: ControlPlane, aws: Aws, queues: Queues
) -> Iterator[World]:
    """A test's world. Every test fails if the service made a call that its permissions do not allow."""
    title = re.sub(r"\b(moto|elasticmq)\b", "", request.node.name.removeprefix("test_").lower())
    if queues is not aws:
        title = f"mq-{title}"
    name = re.sub(r"[^a-z0-9]+", "-", title).strip("-")
    if len(name) > 40:
        # Names of tests that differ only at the end stay apart.
        name = f"{name[:33].rstrip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
    home = folder / name
    home.mkdir()
    made = World(name, real_control_plane, aws, Path(os.environ["EBBTIDE_BIN"]), home, queues)
    yield made
    forbidden = [each for each in made.audit.forbidden() if not (made.refused_by and made.refused_by in each.said)]
    unpermitted = cfn_template.not_permitted({call.action for call in made.recorder.calls()}, made.parameters)
    made.close()
    assert not forbidden, "the API server denied the service: " + "; ".join(map(str, forbidden))
    assert not unpermitted, f"the policy of deploy/aws does not permit {unpermitted}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the report to a failure before the world is torn down."""
    result = yield
    world = getattr(item, "funcargs", {}).get("world")
    if result.failed and call.when == "call" and world is not None:
        result.sections.append(("the world", report.of(world)))
    return result
