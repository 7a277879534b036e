"""What others write on Nodes: kubelets with the rights of a kubelet, and pods that may patch every Node."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from harness import admission, chart, messages, roles
from harness.agent import Agents
from harness.control_plane import SERVICE
from harness.kube import NODES, Kube, Object
from harness.wait import eventually
from harness.world import Node, World, drained, marks

POLICY = "a kubelet may not"
"""What each refusal of the policy for kubelets says."""

MARKS = "only Ebbtide may change its annotations"
"""What each refusal of the policy for all others says."""

QUARANTINE = {"key": "quarantine", "value": "ir", "effect": "NoSchedule"}
TIER = "node-restriction.kubernetes.io/tier"


def kubelet(world: World, name: str) -> Kube:
    """Returns a client with the identity of a node's kubelet."""
    return world.kube.impersonating(f"system:node:{name}", "system:nodes")


def refused(kube: Kube, path: str, body: Object) -> str:
    """Returns the API server's reason for refusing a patch; empty if it is accepted."""
    try:
        kube.patch(path, body)
    except AssertionError as error:
        if ": 422 " not in str(error) and ": 403 " not in str(error):
            raise
        return str(error)
    return ""


def wait_policy(kube: Kube, node: Node, policy: str = POLICY) -> None:
    """Waits until the API server has taken up the policy, which takes it a second or two."""
    # Where both policies refuse, the API server gives the reason of either; labels are of one only.
    kind = "labels" if policy == POLICY else "annotations"
    path, body = f"{NODES}/{node.name}?dryRun=All", {"metadata": {kind: {"ebbtide/notice.x": ""}}}
    eventually("the policy holds", lambda: policy in refused(kube, path, body))


@pytest.fixture
def policy(world: World) -> Iterator[None]:
    """The chart's policies for what Ebbtide keeps on Nodes, as they are by default."""
    values = world.folder / "policy.yaml"
    values.write_text("queueUrl: https://sqs.eu-west-1.amazonaws.com/123456789012/ebbtide\n")
    with admission.policies(world.kube, chart.rendered(values, world.name, world.name)):
        yield


@pytest.fixture
def kubelet_policy(world: World) -> Iterator[None]:
    """The policy for kubelets alone, as it is without the chart's roles."""
    values = world.folder / "policy.yaml"
    values.write_text("queueUrl: https://sqs.eu-west-1.amazonaws.com/123456789012/ebbtide\nrbac: {create: false}\nservicePolicy: false\n")
    with admission.policies(world.kube, chart.rendered(values, world.name, world.name)) as made:
        assert len(made) == 2
        yield


@pytest.mark.versions
def test_a_kubelet_does_not_have_a_quarantine_removed(world: World) -> None:
    node = world.node()
    path = f"{NODES}/{node.name}"
    taints = [QUARANTINE, {**QUARANTINE, "key": "dedicated", "value": "payments"}]
    world.kube.patch(path, {"spec": {"taints": taints, "unschedulable": True}})
    world.label(node, TIER, "1")
    captured = kubelet(world, node.name)
    for own in ({"spec": {"taints": taints[1:]}}, {"metadata": {"labels": {TIER: None}}}):
        assert "is not allowed" in refused(captured, path, own), "Kubernetes keeps the kubelet from it"
    service = world.service()

    undo = {"cordon": True, "taints": ["quarantine=ir:NoSchedule", "dedicated=payments:NoSchedule"], "labels": [TIER]}
    expired = json.dumps({"v": 1, "until": "2020-01-01T00:00:00Z"})
    annotations = {"ebbtide/notice.0123456789abcdef": expired, "ebbtide/undo": json.dumps(undo)}
    assert refused(captured, path, {"metadata": {"annotations": annotations}}) == ""

    eventually("the marks are removed", lambda: not marks(world.see(node)))
    assert {"quarantine", "dedicated"} <= {taint["key"] for taint in world.see(node)["spec"]["taints"]}
    assert world.see(node)["metadata"]["labels"][TIER] == "1"
    # It is counted when the API server has answered, a moment after the patch.
    refused_undo = [({"what": "undo"}, 1.0)]
    eventually("the refusal is counted", lambda: service.samples("ebbtide_node_refusals_total") == refused_undo)


