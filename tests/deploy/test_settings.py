"""Every setting of `ebbtide run` is a value of the chart. By default the chart sets none."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from chart import CHART, HELM4, ROOT, VALUES, Object, container, environment, everything, the
from flags import CAMEL, KINDS, Flag, flags

ALWAYS = {
    "EBBTIDE_QUEUE_URL",
    "EBBTIDE_ADMIN_ADDRESS",
    "EBBTIDE_STATUS_ADDRESS",
    "EBBTIDE_STATUS_PEERS",
    "EBBTIDE_POD_NAME",
    "EBBTIDE_POD_NAMESPACE",
}
"""Variables that the chart sets always."""

NOTIFICATIONS = {
    "url": "EBBTIDE_NOTIFY_URL",
    "headers": "EBBTIDE_NOTIFY_HEADER",
    "signingKey": "EBBTIDE_NOTIFY_SECRET",
    "routingKey": "EBBTIDE_NOTIFY_ROUTING_KEY",
    "phases": "EBBTIDE_NOTIFY",
    "format": "EBBTIDE_NOTIFY_FORMAT",
    "template": "EBBTIDE_NOTIFY_TEMPLATE",
    "proxy": "EBBTIDE_NOTIFY_PROXY",
    "timeout": "EBBTIDE_NOTIFY_TIMEOUT",
}
"""Variables that the chart sets from `notifications`, the first four from a Secret."""

TRACES = {"EBBTIDE_OTLP_ENDPOINT", "EBBTIDE_OTLP_HEADER"}
"""Variables that the chart sets from `traces`, the second from a Secret."""

QUEUE = "queueUrl: https://sqs.eu-west-1.amazonaws.com/123456789012/ebbtide\n"
SCHEMA = json.loads((CHART / "values.schema.json").read_text())

EXAMPLES = {
    "switch": ("true", "true"),
    "DURATION": ("1m30s", "1m30s"),
    "[KIND=]DURATION": ("{all: 10m, asgTerminate: 30m}", "10m,asg-terminate=30m"),
    "KIND=DURATION": ("{asgTerminate: 2m}", "asg-terminate=2m"),
    "[KIND=]POINT": ("{all: before-drain, asgTerminate: both}", "before-drain,asg-terminate=both"),
    "KIND=now|DURATION-before": ("{scheduledChange: 2h-before}", "scheduled-change=2h-before"),
    "auto|off|DURATION": ("off", "off"),
    "CODE=ACTION": ("{AWS_EC2_A_FAULT: cordon, AWS_EC2_B: drain}", "AWS_EC2_A_FAULT=cordon,AWS_EC2_B=drain"),
    "N|P%": ("20%", "20%"),
    "N|P%|none": ("20%", "20%"),
    "LABEL=N|P%": ("{zone: 1, example.com/nodePool: 10%, many: 1000000}", "example.com/nodePool=10%,many=1000000,zone=1"),
    "SELECTOR": ("{zone: a, example.com/nodePool: '', all: b}", "all=b,example.com/nodePool=,zone=a"),
    "TYPE=STATUS[/REASON]:TOLERATION=ACTION": ("['A=False/Xid*:5m=drain', 'Ready=Unknown:1h=report']", "A=False/Xid*:5m=drain,Ready=Unknown:1h=report"),
    "[KIND=]leave|delete": ("{all: leave, nodeCondition: delete}", "leave,node-condition=delete"),
    "ARN|any": ("[arn:aws:eks:eu-west-1:123456789012:cluster/a]", "arn:aws:eks:eu-west-1:123456789012:cluster/a"),
    "PRIORITY": ("[-10, 0, '10000', 2000000000]", "-10,0,10000,2000000000"),
    "TAG[=VALUE]": ("a=b", "a=b"),
    "HOST": ("[a, '*.b']", "a,*.b"),
    "KEY": ("[a, example.com/b]", "a,example.com/b"),
    "KEY|PREFIX*": ("[a, example.com/*, example.com/b-*]", "a,example.com/*,example.com/b-*"),
    "KEY[=VALUE]": ("[a, 'example.com/b=c']", "a,example.com/b=c"),
    "KEY[=VALUE]:EFFECT": ("['going=true:NoSchedule', 'x:NoExecute']", "going=true:NoSchedule,x:NoExecute"),
}
"""Example of a value and the resulting variable, by a flag's form."""


def example(flag: Flag) -> tuple[str, str]:
    """Returns an example of a flag's value, and the resulting variable."""
    if flag.choices:
        # The last source needs a second value.
        first, second = flag.choices[:2]
        return (f"[{first}, {second}]", f"{first},{second}") if flag.list else (second, second)
    return EXAMPLES.get(flag.form) or (("[a, b]", "a,b") if flag.list else ("a", "a"))


