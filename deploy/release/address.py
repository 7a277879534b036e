#!/usr/bin/env python3
"""The addresses of the repository and of the registry. They stand in Cargo.toml; all others are written from there.

Until the first release both are under `.invalid`, a domain that can't be registered: users would trust the content of
any other address.

deploy/release/address.py --check                      exits 1 and names each line with another address
deploy/release/address.py --set REPOSITORY REGISTRY    writes new ones into Cargo.toml and everywhere else
deploy/release/address.py --is REPOSITORY REGISTRY     exits 1 if Cargo.toml has others

REPOSITORY is as https://github.com/OWNER/NAME, REGISTRY as ghcr.io/OWNER.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GITHUB = "https://github.com/"
USAGE = "usage: --check, or --set or --is with https://github.com/OWNER/NAME ghcr.io/OWNER"

# What looks like this project's image or chart in a known registry.
IMAGES = re.compile(r"\b((?:ghcr\.io|docker\.io|quay\.io|public\.ecr\.aws)/(?:[\w.-]+/)*(?:ebbtide|charts))\b")


# A domain that an attacker could register.
DOMAINS = re.compile(r"\b(ebbtide\.(?:app|cloud|com|dev|io|net|org|sh))\b(?!\()")


@dataclass(frozen=True)
class Address:
    """Where the project is published."""

    repository: str
    registry: str

    @property
    def slug(self) -> str:
        """Owner and name of the repository; of one that is not on GitHub all but the scheme."""
        return self.repository.removeprefix(GITHUB).removeprefix("https://")


def published(repository: str, registry: str) -> Address:
    """Returns addresses that a person gave. Registries know no capitals."""
    return Address(repository, registry.rstrip("/").lower())


def read(root: Path = ROOT) -> Address:
    """Returns the addresses that Cargo.toml has."""
    about = tomllib.loads((root / "Cargo.toml").read_text())
    return Address(about["package"]["repository"], about["package"]["metadata"]["release"]["registry"])


def texts(root: Path) -> Iterator[tuple[Path, str]]:
    """Yields the text files of the repository."""
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.decode().split("\0")
    for path in (root / name for name in listed if name):
        if path.is_file() and b"\0" not in (content := path.read_bytes()):
            yield path, content.decode(errors="surrogateescape")


def strays(address: Address, root: Path = ROOT) -> Iterator[str]:
    """Yields each line with another address than Cargo.toml's."""
    names = "|".join(map(re.escape, {"ebbtide", address.slug.split("/")[1]}))
    repositories = re.compile(rf"\b(?:github\.com|githubusercontent\.com)/([\w.-]+/(?:{names}))\b")
    for path, text in texts(root):
        for number, line in enumerate(text.splitlines(), 1):
            others = [found for found in repositories.findall(line) if found != address.slug]
            others += [found for found in IMAGES.findall(line) if not f"{found}/".startswith(address.registry + "/")]
            others += DOMAINS.findall(line)
            if others:
                yield f"{path.relative_to(root)}:{number}: {', '.join(others)}"


def replaced(text: str, old: Address, new: Address) -> str:
    """Returns the text with the new addresses in place of the old ones."""
    names = {old.registry: new.registry, old.repository: new.repository, old.slug: new.slug}
    longest = sorted(names, key=len, reverse=True)
    # As a whole word, such as `--repo OWNER/NAME`, or after a scheme or GitHub's name; never inside a path.
    before = r"(?:(?<![\w./-])|(?<=://)|(?<=github\.com/))"
    either = re.compile(before + "(" + "|".join(map(re.escape, longest)) + r")(?![\w-]|\.\w)")
    return either.sub(lambda found: names[found[1]], text)


def write(new: Address, root: Path = ROOT) -> list[Path]:
    """Writes the new addresses into all files; returns those that differ."""
    old, changed = read(root), []
    for path, text in texts(root):
        if (after := replaced(text, old, new)) != text:
            path.write_bytes(after.encode(errors="surrogateescape"))
            changed.append(path.relative_to(root))
    return changed


def main(arguments: list[str]) -> int:
    """Runs the command."""
    match arguments:
        case ["--check"]:
            found = list(strays(read()))
            print("\n".join(f"not the address that Cargo.toml has: {stray}" for stray in found), end="\n" * bool(found))
            return int(bool(found))
        case ["--set", repository, registry] if re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", repository):
            print(*write(published(repository, registry)), sep="\n")
            return 0
        case ["--is", repository, registry]:
            found, expected = read(), published(repository, registry)
            if found != expected:
                print(f"Cargo.toml has {found}, not {expected}: deploy/release/address.py --set", file=sys.stderr)
            return int(found != expected)
        case _:
            print(f"address.py: {USAGE}", file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
