"""The scripted reports and the schema describe the same shape."""

from __future__ import annotations

import copy
import json

import pytest
from jsonschema import Draft202012Validator, FormatChecker, ValidationError

import fake
import reports

SCHEMA = json.loads((fake.PAGE.parents[2] / "docs" / "status.schema.json").read_text())
VALIDATOR = Draft202012Validator(SCHEMA, format_checker=FormatChecker())


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", reports.ALL)
def test_every_report_fits(name: str) -> None:
    VALIDATOR.validate(json.loads(json.dumps(reports.ALL[name]())))


def test_a_field_too_many_or_too_few_does_not() -> None:
    report = reports.blocked()
    more = copy.deepcopy(report)
    more["interruptions"][3]["drains"][0]["blocked"][0]["budget"] = "db"
    less = copy.deepcopy(report)
    del less["interruptions"][0]["waits"]
    untimely = report | {"time": "yesterday"}
    for wrong in (more, less, untimely):
        with pytest.raises(ValidationError):
            VALIDATOR.validate(wrong)


def test_every_field_is_described_and_required() -> None:
    for name, shape in {"report": SCHEMA, **SCHEMA["$defs"]}.items():
        assert shape["additionalProperties"] is False, name
        assert set(shape["properties"]) - set(shape["required"]) <= {"removed"}, name
        assert all(field.get("description") for field in shape["properties"].values()), name
