"""What several files of tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas import write


@pytest.fixture(scope="session")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of the schemas for kubeconform."""
    folder = tmp_path_factory.mktemp("schemas")
    write(folder)
    return folder
