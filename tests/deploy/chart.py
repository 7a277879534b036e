"""The chart and its tools: the output of `helm template` for some values, as text and as objects."""

from __future__ import annotations

import difflib
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
DEFAULTS = VALUES / "defaults.yaml"

OLDEST = "1.27.0"
"""Oldest version of Kubernetes that the chart supports."""

REPOSITORY = HERE / "repository.yaml"
"""Values with an image repository, which other values may change."""

KUBERNETES = "1.34.0"
"""Default version of Kubernetes in these tests."""

Object = dict[str, Any]


@functools.cache
def tool(name: str) -> str:
    """Returns the path of a program of tools.txt, which the first call builds."""
    return _last_line(str(HERE / "tool"), name)


@functools.cache
def source(name: str) -> Path:
    """Returns the folder of the source of a module of tools.txt."""
    return Path(_last_line(str(HERE / "tool"), "--source", name))


def _last_line(*command: str) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1]


def run(*command: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a program; returns the finished process, whatever its exit code."""
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=120, check=False)


@dataclass(frozen=True)
class Helm:
    """One version of helm."""

    name: str

    def run(self, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """Runs helm; returns the finished process, whatever its exit code."""
        return run(tool(self.name), *arguments, given=given)

    def template(
        self, *arguments: str, values: str = "", kubernetes: str = KUBERNETES, chart: Path = CHART, release: str = "ebbtide"
    ) -> str:
        """Returns the chart's output for values, given as YAML, and arguments; the image is REPOSITORY's."""
        done = self.try_template(*arguments, values=values, kubernetes=kubernetes, chart=chart, release=release)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def try_template(
        self, *arguments: str, values: str = "", kubernetes: str = KUBERNETES, chart: Path = CHART, release: str = "ebbtide"
    ) -> subprocess.CompletedProcess[str]:
        """Runs `helm template`, which may refuse the values; returns the finished process."""
        common = ["template", release, str(chart), "--namespace", "ebbtide", "--kube-version", kubernetes]
        return self.run(*common, "--values", str(REPOSITORY), "--values", "-", *arguments, given=values)

    def objects(self, *arguments: str, values: str = "", chart: Path = CHART) -> list[Object]:
        """Returns the chart's output as objects."""
        return parse(self.template(*arguments, values=values, chart=chart))


def next_version(folder: Path) -> Path:
    """Copies the chart with the next version number; returns the copy's path."""
    chart = folder / "next" / CHART.name
    shutil.copytree(CHART, chart)
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(yaml.safe_dump({**about, "version": "99.0.0", "appVersion": "99.0.1"}))
    return chart


HELM3 = Helm("helm3")
HELM4 = Helm("helm4")


def parse(text: str) -> list[Object]:
    """Returns the objects of a YAML stream."""
    return [each for each in yaml.safe_load_all(text) if each]


PARTS = ("agent", "settings", "notifications", "pods", "names", "network", "watching")
"""The cases that set every value together, each other than its default."""


def cases() -> list[Path]:
    """Returns the files of values."""
    return sorted(VALUES.glob("*.yaml"))


def with_snapshot() -> list[Path]:
    """Returns the files of values that have a snapshot: not those whose objects are mostly the files of the chart."""
    return [case for case in cases() if case.stem != "watching"]


def everything() -> Object:
    """Returns the values of all PARTS."""
    values: Object = {}
    for part in PARTS:
        values |= yaml.safe_load((VALUES / f"{part}.yaml").read_text())
    return values


def snapshot(case: Path) -> Path:
    """Returns the path of the snapshot for a file of values."""
    return SNAPSHOTS / (case.name if case == DEFAULTS else f"{case.stem}.diff")


def shown(case: Path, chart: Path = CHART) -> str:
    """Returns what the snapshot has: the objects for the default values, and for others what differs from these."""
    made = HELM4.template(values=case.read_text(), chart=chart)
    if case == DEFAULTS:
        return made
    before = HELM4.template(values=DEFAULTS.read_text(), chart=chart).splitlines()
    lines = [each.rstrip() for each in difflib.unified_diff(before, made.splitlines(), n=2, lineterm="")]
    # Line numbers would change with each line above.
    return "".join(f"{'@@' if each.startswith('@@') else each}\n" for each in lines[2:])


def readme() -> str:
    """Returns the generated README of the chart."""
    done = run(tool("helm-docs"), "-c", str(CHART), "--dry-run", "--sort-values-order", "file", "--log-level", "error")
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n") + "\n"


def policies() -> dict[str, Object]:
    """Returns the specs of the chart's admission policies, by what they are for."""
    objects = HELM4.objects(values="settings: {source: [nodes], surge: 5m}\nagent: {enabled: true}\n")
    made = (each for each in objects if each["kind"] == "ValidatingAdmissionPolicy")
    return {each["metadata"]["labels"]["ebbtide/policy"]: each["spec"] for each in made}


def the(kind: str, objects: list[Object], name: str = "") -> Object:
    """Returns the only object of a kind, or the one with this name."""
    (found,) = (each for each in objects if each["kind"] == kind and name in ("", each["metadata"]["name"]))
    return found


def container(objects: list[Object]) -> Object:
    """Returns the Deployment's container."""
    (found,) = the("Deployment", objects)["spec"]["template"]["spec"]["containers"]
    return found


def environment(objects: list[Object]) -> dict[str, str]:
    """Returns the container's variables with a literal value."""
    return {each["name"]: each["value"] for each in container(objects)["env"] if "value" in each}


Rules = set[tuple[str, str, str, str]]
"""Permissions: role, verb, resource, and the resource name to which the permission is restricted."""


def rights(objects: list[Object]) -> Rules:
    """Returns every permission that the roles grant."""
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
