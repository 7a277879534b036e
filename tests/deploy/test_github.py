""".github: updates reach every manifest. And: the oldest Rust that the pages name is the one of Cargo.toml."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import PurePosixPath

import yaml

from chart import ROOT

# The ecosystem that dependabot.yml needs for a manifest of this name.
ECOSYSTEMS = {
    "Cargo.toml": "cargo",
    "Dockerfile": "docker",
    "go.mod": "gomod",
    "package.json": "npm",
    "pom.xml": "maven",
    "pyproject.toml": "pip",
}
PACKAGE = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*==", re.MULTILINE)
"""A line of a file that pip reads, whatever the file's name is."""


def tracked() -> list[PurePosixPath]:
    """Returns the files of the repository, new ones included."""
    listed = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, check=True, stdout=subprocess.PIPE, text=True).stdout.split("\0")
    return [PurePosixPath(name) for name in names if name and (ROOT / name).is_file()]


def manifests() -> set[tuple[str, str]]:
    """Returns the ecosystem and the directory of every manifest that needs an entry of its own."""
    found = set()
    members = set(tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["members"])
    for path in tracked():
        folder = str(path.parent)
        if path.name == "Cargo.toml" and folder in members:
            continue  # The entry of the workspace updates its members.
        ecosystem = ECOSYSTEMS.get(path.name)
        if path.suffix == ".txt" and PACKAGE.search((ROOT / path).read_text()):
            ecosystem = "pip"
        if path.parts[:2] == (".github", "workflows"):
            ecosystem, folder = "github-actions", "."  # Dependabot takes / for the workflows.
        if ecosystem:
            found.add((ecosystem, "/" if folder == "." else f"/{folder}"))
    return found


def entries() -> set[tuple[str, str]]:
    """Returns the ecosystem and the directory of every entry, or the pattern of its directories."""
    updates = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())["updates"]
    return {
        (each["package-ecosystem"], directory)
        for each in updates
        for directory in each.get("directories", [each.get("directory")])
    }


def covers(entry: tuple[str, str], manifest: tuple[str, str]) -> bool:
    """Returns whether the entry updates the manifest."""
    return entry[0] == manifest[0] and PurePosixPath(manifest[1]).match(entry[1])


def test_dependabot_knows_every_manifest() -> None:
    missed = [each for each in sorted(manifests()) if not any(covers(entry, each) for entry in entries())]
    assert not missed, "add these to .github/dependabot.yml: " + ", ".join(f"{kind} {folder}" for kind, folder in missed)


def test_every_directory_of_dependabot_has_a_manifest() -> None:
    stale = [each for each in sorted(entries()) if not any(covers(each, manifest) for manifest in manifests())]
    assert not stale, "nothing to update there: " + ", ".join(f"{kind} {folder}" for kind, folder in stale)


def test_pages_name_the_oldest_rust_that_is_tested() -> None:
    oldest = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["rust-version"]
    for page, times in [("README.md", 2), ("CONTRIBUTING.md", 1)]:
        named = re.findall(r"Rust (\d+\.\d+(?:\.\d+)?) or newer", (ROOT / page).read_text())
        assert named == times * [oldest], f"{page}: .ci/minimum tests the rust-version of Cargo.toml, {oldest}"


def test_the_base_image_has_a_name_that_dependabot_reads() -> None:
    bases = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("FROM ")]
    assert len(bases) == 3
    assert not [line for line in bases if "${" in line], "Dependabot does not resolve an ARG"
