"""Evaluates our CloudFormation templates as CloudFormation does: parameters, conditions, loops.

The module supports only the functions that the templates use; any other is an error.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "aws"
STACK = FOLDER / "cloudformation.yaml"
HOOKS = FOLDER / "hooks.yaml"

NO_PERMISSION_NEEDED = {"sts:GetCallerIdentity"}
"""Calls that need no permission."""

NOT_THE_SERVICE = {"sqs:SendMessage"}
"""Calls with the permissions of the user of `ebbtide send`."""

Value = Any

_NOTHING = object()
"""Placeholder for AWS::NoValue, until it is removed."""


class _Loader(yaml.SafeLoader):
    """Reads short forms of functions as their long forms."""


def _short(loader: _Loader, suffix: str, node: yaml.Node) -> Value:
    if isinstance(node, yaml.ScalarNode):
        argument: Value = loader.construct_scalar(node)
        if suffix == "GetAtt":
            argument = argument.split(".", 1)
    elif isinstance(node, yaml.SequenceNode):
        argument = loader.construct_sequence(node, deep=True)
    else:
        argument = loader.construct_mapping(node, deep=True)
    return {suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}": argument}


_Loader.add_multi_constructor("!", _short)


class Refused(Exception):
    """CloudFormation's error about the parameters."""


@dataclass
class Stack:
    """A template with its parameters. `ref` and `attribute` resolve references to resources."""

    path: Path
    given: dict[str, str]
    pseudo: dict[str, str]
    ref: Callable[[str], str] = lambda name: f"<{name}>"
    attribute: Callable[[str, str], str] = lambda name, attribute: f"<{name}.{attribute}>"
    template: dict[str, Value] = field(init=False)

    def __post_init__(self) -> None:
        self.template = yaml.load(self.path.read_text(), _Loader)  # a safe loader, with constructors
        unknown = set(self.given) - set(self.template["Parameters"])
        if unknown:
            raise Refused(f"no such parameters: {unknown}")
        for name, parameter in self.template["Parameters"].items():
            self._check(name, parameter)
        for rule in self.template.get("Rules", {}).values():
            if "RuleCondition" not in rule or self._decide(rule["RuleCondition"]):
                for assertion in rule["Assertions"]:
                    if not self._decide(assertion["Assert"]):
                        raise Refused(assertion["AssertDescription"])

    def resources(self, kind: str | None = None) -> dict[str, dict[str, Value]]:
        """Returns the properties of each created resource by its logical name; with `kind`, only of this type."""
        return {name: made["Properties"] for name, made in self._made().items() if kind in (None, made["Type"])}

    def rendered(self) -> dict[str, Value]:
        """Returns the template without functions, conditions and policies as text, so that linters see all of it."""
        resources = self._made()
        for resource in resources.values():
            for key in ("PolicyDocument", "AssumeRolePolicyDocument"):
                if key in resource["Properties"]:
                    resource["Properties"][key] = document(resource["Properties"][key])
        return {"AWSTemplateFormatVersion": "2010-09-09", "Resources": resources}

    def outputs(self) -> dict[str, str]:
        """Returns the values of the outputs."""
        outputs = self.template.get("Outputs", {}).items()
        kept = (item for item in outputs if "Condition" not in item[1] or self.holds(item[1]["Condition"]))
        return {name: self.resolve(output["Value"]) for name, output in kept}

    def holds(self, condition: str) -> bool:
        """Returns whether a condition of the template is met."""
        return self._decide(self.template["Conditions"][condition])

    def resolve(self, value: Value) -> Value:
        """Returns a value without functions."""
        match value:
            case {"Ref": "AWS::NoValue"}:
                return _NOTHING
            case {"Ref": name}:
                return self._ref(name)
            case {"Fn::GetAtt": [name, attribute]}:
                return self.attribute(name, attribute)
            case {"Fn::If": [condition, yes, no]}:
                return self.resolve(yes if self.holds(condition) else no)
            case {"Fn::Sub": [text, names]}:
                return self._substitute(text, {name: self.resolve(inner) for name, inner in names.items()})
            case {"Fn::Sub": text}:
                return self._substitute(text, {})
            case {"Fn::Join": [separator, texts]}:
                return str(separator).join(self.resolve(texts))
            case {"Fn::Split": [separator, text]}:
                return self.resolve(text).split(separator)
            case {"Fn::Select": [place, values]}:
                return self.resolve(values)[int(place)]
            case dict():
                unknown = [key for key in value if str(key).startswith("Fn::")]
                if unknown:
                    raise NotImplementedError(str(unknown))
                resolved = {key: self.resolve(inner) for key, inner in value.items()}
                return {key: inner for key, inner in resolved.items() if inner is not _NOTHING}
            case list():
                return [inner for inner in map(self.resolve, value) if inner is not _NOTHING]
        return value

    def _made(self) -> dict[str, dict[str, Value]]:
        made = {}
        for name, resource in self._expanded(self.template["Resources"]).items():
            if "Condition" not in resource or self.holds(resource["Condition"]):
                others = {key: value for key, value in resource.items() if key != "Condition"}
                made[name] = others | {"Properties": self.resolve(resource["Properties"])}
        return made

    def _check(self, name: str, parameter: dict[str, Value]) -> None:
        text = str(self.given.get(name, parameter.get("Default")))
        problem = parameter.get("ConstraintDescription", "is not allowed")
        if text not in [str(allowed) for allowed in parameter.get("AllowedValues", [text])]:
            raise Refused(f"{name}: {text} {problem}")
        values = text.split(",") if parameter["Type"] == "CommaDelimitedList" else [text]
        if not all(re.search(parameter.get("AllowedPattern", ""), value) for value in values):
            raise Refused(f"{name}: {text} {problem}")
        if parameter["Type"] == "Number" and not parameter["MinValue"] <= int(text) <= parameter["MaxValue"]:
            raise Refused(f"{name}: {text} {problem}")

    def _decide(self, condition: Value) -> bool:
        match condition:
            case {"Condition": name}:
                return self.holds(name)
            case {"Fn::Equals": [one, other]}:
                return bool(self.resolve(one) == self.resolve(other))
            case {"Fn::Not": [inner]}:
                return not self._decide(inner)
            case {"Fn::And": inner}:
                return all(map(self._decide, inner))
            case {"Fn::Or": inner}:
                return any(map(self._decide, inner))
        raise NotImplementedError(str(condition))

    def _ref(self, name: str) -> Value:
        if name in self.template["Parameters"]:
            parameter = self.template["Parameters"][name]
            value = self.given.get(name, parameter.get("Default"))
            match parameter["Type"]:
                case "CommaDelimitedList":
                    return str(value).split(",")
                case "Number":
                    return int(value)
            return str(value)
        if name in self.pseudo:
            return self.pseudo[name]
        return self.ref(name)

    def _substitute(self, text: str, names: dict[str, str]) -> str:
        def value(found: re.Match[str]) -> str:
            name = found[1]
            if name in names:
                return names[name]
            return str(self.attribute(*name.split(".", 1)) if "." in name else self._ref(name))

        return re.sub(r"\$\{([^}!]+)\}", value, text)

    def _expanded(self, resources: dict[str, Value]) -> dict[str, Value]:
        """Expands Fn::ForEach, like the transform AWS::LanguageExtensions."""
        expanded = {}
        for name, resource in resources.items():
            if not name.startswith("Fn::ForEach::"):
                expanded[name] = resource
                continue
            variable, values, template = resource
            for value in self.resolve(values):
                expanded |= _put(template, variable, value)
        return expanded


