"""What values.schema.json has from elsewhere: the forms of the settings from the flags, the descriptions from values.yaml, and the
definitions from Kubernetes' API."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from typing import Any

import yaml

from api import definitions
from chart import CHART
from flags import ACTIONS, CAMEL, Flag, flags

Schema = dict[str, Any]

FILE = CHART / "values.schema.json"


def text(pattern: str = "", **more: object) -> Schema:
    """Returns the schema of a text."""
    return {"type": "string", **({"pattern": f"^({pattern})$"} if pattern else {}), **more}


def choice(words: list[str]) -> Schema:
    """Returns the schema of a word. YAML reads the bare word off as a boolean."""
    return {"enum": [*words, *([False] if "off" in words else [])]}


def unset(schema: Schema) -> Schema:
    """Allows null, which helm takes for a missing value."""
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return {**schema, "type": [*kinds, "null"]}


def mapping(properties: dict[str, Schema]) -> Schema:
    """Returns the schema of a map."""
    each = {name: unset(schema) for name, schema in properties.items()}
    return {"type": "object", "additionalProperties": False, "properties": each}


def by_kind(of: Callable[[str], Schema]) -> Schema:
    """Returns the schema of a map by kind of notice."""
    return mapping({CAMEL[kind]: of(kind) for kind in ACTIONS})


def or_by_kind(everywhere: Schema, of: Callable[[str], Schema]) -> Schema:
    """Returns the schema of one value for all kinds, or a map by kind, in which `all` are the others."""
    whole = by_kind(of)
    whole["properties"] = {"all": unset(everywhere), **whole["properties"]}
    kinds = everywhere["type"] if isinstance(everywhere["type"], list) else [everywhere["type"]]
    return {**everywhere, **whole, "type": [*kinds, "object"]}


def labels(each: Schema) -> Schema:
    """Returns the schema of a map by label."""
    return {"type": "object", "additionalProperties": False, "patternProperties": {f"^{LABEL}$": unset(each)}}


DURATION = "([0-9]+(d|h|m|s))+"
LABEL = "([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?"
LABEL_VALUE = "([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?"
POINTS = ["before-drain", "before-completion", "both", "none"]


def points(kind: str) -> Schema:
    """Returns the points at which a kind can be held."""
    here = {"asg-terminate": POINTS, "asg-launch": ["none"]}.get(kind, ["before-drain", "none"])
    return text("|".join(here))


TIME: Schema = {**text(f"{DURATION}|[0-9]+"), "type": ["string", "integer"]}
"""The schema of a duration. Seconds without a unit are refused by templates/validate.yaml, which says what to write."""

NUMBER_OR_SHARE: Schema = {**text("[1-9][0-9]*|[1-9][0-9]?%|100%"), "type": ["string", "integer"], "minimum": 1}

FORMS: dict[str, Schema] = {
    "switch": {"type": "boolean"},
    "DURATION": TIME,
    "[KIND=]DURATION": or_by_kind(TIME, lambda kind: TIME),
    "KIND=DURATION": by_kind(lambda kind: TIME),
    "[KIND=]POINT": or_by_kind(text("|".join(POINTS)), points),
    "KIND=now|DURATION-before": mapping({"scheduledChange": text(f"now|{DURATION}-before")}),
    "auto|off|DURATION": {**text(f"auto|off|{DURATION}|[0-9]+"), "type": ["string", "boolean", "integer"]},
    "CODE=ACTION": {
        "type": "object",
        "additionalProperties": False,
        "patternProperties": {"^AWS_EC2_[A-Z0-9_]+$": unset(choice(["drain", "replace", "cordon", "report"]))},
    },
    "N|P%": NUMBER_OR_SHARE,
    "N|P%|none": {**text("none|[1-9][0-9]*|[1-9][0-9]?%|100%"), "type": ["string", "integer"], "minimum": 1},
    "LABEL=N|P%": labels(NUMBER_OR_SHARE),
    "TYPE=STATUS[/REASON]:TOLERATION=ACTION": text(),
    "[KIND=]leave|delete": or_by_kind(text("leave|delete"), lambda kind: text("leave|delete")),
    "ARN|any": text("any|arn:[^, ]+"),
    "HOOK": text("[^,]+"),
    "HOST": text(r"(\*\.)?[A-Za-z0-9._-]+"),
    "NAME": text("[A-Za-z0-9._-]+"),
    "PRIORITY": {**text("-?[0-9]+"), "type": ["string", "integer"]},
    "TAG[=VALUE]": text("[^=]+(=.*)?"),
    "KEY": text(LABEL),
    "KEY|PREFIX*": text(rf"{LABEL}|([a-z0-9.-]+/)?[A-Za-z0-9][A-Za-z0-9_.-]*\*|[a-z0-9.-]+/\*"),
    "KEY[=VALUE]": text(f"{LABEL}(=[^,]*)?"),
    "KEY[=VALUE]:EFFECT": text(f"{LABEL}(=[A-Za-z0-9_.-]*)?:(NoSchedule|PreferNoSchedule|NoExecute)"),
    "SELECTOR": {**text(), **labels(text(LABEL_VALUE)), "type": ["string", "object"]},
    "FILTER": text(),
}
"""The schema of a value, by the form that the help shows."""


def setting(flag: Flag) -> Schema:
    """Returns the schema of the value of a flag."""
    if flag.choices:
        one = choice(flag.choices)
    else:
        assert flag.form in FORMS, f"--{flag.flag} has the form {flag.form}, which tests/deploy/schema.py does not know"
        one = FORMS[flag.form]
    is_map = "object" in one.get("type", "")
    return unset({"type": "array", "items": one} if flag.list and not is_map else one)


def pools(actions: Schema) -> Schema:
    """Returns the schema of the pools of Nodes."""
    own = {flag.key: setting(flag) for flag in flags() if flag.pooled and flag.key}
    name = {**text("[A-Za-z0-9._-]{1,63}"), "description": "Its name."}
    selector = {**FORMS["SELECTOR"], "description": "The labels of its Nodes."}
    each = {"name": name, "nodeSelector": selector, "actions": unset(actions), **own}
    pool = {"type": "object", "additionalProperties": False, "required": ["name", "nodeSelector"], "properties": each}
    return unset({"type": "array", "items": pool})


WITHOUT_THRESHOLD = {"EbbtideBug", "EbbtideForbidden", "EbbtideNotReceiving"}
"""Alerts with comparisons, but of several things, or only of whether there is something."""


ALERT: dict[str, Schema] = {
    "enabled": {"type": "boolean"},
    "for": text("([0-9]+(ms|s|m|h|d|w|y))+"),
    "severity": text(minLength=1),
    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
}
# helm's --set makes a text of a fraction.
THRESHOLD: Schema = {**text(r"[0-9]+(\.[0-9]+)?"), "type": ["string", "number"], "minimum": 0}
ALERTS = {"alert": mapping(ALERT), "alertWithThreshold": mapping({**ALERT, "threshold": THRESHOLD})}
"""The definitions of what can be changed in an alert."""


def alerts() -> Schema:
    """Returns the schema of the changes to alerts, by their names."""

    def changes(rule: dict[str, Any]) -> Schema:
        has_threshold = re.search(r">=? [0-9.]+", rule["expr"]) and rule["alert"] not in WITHOUT_THRESHOLD
        return {"$ref": f"#/definitions/{'alertWithThreshold' if has_threshold else 'alert'}"}

    groups = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]
    each = {rule["alert"]: changes(rule) for group in groups for rule in group["rules"]}
    return {"type": "object", "additionalProperties": False, "properties": each}


def other_charts() -> dict[str, str]:
    """Returns what to do about each value of other charts that templates/validate.yaml refuses."""
    charts = yaml.safe_load((CHART / "files" / "other-charts.yaml").read_text())
    return {name: remedy for names in charts.values() for name, remedy in names.items()}


def described() -> dict[tuple[str, ...], str]:
    """Returns the description of each value that has one in values.yaml, in plain text."""
    found: dict[tuple[str, ...], str] = {}
    above: list[tuple[int, str]] = []
    comment: list[str] | None = None
    for line in (CHART / "values.yaml").read_text().splitlines():
        stripped = line.strip()
        if stripped.startswith("# -- "):
            comment = [stripped.removeprefix("# -- ")]
        elif stripped.startswith("# @"):
            continue
        elif stripped.startswith("#"):
            if comment is not None:
                comment.append(stripped.removeprefix("#").strip())
        elif key := re.match(r"( *)([A-Za-z0-9_./-]+):", line):
            indent = len(key[1])
            above = [*(each for each in above if each[0] < indent), (indent, key[2])]
            if comment is not None:
                words = re.sub(r"^\([a-z ]+\) ", "", " ".join(comment))
                words = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", words).replace("`", "")
                found[tuple(name for _, name in above)] = words + "."
            comment = None
    return found


def describe(schema: Schema, path: tuple[str, ...], words: str) -> None:
    """Sets the description of the value at the path."""
    *above, last = path
    for name in above:
        schema = schema["properties"][name]
    properties = schema["properties"]
    properties[last] = {"description": words, **{key: each for key, each in properties[last].items() if key != "description"}}


REFUSED = "Refused: "
"""How the description of a value begins that only templates/validate.yaml refuses."""


def let_through(schema: Schema, names: dict[str, str]) -> None:
    """Lets values through that templates/validate.yaml refuses, and no others."""
    for section in (schema, *schema["properties"].values()):
        for name, each in list(section.get("properties", {}).items()):
            if each.get("description", "").startswith(REFUSED):
                del section["properties"][name]
    for name, remedy in sorted(names.items()):
        *above, last = name.split(".")
        section = schema
        for each in above:
            section = section["properties"][each]
        assert last not in section["properties"], f"{name} is a value of this chart"
        section["properties"][last] = {"description": f"{REFUSED}{remedy}."}


def derived() -> str:
    """Returns the schema's text, with all that is derived."""
    schema = copy.deepcopy(json.loads(FILE.read_text()))
    properties = schema["properties"]
    kinds = {kind: choice(actions) for kind, actions in ACTIONS.items() if kind != "node-condition"}
    # Each condition of a Node has its own action.
    properties["actions"] = mapping({CAMEL[kind]: actions for kind, actions in kinds.items()})
    settings = {flag.key: setting(flag) for flag in flags() if flag.key}
    properties["settings"] = {"type": "object", "additionalProperties": False, "properties": settings}
    properties["pools"] = pools(properties["actions"])
    properties["prometheusRule"]["properties"]["alerts"] = alerts()
    let_through(schema, other_charts())
    for path, words in described().items():
        describe(schema, path, words)
    return json.dumps({**schema, "definitions": {**ALERTS, **definitions()}}, indent=2, ensure_ascii=False) + "\n"
