"""Builds the project once with a sample of mutants inside, and runs the tests against each of them."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import tree_sitter_rust
from tree_sitter import Language, Node, Parser

SWITCH = """
/// Switches of mutants.
pub mod mutant {
    /// Whether the mutant with this number is on.
    pub fn on(number: u32) -> bool {
        static ON: std::sync::LazyLock<u32> =
            std::sync::LazyLock::new(|| std::env::var("EBBTIDE_MUTANT").ok().and_then(|on| on.parse().ok()).unwrap_or(0));
        *ON == number
    }
}
"""
"""What the library gets."""

PROFILE = "campaign"
"""The explorer's profile: optimised, with all checks."""

RUNS = [["lib"], ["service", "pipeline::"], ["service", "--skip", "pipeline::", "--skip", "architecture::"]]
"""Programs of tests, with their arguments: those that probably find a mutant come first."""

parser = Parser(Language(tree_sitter_rust.language()))


@dataclass(frozen=True)
class Mutant:
    """One way to break the code."""

    number: int
    file: str
    name: str
    genre: str
    replacement: str
    span: tuple[tuple[int, int], tuple[int, int]]
    """First and last place: line and column, both from 1."""


@dataclass
class Edit:
    """A part of a file in which mutants are switched. Text is kept as it is, and a pair names a part of the file."""

    start: int
    end: int
    chunks: list[bytes | tuple[int, int]]
    numbers: list[int]
    lead: int = 0
    """Length of the text before the part in which the compiler may tell its errors: a function's head, or a match."""


@dataclass
class Mutated:
    """A file with its mutants."""

    text: bytes
    edits: list[Edit] = field(default_factory=list)
    places: list[tuple[int, int, int]] = field(default_factory=list)
    """Begin, end and number of each mutant in the written file."""

    def write(self, path: Path, dropped: set[int]) -> None:
        """Writes the file without the mutants that were dropped."""
        live = [edit for edit in self.edits if not dropped.intersection(edit.numbers)]
        self.places = []
        out = bytearray()
        self._render(out, 0, len(self.text), sorted(live, key=lambda edit: (edit.start, -edit.end)))
        if not path.exists() or path.read_bytes() != bytes(out):
            path.write_bytes(bytes(out))

    def _render(self, out: bytearray, start: int, end: int, edits: Sequence[Edit]) -> None:
        at = start
        for n, edit in enumerate(edits):
            if edit.start < at or edit.end > end:
                continue
            out += self.text[at : edit.start]
            began = len(out)
            inner = [other for other in edits[n + 1 :] if other.start >= edit.start and other.end <= edit.end]
            for chunk in edit.chunks:
                if isinstance(chunk, bytes):
                    out += chunk
                else:
                    self._render(out, chunk[0], chunk[1], [it for it in inner if chunk[0] <= it.start <= it.end <= chunk[1]])
            self.places += [(began - edit.lead, len(out), number) for number in edit.numbers]
            at = edit.end
        out += self.text[at:end]


def listed(files: Sequence[str]) -> list[Mutant]:
    """Returns all mutants of these files, as cargo-mutants has them."""
    command = [os.environ["CARGO_MUTANTS"], "mutants", "--list", "--json"]
    command += [f"--file={name}" for name in files or ["src/pipeline/**"]]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    mutants = []
    for n, it in enumerate(found, start=1):
        span = tuple((it["span"][end]["line"], it["span"][end]["column"]) for end in ("start", "end"))
        mutants.append(Mutant(n, it["file"], it["name"], it["genre"], it["replacement"], span))
    return mutants


def switched(text: bytes, mutants: Sequence[Mutant]) -> tuple[list[Edit], list[Mutant]]:
    """Returns the edits for the mutants of a file, and the mutants that can't be switched, such as those in macros."""
    tree = parser.parse(text)
    lines = [0]
    for line in text.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))

    def offset(place: tuple[int, int]) -> int:
        start = lines[place[0] - 1]
        return start + len(text[start:].decode(errors="replace")[: place[1] - 1].encode())

    edits: dict[tuple[int, int, str], Edit] = {}
    failed = []
    for mutant in mutants:
        start, end = (offset(place) for place in mutant.span)
        node = tree.root_node.descendant_for_byte_range(start, end)
        made = _edit(text, mutant, start, end, node) if node else None
        if made is None:
            failed.append(mutant)
            continue
        key = (made.start, made.end, mutant.genre)
        if key in edits:
            # The switch of another mutant of the same part stands before.
            edits[key].chunks = made.chunks[:-1] + edits[key].chunks if made.start == made.end else _chain(made, edits[key])
            edits[key].numbers += made.numbers
        else:
            edits[key] = made
    return list(edits.values()), failed


def _chain(first: Edit, second: Edit) -> list[bytes | tuple[int, int]]:
    # Both are `(if on { … } else { … })`.
    head = first.chunks[: first.chunks.index(b" else { ")]
    return [*head, b" else ", *second.chunks[1:-1], b")"] if isinstance(second.chunks[0], bytes) else first.chunks


