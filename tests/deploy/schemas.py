"""The published schemas of Kubernetes and of the kinds of others, and kubeconform, which compares objects with them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from api import KNOWN, SCHEMAS
from chart import Object, run, source, tool

KUBERNETES_KINDS = [
    "clusterrole-rbac-v1",
    "clusterrolebinding-rbac-v1",
    "configmap-v1",
    "daemonset-apps-v1",
    "deployment-apps-v1",
    "namespace-v1",
    "networkpolicy-networking-v1",
    "pod-v1",
    "poddisruptionbudget-policy-v1",
    "role-rbac-v1",
    "rolebinding-rbac-v1",
    "service-v1",
    "serviceaccount-v1",
]

SINCE_1_30 = [
    "validatingadmissionpolicy-admissionregistration-v1",
    "validatingadmissionpolicybinding-admissionregistration-v1",
]
"""Kinds that the chart creates from Kubernetes 1.30 on."""

_MONITORING = "example/prometheus-operator-crd/monitoring.coreos.com_"
CRDS = [
    ("prometheus-operator", f"{_MONITORING}podmonitors.yaml"),
    ("prometheus-operator", f"{_MONITORING}prometheusrules.yaml"),
    ("prometheus-operator", f"{_MONITORING}servicemonitors.yaml"),
    ("argo-cd", "manifests/crds/application-crd.yaml"),
    ("argo-cd", "manifests/crds/applicationset-crd.yaml"),
    ("argo-cd", "manifests/crds/appproject-crd.yaml"),
    ("helm-controller", "config/crd/bases/helm.toolkit.fluxcd.io_helmreleases.yaml"),
    ("source-controller", "config/crd/bases/source.toolkit.fluxcd.io_ocirepositories.yaml"),
    ("policy-controller", "config/300-clusterimagepolicy.yaml"),
]
"""Modules of tools.txt, and the files of them that define a kind."""


def write(folder: Path) -> None:
    """Writes strict schemas for kubeconform, a folder for each version of Kubernetes."""
    of_others = dict(schema for module, file in CRDS for schema in _schemas_of(module, file))
    for version in KNOWN:
        (folder / version).mkdir()
        shipped = SCHEMAS / f"v{version}-local-strict"
        definitions = json.loads((shipped / "_definitions.json").read_text())["$defs"]
        since = [file for file in SINCE_1_30 if (shipped / f"{file}.json").exists()]
        for file in [*KUBERNETES_KINDS, *since]:
            schema = standalone(json.loads((shipped / f"{file}.json").read_text()), definitions)
            (folder / version / f"{file}.json").write_text(json.dumps(schema))
        for name, text in of_others.items():
            (folder / version / name).write_text(text)


def _schemas_of(module: str, file: str) -> Iterator[tuple[str, str]]:
    """Yields the schema of each version of the kind that a file of a module defines, with the name of its own file."""
    # Some are large.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    crd = yaml.load((source(module) / file).read_text(), loader)["spec"]
    for served in (each for each in crd["versions"] if each["served"]):
        schema = strict(served["schema"]["openAPIV3Schema"])
        # Every object has these, and some definitions leave them out.
        schema["properties"] |= {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
        }
        yield f"{crd['names']['singular']}-{crd['group'].partition('.')[0]}-{served['name']}.json", json.dumps(schema)


def standalone(schema: Object, definitions: Object) -> Object:
    """Returns a schema with all its references, because kubeconform follows none to other files."""
    needed: Object = {}
    waiting = [schema]
    while waiting:
        for name in re.findall(r'"(?:/api/_definitions.json)?#/\$defs/([^"]+)"', json.dumps(waiting.pop())):
            if name not in needed:
                needed[name] = definitions[name]
                waiting.append(definitions[name])
    whole = {**schema, "$defs": needed}
    del whole["$id"]  # references would be relative to it
    return json.loads(json.dumps(whole).replace('"/api/_definitions.json#', '"#'))


def strict(schema: Any) -> Any:
    """Returns a schema that allows no additional properties at any level."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if isinstance(made.get("properties"), dict) and "type" in made:
        made.setdefault("additionalProperties", False)
    return made


def conform(made: str, version: str, schemas: Path) -> str:
    """Returns kubeconform's complaints about objects."""
    done = run(
        tool("kubeconform"),
        "-strict",
        "-kubernetes-version",
        version,
        "-schema-location",
        f"{schemas}/{version}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json",
        given=made,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr
