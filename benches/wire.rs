//! Objects as an EKS API server writes them. Most of their content is skipped by the parser.

use serde_json::{Value, json};

/// Labels of a Node of a managed node group, as kubelet, EKS and the cloud controller set them.
const LABELS: [&str; 18] = [
    "alpha.eksctl.io/cluster-name",
    "alpha.eksctl.io/nodegroup-name",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "eks.amazonaws.com/capacityType",
    "eks.amazonaws.com/nodegroup",
    "eks.amazonaws.com/nodegroup-image",
    "eks.amazonaws.com/sourceLaunchTemplateId",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "k8s.io/cloud-provider-aws",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.k8s.aws/zone-id",
    "topology.kubernetes.io/zone",
];

/// Annotations of a Node: the addresses, the CSI driver, volumes.
const ANNOTATIONS: [&str; 4] = [
    "alpha.kubernetes.io/provided-node-ip",
    "csi.volume.kubernetes.io/nodeid",
    "node.alpha.kubernetes.io/ttl",
    "volumes.kubernetes.io/controller-managed-attach-detach",
];

/// Capacity of a Node.
const RESOURCES: [&str; 7] =
    ["cpu", "ephemeral-storage", "hugepages-1Gi", "hugepages-2Mi", "memory", "pods", "vpc.amazonaws.com/pod-eni"];

/// Images that a Node has pulled.
const IMAGES: usize = 30;

/// The id of the n-th instance.
pub fn instance(n: usize) -> String {
    format!("i-{n:017x}")
}

/// The n-th Node: some 13 kB, most of it images, conditions and managed fields.
pub fn node(n: usize) -> String {
    let name = format!("ip-10-{}-{}-{}.eu-west-1.compute.internal", n >> 16, n >> 8 & 255, n & 255);
    let labels = map(LABELS.map(|key| (key, json!(format!("value-of-{n}-{}", key.len())))));
    let annotations = map(ANNOTATIONS.map(|key| (key, json!(format!("{{\"of\":\"{n}\"}}")))));
    let resources = map(RESOURCES.map(|key| (key, json!("81854Ki"))));
    let conditions = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"].map(|kind| {
        json!({
            "lastHeartbeatTime": "2026-11-21T12:00:00Z",
            "lastTransitionTime": "2026-11-20T12:00:00Z",
            "message": format!("kubelet has said of {kind} what there is to say"),
            "reason": format!("KubeletHas{kind}"),
            "status": if kind == "Ready" { "True" } else { "False" },
            "type": kind,
        })
    });
    let images: Vec<_> = (0..IMAGES)
        .map(|image| {
            let name = format!("123456789012.dkr.ecr.eu-west-1.amazonaws.com/team-{image}/service-{image}");
            let names = [format!("{name}@sha256:{:064x}", n * IMAGES + image), format!("{name}:v1.{image}.0")];
            json!({ "names": names, "sizeBytes": 100_000_000 + image })
        })
        .collect();
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "annotations": annotations,
            "creationTimestamp": "2026-11-20T11:59:30Z",
            "labels": labels,
            "managedFields": [
                managed("aws-cloud-controller-manager", &["topology.k8s.aws/zone-id", "k8s.io/cloud-provider-aws"], &[]),
                managed("kube-controller-manager", &[], &["node.alpha.kubernetes.io/ttl"]),
                managed("kubelet", &LABELS, &ANNOTATIONS),
                managed_status(&conditions),
            ],
            "name": name,
            "resourceVersion": (1_000_000 + n).to_string(),
            "uid": format!("4f1e2d3c-0000-4000-8000-{n:012x}"),
        },
        "spec": {
            "providerID": format!("aws:///eu-west-1a/{}", instance(n)),
            "taints": [{ "effect": "NoSchedule", "key": "dedicated", "value": format!("team-{}", n % 20) }],
        },
        "status": {
            "addresses": [
                { "address": format!("10.{}.{}.{}", n >> 16, n >> 8 & 255, n & 255), "type": "InternalIP" },
                { "address": name, "type": "InternalDNS" },
                { "address": name, "type": "Hostname" },
            ],
            "allocatable": resources,
            "capacity": resources,
            "conditions": conditions,
            "daemonEndpoints": { "kubeletEndpoint": { "Port": 10250 } },
            "images": images,
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": format!("7a6b5c4d-0000-4000-8000-{n:012x}"),
                "containerRuntimeVersion": "containerd://2.1.4",
                "kernelVersion": "6.12.46",
                "kubeProxyVersion": "",
                "kubeletVersion": "v1.33.5-eks-113cf36",
                "machineID": format!("ec2{n:029x}"),
                "operatingSystem": "linux",
                "osImage": "Bottlerocket OS 1.48.0 (aws-k8s-1.33)",
                "systemUUID": format!("ec2e1d2c-0000-4000-8000-{n:012x}"),
            },
        },
    })
    .to_string()
}

/// Watch event for a changed object, as on the wire: the type comes first.
pub fn modified(object: &str) -> String {
    news("MODIFIED", object)
}

/// Watch event for an object that exists when the watch begins.
pub fn added(object: &str) -> String {
    news("ADDED", object)
}

/// Bookmark that ends a watch's initial list of Nodes.
pub fn all_nodes_told() -> String {
    let object = json!({
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {
            "resourceVersion": "1000000",
            "creationTimestamp": null,
            "annotations": { "k8s.io/initial-events-end": "true" },
        },
    });
    news("BOOKMARK", &object.to_string())
}

fn news(kind: &str, object: &str) -> String {
    format!(r#"{{"type":"{kind}","object":{object}}}"#)
}

/// A list of these objects, as on the wire.
pub fn list(kind: &str, objects: &[String]) -> String {
    let items = objects.join(",");
    format!(r#"{{"apiVersion":"v1","items":[{items}],"kind":"{kind}","metadata":{{"resourceVersion":"1000000"}}}}"#)
}

/// The n-th pod of a node: some 6 kB. Of every ten pods, one belongs to a DaemonSet, one is critical, and one has an emptyDir.
pub fn pod(n: usize) -> String {
    let (kind, name) = if n.is_multiple_of(10) { ("DaemonSet", "agent") } else { ("ReplicaSet", "web-5d4f8b7c9") };
    let priority = if n % 10 == 1 { 2_000_000_000 } else { 0 };
    let scratch = if n % 10 == 2 { json!({ "emptyDir": {}, "name": "tmp" }) } else { token("tmp") };
    let container = |name: &str| {
        let env: Vec<_> =
            (0..8).map(|n| json!({ "name": format!("SETTING_{n}"), "value": format!("value {n}") })).collect();
        json!({
            "env": env,
            "image": format!("123456789012.dkr.ecr.eu-west-1.amazonaws.com/{name}:v1.2.3"),
            "imagePullPolicy": "IfNotPresent",
            "livenessProbe": { "httpGet": { "path": "/live", "port": 8080, "scheme": "HTTP" }, "periodSeconds": 10 },
            "name": name,
            "ports": [{ "containerPort": 8080, "name": "http", "protocol": "TCP" }],
            "resources": { "limits": { "memory": "256Mi" }, "requests": { "cpu": "100m", "memory": "256Mi" } },
            "terminationMessagePath": "/dev/termination-log",
            "volumeMounts": [{ "mountPath": "/var/run/secrets", "name": "token", "readOnly": true }],
        })
    };
    let conditions = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
    let conditions = conditions.map(
        |kind| json!({ "lastProbeTime": null, "lastTransitionTime": "2026-11-20T12:00:00Z", "status": "True", "type": kind }),
    );
    let statuses = ["web", "proxy"].map(|name| {
        json!({
            "containerID": format!("containerd://{n:064x}"),
            "image": format!("123456789012.dkr.ecr.eu-west-1.amazonaws.com/{name}:v1.2.3"),
            "imageID": format!("123456789012.dkr.ecr.eu-west-1.amazonaws.com/{name}@sha256:{n:064x}"),
            "lastState": {}, "name": name, "ready": true, "restartCount": 0, "started": true,
            "state": { "running": { "startedAt": "2026-11-20T12:00:00Z" } },
        })
    });
    let labels = ["app.kubernetes.io/name", "app.kubernetes.io/version", "pod-template-hash"];
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "annotations": { "kubernetes.io/config.seen": "2026-11-20T12:00:00Z", "prometheus.io/scrape": "true" },
            "creationTimestamp": "2026-11-20T11:59:30Z",
            "generateName": format!("{name}-"),
            "labels": map(labels.map(|key| (key, json!("web")))),
            "managedFields": [managed("kube-controller-manager", &labels, &["prometheus.io/scrape"]), managed_status(&conditions)],
            "name": format!("{name}-{n:05x}"),
            "namespace": format!("team-{}", n % 7),
            "ownerReferences": [{
                "apiVersion": "apps/v1", "blockOwnerDeletion": true, "controller": true, "kind": kind, "name": name,
                "uid": "0f1e2d3c-0000-4000-8000-000000000000",
            }],
            "resourceVersion": (2_000_000 + n).to_string(),
            "uid": format!("5f1e2d3c-0000-4000-8000-{n:012x}"),
        },
        "spec": {
            "containers": [container("web"), container("proxy")],
            "dnsPolicy": "ClusterFirst",
            "nodeName": "ip-10-0-0-0.eu-west-1.compute.internal",
            "priority": priority,
            "restartPolicy": "Always",
            "schedulerName": "default-scheduler",
            "serviceAccountName": "web",
            "terminationGracePeriodSeconds": 30,
            "tolerations": [{ "effect": "NoExecute", "key": "node.kubernetes.io/not-ready", "operator": "Exists" }],
            "volumes": [token("token"), scratch],
        },
        "status": {
            "conditions": conditions,
            "containerStatuses": statuses,
            "hostIP": "10.0.0.0",
            "phase": "Running",
            "podIP": "10.0.0.1",
            "qosClass": "Burstable",
            "startTime": "2026-11-20T12:00:00Z",
        },
    })
    .to_string()
}

fn map<const N: usize>(entries: [(&str, Value); N]) -> Value {
    entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<serde_json::Map<_, _>>().into()
}

/// A volume with a service account's token.
fn token(name: &str) -> Value {
    let sources = json!([
        { "serviceAccountToken": { "expirationSeconds": 3607, "path": "token" } },
        { "configMap": { "items": [{ "key": "ca.crt", "path": "ca.crt" }], "name": "kube-root-ca.crt" } },
    ]);
    json!({ "name": name, "projected": { "defaultMode": 420, "sources": sources } })
}

/// Fields that a manager owns in an object's labels and annotations.
fn managed(manager: &str, labels: &[&str], annotations: &[&str]) -> Value {
    let fields = |keys: &[&str]| -> Value {
        let keys = keys.iter().map(|key| (format!("f:{key}"), json!({})));
        std::iter::once((".".to_owned(), json!({}))).chain(keys).collect::<serde_json::Map<_, _>>().into()
    };
    json!({
        "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": { "f:metadata": { "f:annotations": fields(annotations), "f:labels": fields(labels) } },
        "manager": manager,
        "operation": "Update",
        "time": "2026-11-20T12:00:00Z",
    })
}

/// Fields that the kubelet owns in an object's status.
fn managed_status(conditions: &[Value]) -> Value {
    let fields = ["f:lastHeartbeatTime", "f:lastTransitionTime", "f:message", "f:reason", "f:status", "f:type"];
    let of_one = map(fields.map(|key| (key, json!({}))));
    let of_all = conditions.iter().map(|condition| (format!("k:{{\"type\":{}}}", condition["type"]), of_one.clone()));
    let amounts = map(RESOURCES.map(|key| (key, json!({}))));
    json!({
        "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": { "f:status": {
            "f:allocatable": amounts,
            "f:capacity": amounts,
            "f:conditions": of_all.collect::<serde_json::Map<_, _>>(),
            "f:images": {},
        } },
        "manager": "kubelet",
        "operation": "Update",
        "subresource": "status",
        "time": "2026-11-21T12:00:00Z",
    })
}
