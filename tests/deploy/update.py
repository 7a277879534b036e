"""Regenerates the snapshots, the chart's README, the schema's definitions from Kubernetes' API, and the policies that the doctor knows."""

from __future__ import annotations

import json

from api import definitions
from chart import CHART, HELM4, ROOT, cases, policies, readme, snapshot


def main() -> None:
    """Writes the files."""
    schema = CHART / "values.schema.json"
    schema.write_text(json.dumps({**json.loads(schema.read_text()), "definitions": definitions()}, indent=2) + "\n")
    for case in cases():
        snapshot(case).write_text(HELM4.template(values=case.read_text()))
    (CHART / "README.md").write_text(readme())
    (ROOT / "src/commands/doctor/policies.json").write_text(json.dumps(policies(), indent=2) + "\n")


if __name__ == "__main__":
    main()