@pytest.mark.parametrize("flag", [each for each in flags() if each.key], ids=lambda each: each.flag)
def test_each_flag_has_a_value(flag: Flag) -> None:
    value, described = example(flag)
    # Some settings need asgLaunch: ready; the chart refuses them without it.
    queue = QUEUE + "actions: {asgLaunch: ready}\n"
    source = {"node-hook": "nodes", "on-condition": "queue, nodes"}.get(flag.flag, "")
    sources = f"settings:\n  source: [{source}]\n" if source else "settings:\n"
    queue = "" if source == "nodes" else queue
    before = environment(HELM4.objects(values=queue + (sources if source else "")))
    now = environment(HELM4.objects(values=f"{queue}{sources}  {flag.key}: {value}"))
    assert flag.variable not in before, "the chart sets the variable without a value"
    # What Nodes say is acted on by the holder of a Lease.
    lease = {"EBBTIDE_NODES_LEASE": "ebbtide-nodes"} if flag.flag == "source" else {}
    assert now == {**before, **lease, flag.variable: described}


POOLS = """
pools:
  - name: gpu
    nodeSelector: {accelerator: nvidia, zone: a}
    actions: {rebalance: drain, spot: null}
    drainTimeout: {all: 1h, asgTerminate: 2h}
    wave: {zone: 1}
    podGrace: null
  - {name: web, nodeSelector: "tier in (web, api)", atDeadline: leave, hold: both}
"""


def test_each_pool_is_a_line() -> None:
    given = environment(HELM4.objects(values=QUEUE + POOLS))
    assert given["EBBTIDE_POOL"].splitlines() == [
        "gpu; node-selector=accelerator=nvidia,zone=a; on=rebalance=drain; drain-timeout=1h,asg-terminate=2h; wave=zone=1",
        "web; node-selector=tier in (web, api); at-deadline=leave; hold=both",
    ]


def test_a_pool_may_have_each_pooled_flag() -> None:
    pooled = [flag for flag in flags() if flag.pooled]
    keys = [flag.key or "actions" for flag in pooled]
    assert [*keys, "name", "nodeSelector"].sort() == [*SCHEMA["properties"]["pools"]["items"]["properties"]].sort()
    for flag in pooled:
        value, described = ("{spot: cordon}", "spot=cordon") if flag.flag == "on" else example(flag)
        line = environment(HELM4.objects(values=f"{QUEUE}pools: [{{name: a, nodeSelector: {{b: c}}, {flag.key or 'actions'}: {value}}}]"))
        assert line["EBBTIDE_POOL"] == f"a; node-selector=b=c; {flag.flag}={described}"


def test_actions_are_passed_on() -> None:
    given = environment(HELM4.objects(values=f"{QUEUE}actions: {{spot: cordon, asgLaunch: ready}}"))
    assert given["EBBTIDE_ON"] == "asg-launch=ready,spot=cordon"


def test_the_program_knows_each_variable() -> None:
    known = {flag.variable for flag in flags()}
    # No values have both a queue and what is only without one.
    described = set[str]()
    for values in (yaml.safe_dump(everything()), (VALUES / "nodes.yaml").read_text()):
        objects = HELM4.objects(values=values)
        described |= {*environment(objects), *secret_keys(objects)}
    ours = {name for name in described if name.startswith("EBBTIDE_")}
    assert ours - known <= {"EBBTIDE_NODES_LEASE"}, "the program does not know these"
    assert known | {"EBBTIDE_NODES_LEASE"} == ours | {"EBBTIDE_POD_NAME", "EBBTIDE_POD_NAMESPACE"}, "the cases must set each"
    assert {each["name"] for each in container(HELM4.objects(values=QUEUE))["env"]} == {*ALWAYS, "AWS_REGION"}


@pytest.mark.parametrize(
    ("status", "address", "peers"),
    [
        ("{port: 9000}", "[::]:9000", "release-ebbtide-status.default.svc:9000"),
        ("{shared: false}", "127.0.0.1:8081", None),
        ("{enabled: false, shared: true}", "off", None),
        # No NetworkPolicy applies there.
        ("{}\nhostNetwork: true", "127.0.0.1:8081", None),
        ("{shared: true, port: 9000}\nhostNetwork: true", "[::]:9000", "release-ebbtide-status.default.svc:9000"),
    ],
)
def test_the_status_page_is_shared_unless_the_network_is_the_nodes(status: str, address: str, peers: str | None) -> None:
    objects = HELM4.objects(values=f"{QUEUE}status: {status}\n")
    described = environment(objects)
    assert described["EBBTIDE_STATUS_ADDRESS"] == address
    found = described.get("EBBTIDE_STATUS_PEERS")
    services = [each["metadata"]["name"] for each in objects if each["kind"] == "Service" and "status" in each["metadata"]["name"]]
    assert (found is None) == (peers is None) == (services == [])
    if peers:
        assert found.startswith(services[0] + "."), "the replicas ask for the Service's name"
        assert found.endswith(".svc:9000")


