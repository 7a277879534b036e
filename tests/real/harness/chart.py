"""The chart as text: what helm renders from values, without a cluster."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

import yaml

from .kube import Object

_ROOT = Path(__file__).parents[3]
CHART = _ROOT / "deploy" / "helm" / "ebbtide"
REPOSITORY = _ROOT / "tests" / "deploy" / "repository.yaml"
VALUES = _ROOT / "tests" / "deploy" / "values"
"""Folder of the values of the tests of the chart."""
_TOOL = _ROOT / "tests" / "deploy" / "tool"
TIMEOUT = 300.0


@functools.cache
def tool(*arguments: str) -> str:
    """Returns the path of a tool of tests/deploy. The first call builds it, which takes minutes."""
    return subprocess.run([str(_TOOL), *arguments], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def rendered(values: Path, name: str = "ebbtide", namespace: str = "default") -> list[Object]:
    """Returns the objects that the chart renders from a file of values, without a cluster."""
    command = [tool("helm4"), "template", name, str(CHART), "--namespace", namespace]
    command += ["--values", str(REPOSITORY), "--values", str(values), "--kube-version", "1.34"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]
