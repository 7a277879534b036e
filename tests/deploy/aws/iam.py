"""Evaluates a queue's policy as IAM does, for the elements that the templates use; any other is an error.

The rules, from the pages "Condition operators" and "Conditions with multiple context keys or values" of IAM's user guide:
all operators and all keys of a statement must hold; of a key's values one must match, and for a negated operator none; if
the request lacks the key, a negated operator holds and the others do not. An explicit Deny wins. Within an account IAM's
Allow is enough; other accounts need both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """A request: a service's, or that of an IAM principal whose own policies allow it."""

    service: str | None = None
    keys: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of_service(service: str, source: str) -> Request:
        """Returns the request of a service on behalf of a resource."""
        return Request(
            service, {"aws:SourceArn": source, "aws:SourceAccount": source.split(":")[4], "aws:SecureTransport": "true"}
        )

    @staticmethod
    def of_principal(arn: str, **keys: str) -> Request:
        """Returns the request of a user, or of a session of a role: the key is the role's ARN then."""
        return Request(None, {"aws:PrincipalArn": arn, "aws:SecureTransport": "true"} | keys)


def may_send(policy: Json, queue: str, request: Request) -> bool:
    """Returns whether SQS takes the message."""
    fitting = [each for each in policy["Statement"] if _fits(each, queue, request)]
    if any(each["Effect"] == "Deny" for each in fitting):
        return False
    of_the_account = request.service is None and request.keys["aws:PrincipalArn"].split(":")[4] == queue.split(":")[4]
    return of_the_account or any(each["Effect"] == "Allow" for each in fitting)


def _fits(statement: Json, queue: str, request: Request) -> bool:
    principal = statement["Principal"]
    named = principal == "*" or request.service in _list(principal.get("Service", []))
    acts = any(fnmatchcase("sqs:SendMessage", action) for action in _list(statement["Action"]))
    return named and acts and statement["Resource"] == queue and _holds(statement.get("Condition", {}), request.keys)


def _holds(conditions: Json, given: dict[str, str]) -> bool:
    return all(
        _one(operator, given.get(key), _list(values))
        for operator, keys in conditions.items()
        for key, values in keys.items()
    )


def _one(operator: str, given: str | None, values: list[str]) -> bool:
    match operator:
        case "ArnEquals" | "ArnLike":
            return given is not None and any(fnmatchcase(given, value) for value in values)
        case "ArnNotEquals" | "ArnNotLike":
            return given is None or not any(fnmatchcase(given, value) for value in values)
        case "Bool":
            return given is not None and given in values
    raise NotImplementedError(operator)


def _list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