@pytest.mark.versions
@pytest.mark.usefixtures("kubelet_policy")
def test_a_kubelet_writes_nothing_of_ebbtides(world: World) -> None:
    node = world.node()
    own = f"{NODES}/{node.name}"
    captured = kubelet(world, node.name)
    wait_policy(captured, node)

    world.annotate(node, "ebbtide/ignore", "true")
    world.label(node, "ebbtide/kind", "spot")
    for path in (own, f"{own}/status"):
        for value in ("x", None):
            for body in ({"annotations": {"ebbtide/ignore": value}}, {"labels": {"ebbtide/kind": value}}):
                assert POLICY in refused(captured, path, {"metadata": body}), (path, body)
        for body in ({"annotations": {"ebbtide/notice.x": "{}"}}, {"labels": {"ebbtide/x": ""}}):
            assert POLICY in refused(captured, path, {"metadata": body}), (path, body)
        # What the API server can't evaluate for its size, it would let through.
        for kind in ("annotations", "labels"):
            many = {f"x{n}": "" for n in range(1_001)}
            assert POLICY in refused(captured, path, {"metadata": {kind: many}}), (path, kind)
    # Nor does it remove keys from a Node that another client has made so large.
    world.kube.patch(own, {"metadata": {"labels": {f"x{n}": "" for n in range(1_001)}}})
    few = {"metadata": {"labels": {f"x{n}": None for n in range(500)}}}
    assert "more than 1000" in refused(captured, own, few)
    assert refused(captured, f"{own}/status", {"status": {"nodeInfo": {"bootID": "one"}}}) == ""
    world.kube.patch(own, {"metadata": {"labels": {f"x{n}": None for n in range(1_001)}}})
    # A status that it reports, and what is not Ebbtide's, it still writes.
    assert refused(captured, f"{own}/status", {"status": {"nodeInfo": {"bootID": "another"}}}) == ""
    others = {"annotations": {"csi.volume.kubernetes.io/nodeid": "{}"}, "labels": {"example.com/pool": "blue"}}
    assert refused(captured, own, {"metadata": others}) == ""


@pytest.mark.versions
@pytest.mark.usefixtures("kubelet_policy")
def test_a_kubelet_registers_without_keys_of_ebbtides(world: World) -> None:
    names = [f"{world.name}-{name}" for name in ("labelled", "annotated", "plain")]
    world.nodes += [Node(name, "i-0123456789abcdef0") for name in names]
    labelled, annotated, plain = names

    def registered(name: str, meta: Object) -> str:
        try:
            kubelet(world, name).create(NODES, {"metadata": {"name": name, **meta}})
        except AssertionError as error:
            return str(error)
        return ""

    first = {"labels": {"ebbtide/x": ""}}
    eventually(
        "the policy holds", lambda: POLICY in registered(labelled, first) or world.kube.delete(f"{NODES}/{labelled}")
    )
    assert POLICY in registered(annotated, {"annotations": {"ebbtide/notice.x": "{}"}})
    # As with `--node-labels example.com/pool=blue`; and without any label.
    assert registered(plain, {"labels": {"example.com/pool": "blue"}}) == ""
    assert registered(annotated, {}) == ""


@pytest.mark.usefixtures("policy")
def test_the_service_drains_under_the_policy(world: World) -> None:
    node = world.node()
    captured = kubelet(world, node.name)
    wait_policy(captured, node)
    world.run("web", on=node)
    world.service()
    world.send(messages.spot_warning(node.instance))
    eventually("the node is drained", lambda: drained(world, node))
    # The kubelet of a marked Node goes on reporting.
    assert refused(captured, f"{NODES}/{node.name}/status", {"status": {"nodeInfo": {"bootID": "another"}}}) == ""


STATE = [
    *(f"ebbtide/{name}.x" for name in ("notice", "says", "shift")),
    *(f"ebbtide/{name}" for name in ("undo", "booted", "replacement", "replaces", "held")),
]
"""Annotations by which Ebbtide keeps its state."""