def _put(template: Value, variable: str, value: str) -> Value:
    """Substitutes a loop's variable: `&{…}` stands for its letters and digits."""
    if isinstance(template, dict):
        return {_put(key, variable, value): _put(inner, variable, value) for key, inner in template.items()}
    if isinstance(template, list):
        return [_put(inner, variable, value) for inner in template]
    if isinstance(template, str):
        plain = template.replace(f"&{{{variable}}}", re.sub(r"[^A-Za-z0-9]", "", value))
        return plain.replace(f"${{{variable}}}", value)
    return template


def of_stack(name: str, parameters: dict[str, str], region: str, account: str) -> Stack:
    """Returns the template of the queue, the rules and the role, with names and ARNs like AWS's."""
    pseudo = {
        "AWS::StackName": name,
        "AWS::Partition": "aws",
        "AWS::Region": region,
        "AWS::AccountId": account,
    }
    raw = Stack(STACK, parameters, pseudo)
    names = {
        "Queue": ("sqs", name),
        "DeadLetterQueue": ("sqs", f"{name}-dead-letters"),
        "Key": ("kms", "key/made"),
        **{rule: ("events", f"rule/{made['Name']}") for rule, made in raw.resources("AWS::Events::Rule").items()},
    }

    def attribute(resource: str, what: str) -> str:
        if resource not in names or what != "Arn":
            return f"arn:aws:iam::{account}:role/{resource}"
        service, path = names[resource]
        return f"arn:aws:{service}:{region}:{account}:{path}"

    return Stack(STACK, parameters, pseudo, lambda resource: names.get(resource, ("", resource))[1], attribute)


def document(text: str | dict[str, Value]) -> dict[str, Value]:
    """Returns a policy, which a template may have as text."""
    return json.loads(text) if isinstance(text, str) else text


def allowed(policy: str | dict[str, Value]) -> set[str]:
    """Returns the actions that a policy allows."""
    statements = [each for each in document(policy)["Statement"] if each["Effect"] == "Allow"]
    actions = (each["Action"] for each in statements)
    return {action for each in actions for action in ([each] if isinstance(each, str) else each)}


def service_policies(made: Stack) -> dict[str, dict[str, Value]]:
    """Returns the policies of the service's role."""
    policies = made.resources("AWS::IAM::Policy").items()
    return {name: document(policy["PolicyDocument"]) for name, policy in policies if "Notification" not in name}


def granted(parameters: dict[str, str]) -> set[str]:
    """Returns the actions that the role of a stack with these parameters may call."""
    policies = service_policies(of_stack("any", parameters, "eu-west-1", "123456789012")).values()
    return {action for policy in policies for action in allowed(policy)}


def not_permitted(calls: set[str], parameters: dict[str, str]) -> set[str]:
    """Returns the calls, named without their services, that the role of a stack with these parameters does not permit."""
    may = NO_PERMISSION_NEEDED | NOT_THE_SERVICE | granted(parameters)
    return {call for call in calls if call.removesuffix("Batch") not in {action.partition(":")[2] for action in may}}


if __name__ == "__main__":
    # Prints the stack's template, rendered with parameters: NAME=VALUE…
    print(
        json.dumps(
            of_stack("any", dict(each.split("=", 1) for each in sys.argv[1:]), "eu-west-1", "123456789012").rendered()
        )
    )
