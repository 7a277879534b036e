""".github: updates reach every manifest, and what workflows may do.

And: the oldest Rust that the pages name is the one of Cargo.toml.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest
import yaml

from chart import ROOT, Object

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

# The jobs that may write or sign, and what. All others read.
WRITES = {
    ("codeql", "analyze"): {"security-events"},
    ("release", "publish"): {"attestations", "contents", "id-token", "packages"},
    # Scorecard's own page takes only results that the workflow signs.
    ("scorecard", "scorecard"): {"id-token", "security-events"},
}
PINNED = re.compile(r"uses: (\./|[\w-]+(/[\w-]+)+@[0-9a-f]{40} # v\d+(\.\d+)*$)")
INSTALLS = re.compile(
    r"\b(apt|apt-get|brew|buildah|cargo|curl|gem|go|npm|npx|pip|pip3|pipx|python3?|rustup|sudo|wget)\b"
    r"|\bdocker (build|buildx|pull|run)\b|tests/|\.ci/|deploy/image/build"
)
"""What brings in programs of others, or runs them."""

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
    assert not missed, "add these to .github/dependabot.yml: " + ", ".join(
        f"{kind} {folder}" for kind, folder in missed
    )


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


# --- Workflows ------------------------------------------------------------------------------------------------------


def jobs() -> Iterator[tuple[str, str, Object]]:
    """Yields the workflow, the name and the content of every job."""
    for path in WORKFLOWS:
        for name, job in yaml.safe_load(path.read_text())["jobs"].items():
            yield path.stem, name, job


def writes(job: Object) -> set[str]:
    """Returns what the job may write."""
    return {what for what, level in job["permissions"].items() if level == "write"}


def test_actions_are_pinned_by_commit() -> None:
    """A tag of another repository can move; a commit can't."""
    for path in WORKFLOWS:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.match(r"^[^#]*\buses:", line):
                assert PINNED.search(line), f"{path.name}:{number}: not a commit, with the version in a comment"


def test_each_action_has_one_version() -> None:
    found: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        for action, commit in re.findall(r"uses: ([\w-]+/[\w-]+)[\w/-]*@(.*)", path.read_text()):
            found.setdefault(action, set()).add(commit)
    assert not {action: commits for action, commits in found.items() if len(commits) > 1}


def test_workflows_have_no_rights_and_jobs_only_those_that_they_list() -> None:
    for path in WORKFLOWS:
        assert yaml.safe_load(path.read_text())["permissions"] == {}, path.name
    found = {}
    for workflow, name, job in jobs():
        assert set(job["permissions"].values()) <= {"read", "write"}, f"{workflow}: {name}"
        if writes(job):
            found[workflow, name] = writes(job)
    assert found == WRITES


def test_a_job_that_can_write_or_sign_installs_nothing() -> None:
    for workflow, name, job in jobs():
        for step in job.get("steps", []) if writes(job) else []:
            installs = INSTALLS.search(re.sub(r"#.*", "", step.get("run", "")))
            assert not installs, f"{workflow}: {name}: {installs and installs[0]}"
            assert "cache" not in step.get("uses", ""), f"{workflow}: {name}: other jobs write the cache"


def test_only_a_protected_environment_publishes() -> None:
    for workflow, name, job in jobs():
        publishes = bool(writes(job) & {"attestations", "contents", "packages"})
        assert (job.get("environment") == "release") == publishes, f"{workflow}: {name}"


def test_the_release_publishes_the_files_of_the_jobs_that_made_them() -> None:
    """Any job of the run can replace an artifact, such as the one that runs linters."""
    every = {name: job for workflow, name, job in jobs() if workflow == "release"}
    assert {"tests", "checks", "pack"} <= set(every["publish"]["needs"])
    compared = {}
    for name in ("pack", "publish"):
        steps = every[name]["steps"]
        (download,) = (at for at, step in enumerate(steps) if "download-artifact" in step.get("uses", ""))
        compare = steps[download + 1]
        # Each line compares a folder with an output of another job.
        lines = [re.fullmatch(r'deploy/release/sums (\S+) "\$(\w+)"', line) for line in compare["run"].splitlines()]
        compared[name] = {line[1]: compare["env"][line[2]] for line in lines if line}
        assert len(compared[name]) == len(lines) == len(compare["env"])
        assert all(re.fullmatch(r"\$\{\{ needs\.[\w.-]+ \}\}", value) for value in compared[name].values())
    assert compared["publish"] == {"release": "${{ needs.pack.outputs.sums }}"}
    made = {
        step["with"]["name"]
        for name in every["pack"]["needs"]
        for step in every[name]["steps"]
        if "upload-artifact" in step.get("uses", "")
    }
    made.remove("${{ matrix.part }}-${{ matrix.architecture }}")
    matrix = every["program"]["strategy"]["matrix"]
    made |= {f"{part}-{architecture}" for part in matrix["part"] for architecture in matrix["architecture"]}
    assert set(compared["pack"]) == {f"artifacts/{name}" for name in made}


def test_scripts_get_values_as_variables() -> None:
    """An expression is pasted into the script: a branch's name could be a command."""
    for workflow, name, job in jobs():
        for step in job.get("steps", []):
            assert "${{" not in step.get("run", ""), f"{workflow}: {name}"


# --- Packages -------------------------------------------------------------------------------------------------------


def test_python_packages_have_hashes() -> None:
    found = 0
    for path in (path for path in tracked() if path.suffix == ".txt"):
        for package in re.findall(r"^[A-Za-z0-9][\w.-]*==(?:.*\\\n)*.*$", (ROOT / path).read_text(), re.MULTILINE):
            found += 1
            assert "--hash=sha256:" in package, f"{path}: {package}"
    assert found > 150


def test_pip_requires_hashes() -> None:
    found = 0
    for path in tracked():
        if path.suffix not in ("", ".sh", ".yml") or path.parts[0] == "docs":
            continue
        for line in (ROOT / path).read_text(errors="replace").splitlines():
            if re.search(r"\bpip3?\"? (install|download)\b", line) and not line.lstrip().startswith("#"):
                found += 1
                assert "--require-hashes" in line, f"{path}: {line}"
    assert found > 1


@pytest.mark.parametrize(
    ("reachable", "required", "passes"), [(False, True, False), (False, False, True), (True, True, True)]
)
def test_advisories_must_be_readable_where_a_release_starts(reachable: bool, required: bool, passes: bool) -> None:
    """A release must not leave them out."""
    for workflow in ("ci", "weekly"):
        assert (
            yaml.safe_load((ROOT / f".github/workflows/{workflow}.yml").read_text())["env"]["EBBTIDE_ADVISORIES"]
            == "required"
        )
    (function,) = re.findall(r"^dependencies\(\) \{\n.*?^\}$", (ROOT / ".ci/run").read_text(), re.MULTILINE | re.DOTALL)
    deny = f'deny() {{ [[ "$*" != *"fetch db"* ]] || return {0 if reachable else 1}; }}'
    stand_ins = f"features() {{ :; }}; cargo_tool() {{ echo deny; }}; {deny}; deny_version=1"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"{stand_ins}\n{function}\ndependencies"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "EBBTIDE_ADVISORIES": "required" if required else ""},
    )
    assert (done.returncode == 0) == passes, done.stdout + done.stderr
    assert ("NOT CHECKED" in done.stdout) == (not reachable)
