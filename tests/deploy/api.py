"""Writes the parts of the chart's schema that come from other APIs: objects that the values pass on unchanged.

The schema accepts a field that any supported version of Kubernetes has, because it does not know the cluster's version.
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
"""Folder of the schemas of Kubernetes' API, with a folder for each version."""

_VERSIONS = sorted(
    (folder.name.removeprefix("v").removesuffix("-local-strict") for folder in SCHEMAS.glob("v*-local-strict")),
    key=lambda version: [int(part) for part in version.split(".")],
)
KNOWN = _VERSIONS[_VERSIONS.index(OLDEST) :]
"""Versions of Kubernetes that the chart supports, the oldest first."""

APPS, CORE, NETWORKING = "io.k8s.api.apps.v1.", "io.k8s.api.core.v1.", "io.k8s.api.networking.v1."
HANDED_ON = [
    APPS + "DaemonSetUpdateStrategy",
    APPS + "DeploymentStrategy",
    CORE + "Affinity",
    CORE + "Container",
    CORE + "EnvFromSource",
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
"""Types of the values, or of the elements of lists. Their fields lead to all other types."""

UNSPECIFIC: dict[str, Object] = {
    "IntOrString": {"type": ["integer", "string", "null"]},
    "ObjectMeta": {"type": ["object", "null"]},
    "Quantity": {
        "type": ["string", "number", "null"],
        "pattern": r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(n|u|m|k|Ki|[MGTPE]i?|[eE][+-]?[0-9]+)?$",
    },
}
"""Fields that are not copied unchanged: alternatives would cause several error messages."""

SECCOMP = ["RuntimeDefault", "Localhost", "Unconfined"]
EFFECTS = ["NoSchedule", "PreferNoSchedule", "NoExecute"]
WORDS = {
    "AppArmorProfile.type": SECCOMP,
    "DaemonSetUpdateStrategy.type": ["RollingUpdate", "OnDelete"],
    "DeploymentStrategy.type": ["RollingUpdate", "Recreate"],
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
"""Fields with a fixed set of words, which the API's schema does not contain."""

RESOURCES = "^(cpu|memory|ephemeral-storage|hugepages-.+|.+/.+)$"
"""Names of a container's resources. Names that are not Kubernetes' own begin with a domain."""


def definitions() -> Object:
    """Returns all definitions that the values need."""
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
        # Without propertyNames, for whose errors helm names a wrong place.
        amounts = found["ResourceRequirements"]["properties"][each]
        amounts["patternProperties"] = {RESOURCES: amounts["additionalProperties"]}
        amounts["additionalProperties"] = False
    return dict(sorted(found.items()))


def _closed(name: str, versions: list[Object]) -> Object:
    """Returns the schema of a kind of object, with exactly the fields of all versions."""
    fields: Object = {}
    for version in versions:
        fields |= version["properties"]
    always = sorted(set.intersection(*(set(version.get("required", [])) for version in versions)))
    handed_on = name in {each.rpartition(".")[2] for each in HANDED_ON}
    return {
        # The templates read these.
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
    """Returns a schema without the parts that are not checked."""
    if "$ref" in schema:
        return {"$ref": "#/definitions/" + schema["$ref"].rpartition(".")[2]}
    kept = {key: schema[key] for key in ("type", "enum", "pattern") if key in schema}
    return kept | {key: _plain(schema[key]) for key in ("items", "additionalProperties") if key in schema}


def _relabeling() -> Object:
    """Returns the schema of the Prometheus Operator's relabelings."""
    crds = source("prometheus-operator") / "example" / "prometheus-operator-crd"
    crd = yaml.safe_load((crds / "monitoring.coreos.com_podmonitors.yaml").read_text())
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    relabeling = spec["podMetricsEndpoints"]["items"]["properties"]["relabelings"]["items"]
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {field: _plain(schema) for field, schema in sorted(relabeling["properties"].items())},
    }
