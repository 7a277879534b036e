"""What the chart's schema has of other people's APIs: the objects that its values hand on as they are.

A field is known if any Kubernetes that the chart takes has it: a schema is not told the cluster's version.
"""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import yaml

from chart import OLDEST, Object, source

SCHEMAS = Path(importlib.util.find_spec("kubernetes_validate").origin).parent / "kubernetes-json-schema"
"""The schemas of Kubernetes' API, a folder for each version."""

_VERSIONS = sorted(
    (folder.name.removeprefix("v").removesuffix("-local-strict") for folder in SCHEMAS.glob("v*-local-strict")),
    key=lambda version: [int(part) for part in version.split(".")],
)
KNOWN = _VERSIONS[_VERSIONS.index(OLDEST) :]
"""The versions that the chart is checked against, the oldest first."""

CORE, NETWORKING = "io.k8s.api.core.v1.", "io.k8s.api.networking.v1."
HANDED_ON = [
    CORE + "Affinity",
    CORE + "EnvVar",
    CORE + "LocalObjectReference",
    CORE + "PodDNSConfig",
    CORE + "PodSecurityContext",
    CORE + "ResourceRequirements",
    CORE + "SecurityContext",
    CORE + "Toleration",
    CORE + "TopologySpreadConstraint",
    CORE + "Volume",
    CORE + "VolumeMount",
    NETWORKING + "NetworkPolicyEgressRule",
    NETWORKING + "NetworkPolicyPeer",
]
"""What values are, or lists of values are made of; what stands in them is found from here."""

UNSPECIFIC: dict[str, Object] = {
    "IntOrString": {"type": ["integer", "string", "null"]},
    "ObjectMeta": {"type": ["object", "null"]},
    "Quantity": {
        "type": ["string", "number", "null"],
        "pattern": r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(n|u|m|k|Ki|[MGTPE]i?|[eE][+-]?[0-9]+)?$",
    },
}
"""Fields that are not copied unchanged: alternatives would give several error sentences."""

SECCOMP = ["RuntimeDefault", "Localhost", "Unconfined"]
EFFECTS = ["NoSchedule", "PreferNoSchedule", "NoExecute"]
WORDS = {
    "AppArmorProfile.type": SECCOMP,
    "HostPathVolumeSource.type": [
        "",
        "DirectoryOrCreate",
        "Directory",
        "FileOrCreate",
        "File",
        "Socket",
        "CharDevice",
        "BlockDevice",
    ],
    "ImageVolumeSource.pullPolicy": ["Always", "IfNotPresent", "Never"],
    "LabelSelectorRequirement.operator": ["In", "NotIn", "Exists", "DoesNotExist"],
    "NetworkPolicyPort.protocol": ["TCP", "UDP", "SCTP"],
    "NodeSelectorRequirement.operator": ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"],
    "PodSecurityContext.fsGroupChangePolicy": ["Always", "OnRootMismatch"],
    "PodSecurityContext.seLinuxChangePolicy": ["Recursive", "MountOption"],
    "PodSecurityContext.supplementalGroupsPolicy": ["Merge", "Strict"],
    "SeccompProfile.type": SECCOMP,
    "SecurityContext.procMount": ["Default", "Unmasked"],
    "Toleration.effect": [*EFFECTS, ""],
    "Toleration.operator": ["Exists", "Equal", "Lt", "Gt", ""],
    "TopologySpreadConstraint.nodeAffinityPolicy": ["Honor", "Ignore"],
    "TopologySpreadConstraint.nodeTaintsPolicy": ["Honor", "Ignore"],
    "TopologySpreadConstraint.whenUnsatisfiable": ["DoNotSchedule", "ScheduleAnyway"],
    "VolumeMount.mountPropagation": ["None", "HostToContainer", "Bidirectional"],
    "VolumeMount.recursiveReadOnly": ["Disabled", "IfPossible", "Enabled"],
}
"""Where only some words will do, which the API's schema does not tell."""

RESOURCES = "^(cpu|memory|ephemeral-storage|hugepages-.+|.+/.+)$"
"""The names of a container's resources: others than Kubernetes' own begin with a domain."""


def definitions() -> Object:
    """All that the values need."""
    found: Object = {"RelabelConfig": _relabeling()}
    waiting = list(HANDED_ON)
    apis = [
        json.loads((SCHEMAS / f"v{each}-local-strict" / "_definitions.json").read_text())["$defs"] for each in KNOWN
    ]
    while waiting:
        name = waiting.pop()
        short = name.rpartition(".")[2]
        if short in found:
            continue
        if short in UNSPECIFIC:
            found[short] = UNSPECIFIC[short]
            continue
        versions = [api[name] for api in apis if name in api]
        found[short] = _closed(short, versions)
        waiting += re.findall(r'#/\$defs/([^"]+)"', json.dumps(versions))
    for each in ("limits", "requests"):
        # Not by propertyNames: helm names a wrong place for what that finds.
        amounts = found["ResourceRequirements"]["properties"][each]
        amounts["patternProperties"] = {RESOURCES: amounts["additionalProperties"]}
        amounts["additionalProperties"] = False
    return dict(sorted(found.items()))


def _closed(name: str, versions: list[Object]) -> Object:
    """One kind of object, with the fields of all versions, and no others."""
    fields: Object = {}
    for version in versions:
        fields |= version["properties"]
    always = sorted(set.intersection(*(set(version.get("required", [])) for version in versions)))
    handed_on = name in {each.rpartition(".")[2] for each in HANDED_ON}
    return {
        # The templates look into these.
        "type": "object" if handed_on else ["object", "null"],
        "additionalProperties": False,
        **({"required": always} if always else {}),
        "properties": {field: _field(f"{name}.{field}", schema) for field, schema in sorted(fields.items())},
    }


def _field(name: str, schema: Object) -> Object:
    if name in WORDS:
        return {"enum": [*WORDS[name], *([None] if "null" in schema["type"] else [])]}
    return _plain(schema)


def _plain(schema: Any) -> Object:
    """Only what is checked."""
    if "$ref" in schema:
        return {"$ref": "#/definitions/" + schema["$ref"].rpartition(".")[2]}
    kept = {key: schema[key] for key in ("type", "enum", "pattern") if key in schema}
    return kept | {key: _plain(schema[key]) for key in ("items", "additionalProperties") if key in schema}


def _relabeling() -> Object:
    """The Prometheus Operator's."""
    crds = source("prometheus-operator") / "example" / "prometheus-operator-crd"
    crd = yaml.safe_load((crds / "monitoring.coreos.com_podmonitors.yaml").read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    relabeling = spec["podMetricsEndpoints"]["items"]["properties"]["relabelings"]["items"]
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {field: _plain(schema) for field, schema in sorted(relabeling["properties"].items())},
    }