def _edit(text: bytes, mutant: Mutant, start: int, end: int, node: Node) -> Edit | None:
    on, new = f"crate::mutant::on({mutant.number})".encode(), mutant.replacement.encode()
    numbers = [mutant.number]

    def either(of: Node, mutated: list[bytes | tuple[int, int]]) -> Edit:
        whole = (of.start_byte, of.end_byte)
        chunks = [b"(", b"if " + on + b" { ", *mutated, b" }", b" else { ", whole, b" }", b")"]
        return Edit(*whole, chunks, numbers)

    match mutant.genre:
        case "FnValue":
            body = next(iter(_up(node, "block")), None)
            if body is None:
                return None
            at, function = body.start_byte + 1, body.parent
            lead = at - function.start_byte if function else 0
            return Edit(at, at, [b" if " + on + b" { return " + new + b"; } ", b""], numbers, lead)
        case "BinaryOperator":
            of = node.parent
            if of is None or of.type not in ("binary_expression", "compound_assignment_expr"):
                return None
            left, right = of.child_by_field_name("left"), of.child_by_field_name("right")
            if left is None or right is None or any(True for _ in _up(of, "let_chain")):
                return None
            sides = [(left.start_byte, left.end_byte), b" " + new + b" ", (right.start_byte, right.end_byte)]
            return either(of, sides)
        case "UnaryOperator":
            of = next(iter(_up(node, "unary_expression")), None)
            if of is None or of.start_byte != start:
                return None
            return either(of, [(of.start_byte + 1, of.end_byte)])
        case "MatchArmGuard":
            if b"let " in text[start:end] or any(True for _ in _up(node, "token_tree")):
                return None
            whole = (start, end)
            chunks = [b"(", b"if " + on + b" { " + new + b" }", b" else { ", whole, b" }", b")"]
            return Edit(start, end, chunks, numbers)
        case "MatchArm":
            arm = next(iter(_up(node, "match_arm")), None)
            pattern = arm.child_by_field_name("pattern") if arm else None
            if pattern is None or arm is None or arm.start_byte != start:
                return None
            guard = pattern.child_by_field_name("condition")
            if guard is None:
                whole_match = next(iter(_up(arm, "match_expression")), arm)
                lead = pattern.end_byte - whole_match.start_byte
                return Edit(pattern.end_byte, pattern.end_byte, [b" if !" + on + b" ", b""], numbers, lead)
            if b"let " in text[guard.start_byte : guard.end_byte]:
                return None
            whole = (guard.start_byte, guard.end_byte)
            return Edit(*whole, [b"(", b"if " + on + b" { false }", b" else { ", whole, b" }", b")"], numbers)
    return None


def _up(node: Node | None, kind: str) -> Iterator[Node]:
    while node:
        if node.type == kind:
            yield node
        node = node.parent


def copy(tree: Path) -> None:
    """Copies the project. What is the same stays untouched, so that cargo builds nothing twice."""
    tree.mkdir(parents=True, exist_ok=True)
    names = subprocess.run(["git", "ls-files", "-z"], stdout=subprocess.PIPE, check=True).stdout.decode().split("\0")[:-1]
    for name in names:
        to = tree / name
        if Path(name).is_file() and (not to.exists() or to.read_bytes() != Path(name).read_bytes()):
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(name, to)


def build(tree: Path, mutated: dict[str, Mutated]) -> tuple[dict[str, str], set[int]]:
    """Builds the tests. Returns their programs, and the mutants that don't compile.

    In a folder of its own: cargo takes packages of the same name in another workspace for the same, and the others would be mutated.
    """
    dropped: set[int] = set()
    # Two programs that run some minutes: to optimise them well takes longer.
    options = {f"CARGO_PROFILE_{PROFILE.upper()}_LTO": "off", f"CARGO_PROFILE_{PROFILE.upper()}_OPT_LEVEL": "1"}
    while True:
        for name, each in mutated.items():
            each.write(tree / name, dropped)
        command = ["cargo", "test", "--locked", "--package", "ebbtide", "--profile", PROFILE, "--lib", "--test", "service", "--no-run"]
        done = subprocess.run(
            [*command, "--message-format", "json"],
            cwd=tree,
            env=os.environ | options | {"CARGO_TARGET_DIR": str(tree.parent / "build")},
            stdout=subprocess.PIPE,
        )
        messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
        if done.returncode == 0:
            programs = {}
            for it in messages:
                if it.get("executable") and it["package_id"].startswith(f"path+file://{tree}#"):
                    programs[it["target"]["kind"][0] if it["target"]["kind"] == ["lib"] else it["target"]["name"]] = it["executable"]
            return programs, dropped
        before = len(dropped)
        for it in messages:
            if it["reason"] == "compiler-message" and it["message"]["level"] == "error":
                wrong = _wrong(it["message"]["spans"], mutated)
                if wrong is None and it["message"]["spans"]:
                    sys.exit(it["message"]["rendered"])
                dropped |= wrong or set()
        if len(dropped) == before:
            sys.exit("\n".join(it["message"]["rendered"] for it in messages if it["reason"] == "compiler-message"))
        print(f"{len(dropped)} mutants don't compile", file=sys.stderr)


