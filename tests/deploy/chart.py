"""The chart, and the tools that read it: what `helm template` makes of values, as text and as objects."""

from __future__ import annotations

import functools
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CHART = ROOT / "deploy" / "helm" / "ebbtide"
VALUES = HERE / "values"
SNAPSHOTS = HERE / "snapshots"

OLDEST = "1.27.0"
"""The oldest Kubernetes that the chart takes."""

KUBERNETES = "1.34.0"
"""The Kubernetes that it is shown."""

Object = dict[str, Any]


@functools.cache
def tool(name: str) -> str:
    """Where a program of tools.txt is, built if need be."""
    return _last_line(str(HERE / "tool"), name)


@functools.cache
def source(name: str) -> Path:
    """Where the source of a module of tools.txt is."""
    return Path(_last_line(str(HERE / "tool"), "--source", name))


def _last_line(*command: str) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1]


def run(*command: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a program, whatever its exit code."""
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=120, check=False)


@dataclass(frozen=True)
class Helm:
    """One version of helm."""

    name: str

    def run(self, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """Runs it, whatever its exit code."""
        return run(tool(self.name), *arguments, given=given)

    def template(self, *arguments: str, values: str = "", kubernetes: str = KUBERNETES, chart: Path = CHART) -> str:
        """What the chart makes of values, given as YAML, and arguments."""
        done = self.try_template(*arguments, values=values, kubernetes=kubernetes, chart=chart)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def try_template(
        self, *arguments: str, values: str = "", kubernetes: str = KUBERNETES, chart: Path = CHART
    ) -> subprocess.CompletedProcess[str]:
        """The same, where it may be refused."""
        common = ["template", "ebbtide", str(chart), "--namespace", "ebbtide", "--kube-version", kubernetes]
        return self.run(*common, "--values", "-", *arguments, given=values)

    def objects(self, *arguments: str, values: str = "", chart: Path = CHART) -> list[Object]:
        """What the chart makes, as objects."""
        return parse(self.template(*arguments, values=values, chart=chart))


def next_version(folder: Path) -> Path:
    """A copy of the chart, as its next release will be where nothing else changes."""
    chart = folder / "next" / CHART.name
    shutil.copytree(CHART, chart)
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(yaml.safe_dump({**about, "version": "99.0.0", "appVersion": "99.0.1"}))
    return chart


HELM3 = Helm("helm3")
HELM4 = Helm("helm4")


def parse(text: str) -> list[Object]:
    """The objects in a text of several."""
    return [each for each in yaml.safe_load_all(text) if each]


def cases() -> list[Path]:
    """The files of values that have a snapshot."""
    return sorted(VALUES.glob("*.yaml"))


def snapshot(case: Path) -> Path:
    """Where the snapshot for a file of values is."""
    return SNAPSHOTS / case.name


def readme() -> str:
    """The chart's README, made anew."""
    done = run(tool("helm-docs"), "-c", str(CHART), "--dry-run", "--sort-values-order", "file", "--log-level", "error")
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n") + "\n"


def the(kind: str, objects: list[Object], name: str = "") -> Object:
    """The one object of a kind; where there are several, of that name."""
    (found,) = (each for each in objects if each["kind"] == kind and name in ("", each["metadata"]["name"]))
    return found


def container(objects: list[Object]) -> Object:
    """The Deployment's container."""
    (found,) = the("Deployment", objects)["spec"]["template"]["spec"]["containers"]
    return found


def environment(objects: list[Object]) -> dict[str, str]:
    """The container's variables that have a value of their own."""
    return {each["name"]: each["value"] for each in container(objects)["env"] if "value" in each}


Rules = set[tuple[str, str, str, str]]
"""Rights, one by one: role, verb, resource, and the name that it is restricted to."""


def rights(objects: list[Object]) -> Rules:
    """Every single right that roles give."""
    return {
        (_where(role), verb, resource, name)
        for role in objects
        if role["kind"] in ("ClusterRole", "Role")
        for rule in role["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
    }


def _where(role: Object) -> str:
    return role["metadata"].get("namespace", "") if role["kind"] == "Role" else ""
