"""Writes the snapshots and the chart's README anew."""

from __future__ import annotations

from chart import CHART, HELM4, cases, readme, snapshot


def main() -> None:
    """Writes them."""
    for case in cases():
        snapshot(case).write_text(HELM4.template(values=case.read_text()))
    (CHART / "README.md").write_text(readme())


if __name__ == "__main__":
    main()