def _wrong(spans: Sequence[dict], mutated: dict[str, Mutated]) -> set[int] | None:
    """Returns the mutants in the smallest part that contains an error's place, or else the nearest before its main place."""
    for span in sorted(spans, key=lambda span: not span["is_primary"]):
        places = mutated[span["file_name"]].places if span["file_name"] in mutated else []
        around = [place for place in places if place[0] <= span["byte_start"] and span["byte_end"] <= place[1]]
        if around:
            least = min(end - start for start, end, _ in around)
            return {number for start, end, number in around if end - start == least}
    for span in (span for span in spans if span["is_primary"] and span["file_name"] in mutated):
        before = [place for place in mutated[span["file_name"]].places if place[1] <= span["byte_end"]]
        if before:
            return {max(before, key=lambda place: place[1])[2]}
    return None


def passes(program: str, arguments: Sequence[str], number: int, within: float | None, tree: Path) -> str | None:
    """Runs tests with a mutant until the first fails. Returns that test, or `timeout`, or None if all pass."""
    process = subprocess.Popen(
        [program, "--test-threads", "1", *arguments],
        cwd=tree,
        env=os.environ | {"EBBTIDE_MUTANT": str(number), "RUST_BACKTRACE": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    late = threading.Event()

    def end() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(within, end) if within else None
    if timer:
        timer.start()
    failed = None
    assert process.stdout
    last = ""
    for line in process.stdout:
        last = line if line.startswith("test ") else last
        if line.startswith("test ") and line.rstrip().endswith("FAILED"):
            failed = line.split()[1]
            process.kill()
            break
    process.stdout.close()
    status = process.wait()
    if timer:
        timer.cancel()
    if failed:
        return failed
    if late.is_set():
        return "timeout"
    return None if status == 0 else f"exit {status} after {last.strip()}"


def main() -> int:
    """Returns 0 if the tests pass without a mutant: what they miss is told, and fails nothing."""
    arguments = argparse.ArgumentParser(prog="tests/mutants/run")
    arguments.add_argument("--sample", type=int, default=100, help="number of mutants; 100 if not given")
    arguments.add_argument("--seed", type=int, default=1, help="another seed gives another sample")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count(), help="number of mutants at the same time")
    arguments.add_argument("--seconds", type=int, help="begin no other mutant after this time")
    arguments.add_argument("files", nargs="*")
    asked = arguments.parse_args()
    root = Path.cwd()
    target = Path(os.environ.get("CARGO_TARGET_DIR", root / "target")).resolve()
    tree = target / "mutants" / "tree"
    everything = listed(asked.files)
    sample = random.Random(asked.seed).sample(everything, min(asked.sample, len(everything)))
    copy(tree)
    library = tree / "src/lib.rs"
    library.write_text(Path("src/lib.rs").read_text() + SWITCH)
    mutated, unswitched = {}, []
    # A file that a sample before has changed is restored, too.
    for name in {mutant.file for mutant in sample}:
        text = Path(name).read_bytes()
        edits, failed = switched(text, [mutant for mutant in sample if mutant.file == name])
        mutated[name] = Mutated(text, edits)
        unswitched += failed
    programs, dropped = build(tree, mutated)
    out = {mutant.number for mutant in unswitched} | dropped
    tried = [mutant for mutant in sample if mutant.number not in out]
    print(f"{len(everything)} mutants, a sample of {len(sample)}, of which {len(tried)} compile with a switch", flush=True)
    times = []
    for program, *rest in RUNS:
        began = time.monotonic()
        failed = passes(programs[program], rest, 0, None, tree)
        if failed:
            sys.exit(f"without a mutant: {failed}")
        times.append(time.monotonic() - began)
    print(f"without a mutant all pass, in {sum(times):.0f} s", flush=True)
    begun = time.monotonic()

    def judge(mutant: Mutant) -> tuple[Mutant, str | None] | None:
        if asked.seconds and time.monotonic() - begun > asked.seconds:
            return None
        found = None
        for (program, *rest), took in zip(RUNS, times, strict=True):
            # A mutant that loops is found. The machine may be busier now.
            found = found or passes(programs[program], rest, mutant.number, 30 + 4 * took, tree)
        return mutant, found

    counts: Counter[str] = Counter()
    with ThreadPoolExecutor(asked.jobs) as pool, (target / "mutants/found.txt").open("a") as record:
        for judged in pool.map(judge, tried):
            if judged is None:
                continue
            mutant, found = judged
            word = "missed" if found is None else "timeout" if found == "timeout" else "found"
            counts[word] += 1
            print(word, mutant.name, found or "", file=record, flush=True)
            if word != "found":
                print(word, mutant.name, flush=True)
    all_tried = sum(counts.values())
    print(f"{all_tried} tried: {counts['found']} found, {counts['timeout']} timeouts, {counts['missed']} missed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
