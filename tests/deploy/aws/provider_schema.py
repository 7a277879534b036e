"""Reads the schema of some of the AWS provider's resources from cdktf's bindings, for `provider/`.

python3 provider_schema.py WHEEL: prints JSON. WHEEL is cdktf-cdktf-provider-aws of PyPI. The script parses the wheel's
code and never runs it.
"""

from __future__ import annotations

import ast
import json
import sys
import zipfile
from typing import Any

RESOURCES = [
    "autoscaling_lifecycle_hook",
    "cloudwatch_event_rule",
    "cloudwatch_event_target",
    "cloudwatch_metric_alarm",
    "eks_pod_identity_association",
    "iam_role",
    "iam_role_policy",
    "kms_key",
    "sqs_queue",
    "sqs_queue_policy",
    "sqs_queue_redrive_allow_policy",
]
DATA_SOURCES = ["caller_identity", "partition", "region"]

META = {"connection", "count", "depends_on", "for_each", "lifecycle", "provider", "provisioners"}
"""Arguments of every resource that are not part of its schema."""

CHOSEN_IF_NOT_GIVEN = {"id", "name", "region", "tags_all"}
"""Optional attributes that the provider fills in. The bindings don't mark them."""

ACCOUNT, REGION = "123456789012", "eu-west-1"

GIVEN = {
    "aws_caller_identity": {"account_id": ACCOUNT},
    "aws_partition": {"partition": "aws"},
    "aws_region": {"id": REGION},
    "aws_cloudwatch_event_rule": {"arn": f"arn:aws:events:{REGION}:{ACCOUNT}:rule/{{name}}"},
    "aws_iam_role": {"arn": f"arn:aws:iam::{ACCOUNT}:role/{{name}}", "name": "{name}"},
    "aws_kms_key": {"arn": f"arn:aws:kms:{REGION}:{ACCOUNT}:key/made"},
    "aws_sqs_queue": {
        "arn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{{name}}",
        "url": f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT}/{{name}}",
    },
}
"""Attributes that AWS derives from a resource's name."""

TYPES = {"builtins.str": "string", "jsii.Number": "number", "builtins.bool": "bool"}

Json = dict[str, Any]


class Module:
    """The module of one resource."""

    def __init__(self, text: str) -> None:
        self.classes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}

    def resource(self, data: bool) -> Json:
        """Returns the resource's schema: the constructor's arguments and the properties."""
        first = next(iter(self.classes))
        schema = self.block(first)
        for attribute in schema["Attributes"].values():
            # A data source returns the attributes that are not given.
            attribute["Computed"] |= data and attribute["Optional"]
        for node in self.classes[first].body:
            if isinstance(node, ast.FunctionDef) and _is_property(node) and node.returns is not None:
                kind = TYPES.get(ast.unparse(node.returns))
                if kind and node.name not in schema["Attributes"] and not _is_binding(node.name):
                    schema["Attributes"][node.name] = _attribute(kind, computed=True)
        return schema

    def block(self, name: str) -> Json:
        """Returns the schema of the arguments of a class's constructor."""
        attributes, blocks = {}, {}
        (init,) = (
            node for node in self.classes[name].body if isinstance(node, ast.FunctionDef) and node.name == "__init__"
        )
        for argument, default in zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True):
            if argument.arg in META:
                continue
            assert argument.annotation is not None
            annotation = ast.unparse(argument.annotation)
            nested = next((inner for inner in self.classes if f"'{inner}'" in annotation), None)
            if nested:
                blocks[argument.arg] = {"Most": 0 if "Sequence" in annotation else 1, "Block": self.block(nested)}
                continue
            optional = default is not None
            filled = optional and argument.arg in CHOSEN_IF_NOT_GIVEN
            attributes[argument.arg] = _attribute(_kind(annotation), not optional, optional, filled)
        return {"Attributes": attributes, "Blocks": blocks}


def _attribute(kind: Any, required: bool = False, optional: bool = False, computed: bool = False) -> Json:
    return {"Type": kind, "Required": required, "Optional": optional, "Computed": computed}


def _kind(annotation: str) -> Any:
    inner = next(kind for name, kind in TYPES.items() if name in annotation.rsplit("Mapping[builtins.str, ", 1)[-1])
    if "typing.Mapping[" in annotation:
        return ["map", inner]
    if "typing.Sequence[" in annotation:
        return ["list", inner]
    return inner


def _is_property(node: ast.FunctionDef) -> bool:
    return any(ast.unparse(decorator) == "builtins.property" for decorator in node.decorator_list)


def _is_binding(name: str) -> bool:
    return name.endswith("_input") or name.startswith("_")


def main() -> None:
    """Prints the schemas."""
    with zipfile.ZipFile(sys.argv[1]) as wheel:

        def schema(module: str, data: bool) -> Json:
            return Module(wheel.read(f"cdktf_cdktf_provider_aws/{module}/__init__.py").decode()).resource(data)

        schemas = {
            "Resources": {f"aws_{name}": schema(name, False) for name in RESOURCES},
            "DataSources": {f"aws_{name}": schema(f"data_aws_{name}", True) for name in DATA_SOURCES},
        }
    every = schemas["Resources"] | schemas["DataSources"]
    for name, values in GIVEN.items():
        for attribute, value in values.items():
            every[name]["Attributes"][attribute]["Value"] = value
    print(json.dumps(schemas, indent=1))


if __name__ == "__main__":
    main()
