"""A Kubernetes client of plain HTTP calls with JSON: no library stands between a test and the API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests

Object = dict[str, Any]
"""Kubernetes object as JSON."""

NODES = "/api/v1/nodes"
NAMESPACES = "/api/v1/namespaces"
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"

_TIMEOUT = 60.0


class Kube:
    """A client with one user's token."""

    def __init__(self, url: str, authority: Path, token: str) -> None:
        self.url = url
        self.authority = authority
        self._token = token
        self._session = requests.Session()
        self._session.trust_env = False  # ignores the environment's proxies and certificate bundles
        self._session.verify = str(authority)
        self._session.headers["Authorization"] = f"Bearer {token}"

    def another(self) -> Kube:
        """Returns a client for another thread."""
        return Kube(self.url, self.authority, self._token)

    def impersonating(self, user: str, group: str) -> Kube:
        """Returns a client whose calls count as those of another user, of this group."""
        client = self.another()
        client._session.headers.update({"Impersonate-User": user, "Impersonate-Group": group})
        return client

    def get(self, path: str) -> Object:
        """Returns an object."""
        return self._call("GET", path)

    def find(self, path: str) -> Object | None:
        """Returns an object, or None if it does not exist."""
        response = self._session.get(self.url + path, timeout=_TIMEOUT)
        return None if response.status_code == 404 else _checked(response)

    def items(self, path: str, labels: str = "", fields: str = "") -> list[Object]:
        """Returns the objects of a collection that match the selectors."""
        items: list[Object] = self._call("GET", path, params={"labelSelector": labels, "fieldSelector": fields})[
            "items"
        ]
        return items

    def everything(self) -> Iterator[Object]:
        """Yields every object of every kind that can be listed, each with its kind."""
        groups = self.get("/apis")["groups"]
        for version in ["/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)]:
            for resource in self.get(version)["resources"]:
                if "list" in resource["verbs"]:
                    for each in self.items(f"{version}/{resource['name']}"):
                        yield {**each, "kind": resource["kind"]}

    def count(self, path: str) -> int:
        """Returns the size of a collection without reading it. The API server counts only without selectors."""
        page = self._call("GET", path, params={"limit": 1})
        return len(page["items"]) + int(page["metadata"].get("remainingItemCount", 0))

    def some(self, path: str, fields: str) -> bool:
        """Returns whether any object of a collection matches a field selector."""
        return bool(self._call("GET", path, params={"limit": 1, "fieldSelector": fields})["items"])

    def version(self, path: str) -> str:
        """Returns a collection's current resource version, for `history`."""
        return str(self._call("GET", path, params={"limit": 1})["metadata"]["resourceVersion"])

    def history(self, path: str, name: str, since: str) -> list[Object]:
        """Returns all states of an object from a version up to now, so that tests need not catch short-lived ones."""
        last = self.get(f"{path}/{name}")["metadata"]["resourceVersion"]
        states: list[Object] = []
        for event in self._watch(path, name, since):
            states.append(event["object"])
            if event["object"]["metadata"]["resourceVersion"] == last:
                return states
        raise AssertionError(f"{path}/{name}: the current state is not among {len(states)} states")

    def last_state(self, path: str, name: str, since: str) -> Object:
        """Returns the state in which an object was deleted after a version."""
        deleted = (event["object"] for event in self._watch(path, name, since) if event["type"] == "DELETED")
        state: Object | None = next(deleted, None)
        assert state, f"{path}/{name} was not deleted"
        return state

    def _watch(self, path: str, name: str, since: str) -> Iterator[Object]:
        watch = {"watch": "true", "fieldSelector": f"metadata.name={name}", "resourceVersion": since}
        with self._session.get(self.url + path, params=watch, stream=True, timeout=_TIMEOUT) as response:
            assert response.ok, f"{path}: {response.status_code} {response.text}"
            for line in response.iter_lines():
                event = json.loads(line)
                assert event["type"] != "ERROR", event
                yield event

    def create(self, path: str, body: Object) -> Object:
        """Creates an object, or posts to a subresource."""
        return self._call("POST", path, json=body)

    def refusal(self, path: str, body: Object) -> Object:
        """Posts what must be refused, in a dry run; returns the Status of the refusal."""
        response = self._session.post(self.url + path, params={"dryRun": "All"}, json=body, timeout=_TIMEOUT)
        assert not response.ok, f"{path}: not refused, but {response.status_code} {response.text}"
        status: Object = response.json()
        return status

    def patch(self, path: str, body: Object) -> Object:
        """Merge-patches an object."""
        return self._call(
            "PATCH", path, data=json.dumps(body), headers={"Content-Type": "application/merge-patch+json"}
        )

    def replace(self, path: str, body: Object) -> bool:
        """Replaces an object; returns False if another client has written it since it was read."""
        response = self._session.put(self.url + path, json=body, timeout=_TIMEOUT)
        if response.status_code == 409:
            return False
        _checked(response)
        return True

    def delete(self, path: str) -> None:
        """Deletes an object. A missing object is fine."""
        response = self._session.delete(self.url + path, timeout=_TIMEOUT)
        if response.status_code != 404:
            _checked(response)

    def remove(self, path: str) -> None:
        """Removes a pod from the API at once, as otherwise only its kubelet does. A missing pod is fine."""
        response = self._session.delete(self.url + path, json={"gracePeriodSeconds": 0}, timeout=_TIMEOUT)
        if response.status_code != 404:
            _checked(response)

    def text(self, path: str) -> str:
        """Returns an answer that is not JSON."""
        response = self._session.get(self.url + path, timeout=_TIMEOUT)
        assert response.ok, f"{path}: {response.status_code} {response.text}"
        return response.text

    def _call(self, method: str, path: str, **request: Any) -> Object:
        return _checked(self._session.request(method, self.url + path, timeout=_TIMEOUT, **request))


def _checked(response: requests.Response) -> Object:
    request = response.request
    assert response.ok, f"{request.method} {request.url}: {response.status_code} {response.text}"
    body: Object = response.json()
    return body