@pytest.mark.parametrize("key", ["nodeSelector", "podSelector"])
def test_a_selector_may_be_a_text(key: str) -> None:
    (variable,) = [flag.variable for flag in flags() if flag.key == key]
    assert environment(HELM4.objects(values=f"{QUEUE}settings: {{{key}: 'a!=b,!c'}}"))[variable] == "a!=b,!c"


def test_an_empty_list_in_place_of_a_default_is_passed_on() -> None:
    args = container(HELM4.objects(values=QUEUE + "settings: {ignoreHook: [], keepCordonWhile: []}"))["args"]
    assert args == ["run", "--ignore-hook=", "--keep-cordon-while="]


def test_one_drain_timeout_is_for_all_kinds() -> None:
    assert environment(HELM4.objects(values=QUEUE + "settings: {drainTimeout: 30m}"))["EBBTIDE_DRAIN_TIMEOUT"] == "30m"


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_reach_the_program_in_its_own_words(kind: str) -> None:
    # Each condition of a Node has its own action.
    chosen = {} if kind == "node-condition" else {CAMEL[kind]: "report"}
    values = yaml.safe_dump({"actions": chosen, "settings": {"drainTimeout": {CAMEL[kind]: "9m"}}})
    described = environment(HELM4.objects(values=QUEUE + values))
    assert described.get("EBBTIDE_ON") == (f"{kind}=report" if chosen else None)
    assert described["EBBTIDE_DRAIN_TIMEOUT"] == f"{kind}=9m"


def test_the_schema_has_the_programs_kinds() -> None:
    assert len(KINDS) == 9
    settings = SCHEMA["properties"]["settings"]["properties"]
    kinds = list(CAMEL.values())
    # Each condition of a Node has its own action.
    assert list(SCHEMA["properties"]["actions"]["properties"]) == [kind for kind in kinds if kind != "nodeCondition"]
    assert list(settings["delay"]["properties"]) == kinds
    assert list(settings["drainTimeout"]["properties"]) == list(settings["hold"]["properties"]) == ["all", *kinds]


@pytest.mark.parametrize("key", ["heartbeat", "waitForLoadBalancers"])
def test_off_needs_no_quotes(key: str) -> None:
    (variable,) = [flag.variable for flag in flags() if flag.key == key]
    assert environment(HELM4.objects(values=QUEUE + f"settings:\n  {key}: off\n"))[variable] == "off"


def test_the_described_defaults_match_the_program() -> None:
    values = (CHART / "values.yaml").read_text()
    found = re.findall(r"# @default -- (.*)\n(?:  #.*\n)*  (\S+): null", values)
    documented = {key: default for default, key in found}
    for flag in flags():
        if flag.key:
            words = [word for word in re.findall("`([^`]+)`", flag.default) if "--" not in word and "=" not in word]
            assert flag.key in documented, f"{flag.key} has no default in values.yaml"
            assert all(f"`{each}`" in documented[flag.key] for word in words for each in word.split(",")), f"{flag.key}: {documented[flag.key]}"
    (on,) = [flag.default for flag in flags() if flag.flag == "on"]
    others = dict(word.split("=") for word in re.findall("`([^`]+)`", on) if "=" in word)
    assert on.startswith("`drain`, but ") and len(others) == 3
    actions = {kind: others.get(kind, "drain") for kind in KINDS if kind != "node-condition"}
    assert {kind: documented[CAMEL[kind]].strip("`") for kind in actions} == actions


@pytest.mark.parametrize(
    ("queue", "region"),
    [
        ("https://sqs.eu-west-1.amazonaws.com/123456789012/q", "eu-west-1"),
        ("https://sqs.us-gov-east-1.amazonaws.com/123456789012/q", "us-gov-east-1"),
        ("https://sqs.cn-north-1.amazonaws.com.cn/123456789012/q", "cn-north-1"),
        ("https://sqs-fips.us-east-2.amazonaws.com/123456789012/q", "us-east-2"),
        ("https://sqs.ap-southeast-2.api.aws/123456789012/q", "ap-southeast-2"),
        ("https://vpce-0a-1b.sqs.eu-west-3.vpce.amazonaws.com/123456789012/q", "eu-west-3"),
        ("https://eu-west-1.queue.amazonaws.com/123456789012/q", "eu-west-1"),
        ("https://queue.example.com/123456789012/q", None),
        ("http://127.0.0.1:4566/123456789012/q", None),
    ],
)
def test_the_queue_url_sets_the_region(queue: str, region: str | None) -> None:
    assert environment(HELM4.objects("--set", f"queueUrl={queue}")).get("AWS_REGION") == region


