"""Regenerates the snapshots, the chart's README, what is derived in its schema, and the policies that the doctor knows."""

from __future__ import annotations

import json

import schema
from chart import CHART, ROOT, SNAPSHOTS, policies, readme, shown, snapshot, with_snapshot


def main() -> None:
    """Writes the files."""
    schema.FILE.write_text(schema.derived())
    for old in SNAPSHOTS.iterdir():
        old.unlink()
    for case in with_snapshot():
        snapshot(case).write_text(shown(case))
    (CHART / "README.md").write_text(readme())
    (ROOT / "src/commands/doctor/policies.json").write_text(json.dumps(policies(), indent=2) + "\n")


if __name__ == "__main__":
    main()