@pytest.fixture
def driver(world: World) -> Iterator[Kube]:
    """A client with the identity of a pod that may patch every Node, such as that of a storage driver."""
    name, api = f"{world.name}-driver", "/apis/rbac.authorization.k8s.io/v1"
    user = f"system:serviceaccount:{world.name}:driver"
    rule = {"apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["create", "patch"]}
    bound = {"kind": "ServiceAccount", "namespace": world.name, "name": "driver"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    named = {"metadata": {"name": name}}
    world.kube.create(f"{api}/clusterroles", {**named, "rules": [rule]})
    world.kube.create(f"{api}/clusterrolebindings", {**named, "roleRef": role, "subjects": [bound]})
    roles.wait_held(world.kube, user, "", [rule])
    yield world.kube.impersonating(user, "system:serviceaccounts")
    for kind in ("clusterrolebindings", "clusterroles"):
        world.kube.delete(f"{api}/{kind}/{name}")


@pytest.mark.versions
@pytest.mark.usefixtures("policy")
def test_a_pod_that_may_patch_nodes_does_not_speak_for_ebbtide(world: World, driver: Kube) -> None:
    node = world.node()
    own = f"{NODES}/{node.name}"
    wait_policy(driver, node, MARKS)

    for path in (own, f"{own}/status"):
        for key in STATE:
            assert MARKS in refused(driver, path, {"metadata": {"annotations": {key: "{}"}}}), (path, key)
        many = {**{f"x{n}": "" for n in range(1_001)}, STATE[0]: "{}"}
        assert MARKS in refused(driver, path, {"metadata": {"annotations": many}}), path
    with pytest.raises(AssertionError, match=MARKS):
        driver.create(NODES, {"metadata": {"name": f"{world.name}-new", "annotations": {STATE[0]: "{}"}}})

    # An administrator may set and remove them, as a test of the agent does; others neither change nor remove them.
    for key in STATE:
        world.annotate(node, key, "{}")
        for path in (own, f"{own}/status"):
            for value in ("[]", None):
                assert MARKS in refused(driver, path, {"metadata": {"annotations": {key: value}}}), (path, key, value)
        assert refused(driver, own, {"metadata": {"annotations": {"example.com/x": key}}}) == "", "the others are free"
        world.kube.patch(own, {"metadata": {"annotations": {key: None}}})
    # Nor does anybody remove them together with what has made the Node too large.
    many = {f"x{n}": "" for n in range(1_001)}
    world.kube.patch(own, {"metadata": {"annotations": many}})
    assert MARKS in refused(driver, own, {"metadata": {"annotations": dict.fromkeys(many)}})
    assert refused(driver, own, {"spec": {"unschedulable": True}}) == "", "what is no annotation is free"
    world.kube.patch(own, {"metadata": {"annotations": dict.fromkeys(many)}})
    # What people and their controllers set is not restricted, nor is anything that is not Ebbtide's.
    for free in ("ebbtide/ignore", "ebbtide/hold", "ebbtide/release", "ebbtide/allow-test", "example.com/x"):
        for value in ("true", "false", None):
            assert refused(driver, own, {"metadata": {"annotations": {free: value}}}) == "", (free, value)
    others = {"metadata": {"labels": {"ebbtide/kind": "spot"}}, "spec": {"unschedulable": True}}
    assert refused(driver, own, others) == ""


@pytest.mark.usefixtures("policy")
def test_a_pod_that_may_patch_nodes_does_not_undo_an_uncordon(world: World, driver: Kube) -> None:
    node = world.node()
    wait_policy(driver, node, MARKS)
    world.annotate(node, "ebbtide/notice.x", "{}")
    own = f"{NODES}/{node.name}"
    # A merge patch, a patch of the whole list of annotations, and one that also cordons.
    for body in ({"annotations": {"ebbtide/notice.x": None}}, {"annotations": None}):
        assert MARKS in refused(driver, own, {"metadata": body, "spec": {"unschedulable": True}}), body
    assert "ebbtide/notice.x" in world.see(node)["metadata"]["annotations"]


@pytest.mark.versions
def test_the_api_server_adds_nothing_to_the_policies(world: World) -> None:
    values = world.folder / "all.yaml"
    values.write_text("settings: {source: [nodes]}\nagent: {enabled: true}\n")
    objects = chart.rendered(values, world.name, world.name)
    rendered = [each for each in objects if each["kind"].startswith("ValidatingAdmissionPolicy")]
    assert len(rendered) == 10
    with admission.policies(world.kube, objects) as made:
        # Tools that compare what is there with what they rendered find no difference.
        assert [each["spec"] for each in made] == [each["spec"] for each in rendered]
        for each in made:
            if each["kind"] == "ValidatingAdmissionPolicy":
                path = f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{each['metadata']['name']}"
                checked = eventually("its types are checked", lambda path=path: world.kube.get(path).get("status"))
                assert not checked.get("typeChecking"), f"{path}: {checked}"


@pytest.mark.usefixtures("policy")
def test_a_service_without_the_right_says_which_it_needs(world: World, driver: Kube) -> None:
    node = world.node()
    wait_policy(driver, node, MARKS)
    world.run("web", on=node)
    service = world.service()
    world.refused_by = MARKS
    with roles.without(world.kube, SERVICE, "ebbtide", "marks"):
        world.send(messages.spot_warning(node.instance))
        needs = 'allows "write" on "marks" of the API group "ebbtide": docs/security.md'
        eventually("the log names the right", lambda: needs in service.process.log.read_text().replace("\\", ""))
    eventually("the node is drained", lambda: drained(world, node))


@pytest.mark.usefixtures("policy")
def test_an_agent_speaks_for_its_node_under_the_policy(world: World, driver: Kube) -> None:
    node = world.node()
    wait_policy(driver, node, MARKS)
    agents = Agents(world)
    try:
        user = f"system:serviceaccount:{world.name}:{agents.account}"
        rules = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]}]
        rules += [{"apiGroups": ["ebbtide"], "resources": ["marks"], "verbs": ["write"]}]
        roles.wait_held(world.kube, user, "", rules)
        says = {"metadata": {"annotations": {"ebbtide/says.spot": "{}"}}}
        assert refused(agents.client(node), f"{NODES}/{node.name}", says) == ""
    finally:
        agents.close()
