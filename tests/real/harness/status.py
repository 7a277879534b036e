"""The report behind the status page."""

from __future__ import annotations

import json
from pathlib import Path

import requests
from jsonschema import Draft202012Validator

from .kube import Object

SCHEMA = Path(__file__).parents[3] / "docs" / "status.schema.json"


def report(url: str) -> Object:
    """Returns the report of the service with this status page, which must be as its schema says."""
    answer = requests.get(f"{url}/api/status", timeout=30)
    assert answer.status_code == 200, answer.text
    found: Object = answer.json()
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(found)
    return found