def test_the_grace_period_covers_the_shutdown() -> None:
    service = "".join(path.read_text() for path in sorted((ROOT / "src" / "service").glob("*.rs")))
    shutdown = int(re.search(r"const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs\((\d+)\);", service)[1])
    pod = the("Deployment", HELM4.objects(values=QUEUE))["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > shutdown
    assert SCHEMA["properties"]["terminationGracePeriodSeconds"]["minimum"] > shutdown


def test_the_chart_has_the_programs_version() -> None:
    manifest = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
    assert manifest["appVersion"] == version


def test_artifact_hub_knows_the_default_image_and_the_icon_exists() -> None:
    manifest = yaml.safe_load((CHART / "Chart.yaml").read_text())
    (image,) = yaml.safe_load(manifest["annotations"]["artifacthub.io/images"])
    default = yaml.safe_load((CHART / "values.yaml").read_text())["image"]["repository"]
    assert image == {"name": "ebbtide", "image": f"{default}:{manifest['appVersion']}"}
    raw = manifest["home"] + "/raw/main/"
    assert manifest["icon"].startswith(raw)
    assert (ROOT / manifest["icon"].removeprefix(raw)).is_file()


def test_each_flag_of_notifications_has_a_value() -> None:
    known = {flag.variable for flag in flags() if flag.variable.startswith("EBBTIDE_NOTIFY")}
    assert known == set(NOTIFICATIONS.values())


def secret_keys(objects: list[Object]) -> dict[str, tuple[str, str, bool]]:
    """Returns Secret, key and whether it may be missing, of each variable that comes from a Secret."""
    env = container(objects)["env"]
    found = [(each["name"], each.get("valueFrom", {}).get("secretKeyRef")) for each in env]
    return {name: (it["name"], it["key"], it.get("optional", False)) for name, it in found if it}


@pytest.mark.parametrize(("kind", "required"), [("slack", "url"), ("pagerduty", "routing-key")])
def test_secrets_of_notifications_come_from_the_secret(kind: str, required: str) -> None:
    objects = HELM4.objects(values=QUEUE + f"notifications: {{existingSecret: receiver, format: {kind}}}")
    keys = {"url": "url", "headers": "headers", "signingKey": "signing-key", "routingKey": "routing-key"}
    expected = {NOTIFICATIONS[name]: ("receiver", key, key != required) for name, key in keys.items()}
    assert secret_keys(objects) == expected


def test_phases_and_the_template_are_passed_on() -> None:
    values = QUEUE + """
notifications:
  existingSecret: receiver
  secretKeys: {url: webhookurl}
  phases: {spot: all, all: blocked+failed, rebalance: none}
  template: |
    {"text": "{{ title }}"}
"""
    objects = HELM4.objects(values=values)
    described = environment(objects)
    assert described["EBBTIDE_NOTIFY"] == "blocked+failed,rebalance=none,spot=all"
    assert secret_keys(objects)["EBBTIDE_NOTIFY_URL"] == ("receiver", "webhookurl", False)
    template = the("ConfigMap", objects)
    assert template["data"] == {"template.j2": '{"text": "{{ title }}"}\n'}
    pod = the("Deployment", objects)["spec"]["template"]
    assert pod["spec"]["volumes"] == [{"name": "notifications", "configMap": {"name": template["metadata"]["name"]}}]
    (mount,) = container(objects)["volumeMounts"]
    assert f"{mount['mountPath']}/template.j2" == described["EBBTIDE_NOTIFY_TEMPLATE"]
    other = the("Deployment", HELM4.objects(values=values.replace("title", "text")))["spec"]["template"]
    assert pod["metadata"]["annotations"] != other["metadata"]["annotations"], "the pods must change with the template"


def test_traces_have_an_endpoint_and_headers_from_a_secret() -> None:
    assert {flag.variable for flag in flags() if flag.variable.startswith("EBBTIDE_OTLP")} == TRACES
    objects = HELM4.objects(values=QUEUE + "traces: {endpoint: 'http://collector:4318', existingSecret: collector}")
    assert environment(objects)["EBBTIDE_OTLP_ENDPOINT"] == "http://collector:4318"
    assert secret_keys(objects) == {"EBBTIDE_OTLP_HEADER": ("collector", "headers", False)}


def test_the_schema_has_the_programs_formats() -> None:
    (words,) = [flag.choices for flag in flags() if flag.flag == "notify-format"]
    described = SCHEMA["properties"]["notifications"]["properties"]
    assert described["format"]["enum"] == [*words, None]
    assert list(described["phases"]["properties"]) == ["all", *CAMEL.values()]
