"""deploy/release: one address, what publish refuses and writes, and what the archives hold."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import shutil
import subprocess
import tarfile
import tomllib
from pathlib import Path, PurePosixPath

import pytest
import yaml

from chart import CHART, HELM4, REPOSITORY, ROOT, container, parse, run, shown, snapshot, tool, with_snapshot

NEXT = "9.8.7"
DIGEST = "sha256:" + 64 * "a"
QUEUE = "queueUrl: 'https://sqs.eu-west-1.amazonaws.com/123456789012/q'\n"
HERE = Path("deploy/release")


def git(clone: Path, *command: str) -> str:
    """Runs git in a clone."""
    who = ["-c", "user.name=Nobody", "-c", "user.email=nobody@example.com", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", "-C", clone, *who, *command], check=True, stdout=subprocess.PIPE, text=True).stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Returns a repository with the files of this one, as they are, in one commit on main."""
    clone = tmp_path / "clone"
    listed = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    for name in subprocess.run(listed, check=True, stdout=subprocess.PIPE).stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clone / name)
    git(tmp_path, "init", "--quiet", "--initial-branch", "main", str(clone))
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--message", "All")
    return clone


def publish(clone: Path, *arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs deploy/release/publish of a clone, with programs of a folder before all others."""
    command = [str(clone / HERE / "publish"), *arguments]
    paths = [str(path)] * bool(path) + [os.environ["PATH"]]
    env = {**os.environ, "PATH": ":".join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)


def key(folder: Path, name: str) -> Path:
    """Returns a new SSH key, whose line for deploy/release/signers is beside it."""
    path = folder / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)
    kind, public = path.with_suffix(".pub").read_text().split()[:2]
    path.with_suffix(".signer").write_text(f'{name}@example.com namespaces="git" {kind} {public}\n')
    return path


def put(file: Path, old: str, new: str) -> None:
    """Replaces a text in a file."""
    text = file.read_text()
    assert old in text, f"{file} lacks {old}"
    file.write_text(text.replace(old, new))


def test_each_address_is_the_one_in_cargo_toml() -> None:
    done = run(str(ROOT / HERE / "address.py"), "--check")
    assert (done.returncode, done.stdout) == (0, "")


def test_another_address_is_refused(clone: Path) -> None:
    lines = ["github.com/" + "other/ebbtide", "ghcr.io/" + "other/charts/ebbtide", "docs.ebbtide." + "dev/runbook"]
    for number, line in enumerate(lines, 1):
        (clone / "docs" / "stray.md").write_text("\n" * number + line)
        done = run(str(clone / HERE / "address.py"), "--check")
        assert (done.returncode, f"docs/stray.md:{number + 1}: " in done.stdout) == (1, True), done.stdout


def test_a_new_address_is_written_everywhere(clone: Path) -> None:
    old = tomllib.loads((clone / "Cargo.toml").read_text())["package"]
    done = run(
        str(clone / HERE / "address.py"), "--set", "https://github.com/someone/tides", "registry.example/Someone/"
    )
    assert done.returncode == 0, done.stderr
    for registry, code in [("registry.example/Someone", 0), ("ghcr.io/someone", 1)]:
        done = run(str(clone / HERE / "address.py"), "--is", "https://github.com/someone/tides", registry)
        assert done.returncode == code, done.stderr
    package = tomllib.loads((clone / "Cargo.toml").read_text())["package"]
    assert package["repository"] == "https://github.com/someone/tides"
    assert package["metadata"]["release"]["registry"] == "registry.example/someone"
    for gone in [old["repository"], old["metadata"]["release"]["registry"], "--repo ebbtide.invalid/ebbtide"]:
        # Files with a NUL, such as pictures, are no text.
        left = subprocess.run(
            ["git", "grep", "-nIFe", gone], cwd=clone, stdout=subprocess.PIPE, text=True, check=False
        ).stdout
        assert not [line for line in left.splitlines() if "tests/deploy/test_release.py" not in line]
    for check in [clone / HERE / "address.py", clone / "docs" / "links.py", clone / "deploy" / "dashboard.py"]:
        done = run("python3", str(check), "--check")
        assert done.returncode == 0, done.stdout + done.stderr
    # Then the chart has a default, which it takes.
    done = HELM4.run("template", "ebbtide", str(clone / CHART.relative_to(ROOT)), "--values", "-", given=QUEUE)
    assert done.returncode == 0, done.stderr
    assert container(parse(done.stdout))["image"].startswith("registry.example/someone/ebbtide:")


def test_before_the_first_release_no_address_is_one_that_somebody_could_register() -> None:
    package = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]
    places = (package["repository"].removeprefix("https://"), package["metadata"]["release"]["registry"])
    if any(place.startswith(("github.com/", "ghcr.io/")) for place in places):
        pytest.skip("the addresses of the first release are set")
    assert all(place.split("/")[0].endswith(".invalid") for place in places), places
    default = yaml.safe_load((CHART / "values.yaml").read_text())["image"]["repository"]
    assert default == f"{places[1]}/ebbtide"
    for values in ("", "image: {tag: next}", f"image: {{digest: '{DIGEST}'}}"):
        done = HELM4.run("template", "ebbtide", str(CHART), "--values", "-", given=f"{QUEUE}{values}")
        assert done.returncode != 0, values
        assert f"image.repository is {default}, and nothing is published there" in done.stderr
        assert "set image.repository=REGISTRY/ebbtide" in done.stderr
    own = ("--set", "image.repository=a.invalid.example/b")
    mine = HELM4.run("template", "ebbtide", str(CHART), *own, "--values", "-", given=QUEUE)
    assert mine.returncode == 0, mine.stderr


def test_a_dry_run_shows_the_version_everywhere_and_changes_nothing(clone: Path) -> None:
    done = publish(clone, NEXT, "--dry-run")
    assert done.returncode == 0, done.stderr
    for name in [
        "CHANGELOG.md",
        "Cargo.lock",
        "Cargo.toml",
        "Chart.yaml",
        "README.md",
        "argocd.yaml",
        "argocd-fleet.yaml",
        "deploy/aws/terraform/README.md",
        "flux.yaml",
        "snapshots/defaults.yaml",
    ]:
        assert name in done.stdout, name
    assert "### Added" in done.stdout, "the notes"
    assert (git(clone, "status", "--porcelain"), git(clone, "tag")) == ("", "")


def test_publish_pushes_one_commit_with_its_tag(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = tomllib.loads((clone / "Cargo.toml").read_text())["package"]["repository"]
    origin = tmp_path / "origin.git"
    git(tmp_path, "clone", "--quiet", "--bare", str(clone), str(origin))
    # As if origin were at the address.
    git(clone, "remote", "add", "origin", f"{address}.git")
    git(clone, "config", f"url.{origin}.insteadOf", f"{address}.git")
    git(clone, "fetch", "--quiet", "origin")
    for name, value in [("user.name", "Nobody"), ("user.email", "nobody@example.com")]:
        git(clone, "config", name, value)
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(f"""#!/bin/sh\necho '{{"digest": "{DIGEST}"}}'\n""")
    docker.chmod(0o755)
    for slow in [".ci/full", "tests/deploy/image"]:
        (clone / slow).write_text("#!/bin/sh\nexit ${FAIL:-0}\n")
    git(clone, "commit", "--quiet", "--all", "--message", "Tests that take no hours")
    git(clone, "push", "--quiet", "origin", "main")

    # Who can't sign learns it before the tests.
    assert "deploy/release/signers has no key" in publish(clone, NEXT, path=tmp_path / "bin").stderr
    mine, other = key(tmp_path, "mine"), key(tmp_path, "other")
    (clone / HERE / "signers").write_text(mine.with_suffix(".signer").read_text())
    git(clone, "commit", "--quiet", "--all", "--message", "A key")
    git(clone, "push", "--quiet", "origin", "main")
    assert "git has no user.signingKey" in publish(clone, NEXT, path=tmp_path / "bin").stderr
    git(clone, "config", "user.signingKey", str(other))
    refused = publish(clone, NEXT, path=tmp_path / "bin")
    assert f"the tag v{NEXT} is not signed by a key of deploy/release/signers" in refused.stderr
    assert (git(clone, "tag"), git(origin, "tag")) == ("", "")
    git(clone, "reset", "--quiet", "--hard", "origin/main")
    git(clone, "config", "user.signingKey", str(mine))

    monkeypatch.setenv("FAIL", "1")
    failed = publish(clone, NEXT, path=tmp_path / "bin")
    assert (failed.returncode, "nothing is committed or pushed" in failed.stderr) == (1, True), failed.stderr
    assert git(clone, "tag") == ""
    git(clone, "restore", ".")
    monkeypatch.delenv("FAIL")

    done = publish(clone, NEXT, path=tmp_path / "bin")
    assert done.returncode == 0, done.stdout + done.stderr
    assert git(origin, "tag") == f"v{NEXT}\n"
    assert git(origin, "rev-parse", "main", f"v{NEXT}^{{commit}}").splitlines() == 2 * [
        git(clone, "rev-parse", "HEAD").strip()
    ]
    assert git(origin, "log", "-1", "--format=%s", "main") == f"Release {NEXT}\n"
    assert f"-slim-trixie@{DIGEST} AS build\n" in git(origin, "show", "main:Dockerfile")
    assert f"\n## [{NEXT}] - 20" in git(origin, "show", "main:CHANGELOG.md")
    for check in ("--check", "--tag"):
        checked = publish(clone, NEXT, check)
        assert checked.returncode == 0, f"what the workflow checks: {checked.stderr}"
    for case in with_snapshot():
        made = shown(case, chart=clone / CHART.relative_to(ROOT))
        assert (clone / snapshot(case).relative_to(ROOT)).read_text() == made, case.name

    again = publish(clone, NEXT, path=tmp_path / "bin")
    assert f"the tag v{NEXT} exists" in again.stderr


@pytest.mark.parametrize(
    ("file", "old", "new", "why"),
    [
        (
            "Cargo.toml",
            'name = "ebbtide"\nversion = "',
            'name = "ebbtide"\nversion = "7',
            "Cargo.toml: the version is 7",
        ),
        ("examples/flux.yaml", "tag: ", "tag: 7", "examples/flux.yaml: the version is 7"),
        ("CHANGELOG.md", "## [Unreleased]", "## [Never]", "CHANGELOG.md has no section"),
        ("README.md", "# Ebbtide", "# github.com/other/" + "ebbtide", "README.md:1: other/ebbtide"),
    ],
)
def test_the_workflow_refuses_files_that_do_not_fit(clone: Path, file: str, old: str, new: str, why: str) -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    if file != "CHANGELOG.md":
        put(clone / "CHANGELOG.md", "## [Unreleased]", f"## [{version}]")
    put(clone / file, old, new)
    done = publish(clone, version, "--check")
    assert (done.returncode, why in done.stderr) == (1, True), done.stderr


def test_the_workflow_refuses_a_tag_that_does_not_come_from_main(clone: Path, tmp_path: Path) -> None:
    mine, other = key(tmp_path, "mine"), key(tmp_path, "other")
    (clone / HERE / "signers").write_text(mine.with_suffix(".signer").read_text())
    git(clone, "commit", "--quiet", "--all", "--message", "A key")
    git(clone, "update-ref", "refs/remotes/origin/main", "HEAD")

    def tag(*options: str, signed: Path | None = None) -> str:
        """Sets the tag, and returns why it is refused."""
        signing = ["-c", "gpg.format=ssh", "-c", f"user.signingKey={signed}"] if signed else []
        git(clone, *signing, "tag", "--force", *(["--sign", "--message", "x"] if signed else []), *options, f"v{NEXT}")
        return publish(clone, NEXT, "--tag").stderr

    assert tag(signed=mine) == ""
    # As the workflow's checkout leaves it.
    assert "has no signature" in tag()
    assert "is not signed by a key of deploy/release/signers" in tag("--annotate", "--message", "x")
    assert "is not signed by a key of deploy/release/signers" in tag(signed=other)
    # A branch with a key of its own.
    git(clone, "checkout", "--quiet", "-b", "elsewhere")
    (clone / HERE / "signers").write_text(other.with_suffix(".signer").read_text())
    git(clone, "commit", "--quiet", "--all", "--message", "Another key")
    assert "which is not on origin/main" in tag(signed=mine)
    git(clone, "update-ref", "refs/remotes/origin/main", "HEAD~1")
    git(clone, "checkout", "--quiet", "--detach", "HEAD~1")
    assert "is not signed by a key" in tag(signed=other), "the keys are those of main"
    git(clone, "checkout", "--quiet", "elsewhere")
    assert "which is not checked out" in publish(clone, NEXT, "--tag").stderr


def test_publish_says_why_it_refuses(clone: Path) -> None:
    for arguments, why in [
        ((), "say which version"),
        (("v1.0.0",), "say which version"),
        (("1.0",), "say which version"),
        ((NEXT,), "git config --get remote.origin.url failed"),
    ]:
        assert why in publish(clone, *arguments).stderr, arguments
    git(clone, "remote", "add", "origin", "https://github.com/other/fork.git")
    assert "write yours with deploy/release/address.py --set" in publish(clone, NEXT).stderr
    put(clone / "CHANGELOG.md", "## [Unreleased]\n", "## [Unreleased]\n\n## [0.0.1]\n")
    git(clone, "commit", "--quiet", "--all", "--message", "Nothing new")
    assert "[Unreleased] is empty" in publish(clone, NEXT, "--dry-run").stderr


def test_the_packed_chart_names_its_image_by_digest(tmp_path: Path) -> None:
    done = run(str(ROOT / HERE / "pack-chart"), tool("helm4"), DIGEST, str(tmp_path))
    assert done.returncode == 0, done.stderr
    archive = Path(done.stdout.strip())
    objects = HELM4.objects(values="{queueUrl: 'https://sqs.eu-west-1.amazonaws.com/123456789012/q'}", chart=archive)
    ours = yaml.safe_load(REPOSITORY.read_text())["image"]["repository"]
    assert container(objects)["image"] == f"{ours}@{DIGEST}"
    repository = yaml.safe_load((CHART / "values.yaml").read_text())["image"]["repository"]
    about = yaml.safe_load(HELM4.run("show", "chart", str(archive)).stdout)
    assert yaml.safe_load(about["annotations"]["artifacthub.io/images"]) == [
        {"name": "ebbtide", "image": f"{repository}@{DIGEST}"}
    ]
    assert run(str(ROOT / HERE / "pack-chart"), tool("helm4"), "latest", str(tmp_path)).returncode == 1


def test_a_packed_program_has_its_completions_and_pages_and_is_always_the_same(tmp_path: Path) -> None:
    for name in ["program", "shell/completions/_ebbtide", "shell/man/ebbtide.1"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    archives = []
    for folder, mode in [("first", 0o644), ("second", 0o600)]:
        (tmp_path / folder).mkdir()
        (tmp_path / "shell/man/ebbtide.1").chmod(mode)
        command = [
            ROOT / HERE / "pack-program",
            "ebbtide-1-linux-amd64",
            tmp_path / "program",
            tmp_path / "shell",
            tmp_path / folder,
        ]
        done = subprocess.run(
            command,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
        )
        archives.append(Path(done.stdout.strip()))
    assert archives[0].read_bytes() == archives[1].read_bytes()
    with tarfile.open(archives[0]) as archive:
        files = {member.name.partition("/")[2]: oct(member.mode) for member in archive if member.isfile()}
    assert files == {"LICENSE": "0o644", "ebbtide": "0o755", "completions/_ebbtide": "0o644", "man/ebbtide.1": "0o644"}


def sums(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs deploy/release/sums."""
    return run(str(ROOT / HERE / "sums"), *arguments)


def test_a_folder_has_exactly_the_files_of_its_sums(tmp_path: Path) -> None:
    for name in ("b", "sub/a"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    done = sums(str(tmp_path))
    assert [line.split("  ")[1] for line in done.stdout.splitlines()] == ["b", "sub/a"]
    assert sums(str(tmp_path), done.stdout).returncode == 0
    assert sums(str(tmp_path), "").returncode == 1, "a job without an output"
    (tmp_path / "c").write_text("one more")
    assert sums(str(tmp_path), done.stdout).returncode == 1
    (tmp_path / "c").unlink()
    (tmp_path / "b").write_text("another")
    refused = sums(str(tmp_path), done.stdout)
    assert (refused.returncode, "has not the files" in refused.stderr) == (1, True)
    (tmp_path / "b").unlink()
    assert sums(str(tmp_path), done.stdout).returncode == 1
    (tmp_path / "sub/a").unlink()
    assert sums(str(tmp_path), "").returncode == 1, "nothing is not what nobody made"


def test_krew_installs_the_program_from_the_archives(tmp_path: Path) -> None:
    """The rules of krew's own validation."""
    platforms = [(system, processor) for system in ("darwin", "linux") for processor in ("amd64", "arm64")]
    for system, processor in platforms:
        folder = tmp_path / f"ebbtide-{NEXT}-{system}-{processor}"
        folder.mkdir()
        for name in ("ebbtide", "LICENSE"):
            (folder / name).write_text(f"{name} {system} {processor}")
        with tarfile.open(f"{folder}.tar.gz", "w:gz") as archive:
            archive.add(folder, folder.name)
    done = run(str(ROOT / HERE / "pack-krew"), NEXT, str(tmp_path))
    assert done.returncode == 0, done.stderr
    plugin = yaml.safe_load(done.stdout)
    assert (plugin["apiVersion"], plugin["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert (plugin["metadata"]["name"], plugin["spec"]["version"]) == ("ebbtide", f"v{NEXT}")
    repository = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["repository"]
    assert plugin["spec"]["homepage"] == repository
    assert 0 < len(plugin["spec"]["shortDescription"]) <= 50
    found = []
    for platform in plugin["spec"]["platforms"]:
        labels = platform["selector"]["matchLabels"]
        assert set(labels) == {"os", "arch"}
        found.append((labels["os"], labels["arch"]))
        address, name = platform["uri"].rsplit("/", 1)
        assert address == f"{repository}/releases/download/v{NEXT}"
        archive = tmp_path / name
        assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
        # krew takes what a pattern matches, without its folders.
        with tarfile.open(archive) as opened:
            files = [
                PurePosixPath(member).name
                for each in platform["files"]
                for member in opened.getnames()
                if fnmatch.fnmatchcase(member, each["from"]) and each["to"] == "."
            ]
        assert sorted(files) == ["LICENSE", "ebbtide"]
        assert platform["bin"] in files
    assert sorted(found) == platforms


def test_artifact_hub_gets_what_it_reads() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    annotations = {name.removeprefix("artifacthub.io/"): text for name, text in about["annotations"].items()}
    assert set(annotations) == {"category", "images", "license", "links", "screenshots"}
    assert annotations["category"] in {"monitoring-logging", "networking", "security", "skip-prediction"}
    links = {each["name"]: each["url"] for each in yaml.safe_load(annotations["links"])}
    assert "support" in links
    screenshots = [each["url"] for each in yaml.safe_load(annotations["screenshots"])]
    for url in [*links.values(), *screenshots]:
        assert url.startswith(f"{about['home']}/"), url
        kind, _, file = url.removeprefix(f"{about['home']}/").partition("/main/")
        assert not file or (kind in ("blob", "raw") and (ROOT / file).exists()), url


def test_the_packed_chart_names_its_changes(clone: Path, tmp_path: Path) -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    section = f"""## [{version}] - 2026-01-02

Text that is no change.

### Added

- `--flag` does
  two things: "this" and that.

#### A heading below

- A second.

### Security

- A third.

"""
    (clone / "CHANGELOG.md").write_text(f"# Changelog\n\n## [Unreleased]\n\n{section}")
    done = run(str(clone / HERE / "pack-chart"), tool("helm4"), DIGEST, str(tmp_path))
    assert done.returncode == 0, done.stderr
    made = yaml.safe_load(HELM4.run("show", "chart", done.stdout.strip()).stdout)["annotations"]
    assert yaml.safe_load(made["artifacthub.io/changes"]) == [
        {"kind": "added", "description": '--flag does two things: "this" and that.'},
        {"kind": "added", "description": "A second."},
        {"kind": "security", "description": "A third."},
    ]
    assert (made["artifacthub.io/prerelease"], made["artifacthub.io/containsSecurityUpdates"]) == ("false", "true")
    candidate = run(str(clone / HERE / "changes"), f"{version}-rc.1", str(clone / "CHANGELOG.md"))
    assert (candidate.returncode, candidate.stdout) == (1, ""), "it has no section"
