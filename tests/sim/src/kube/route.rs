//! Parses requests: the served resources, and the call that a path, a method and a query
//! make.

use super::object::Form;
use bytes::Bytes;
use http::{Method, Request, header};
use serde_json::Value;
use std::collections::BTreeMap;

/// Resources that the server serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Resource {
    Nodes,
    Pods,
    Budgets,
    Events,
    Leases,
    Claims,
    Attachments,
    /// The AWS Load Balancer Controller's, which a cluster has only with the controller.
    Bindings,
    ReplicaSets,
    Deployments,
    /// Admission policies, which the simulation does not enforce.
    Policies,
    /// Which admission policies are in force.
    PolicyBindings,
}

impl Resource {
    pub const ALL: [Self; 12] = [
        Self::Nodes,
        Self::Pods,
        Self::Budgets,
        Self::Events,
        Self::Leases,
        Self::Claims,
        Self::Attachments,
        Self::Bindings,
        Self::ReplicaSets,
        Self::Deployments,
        Self::Policies,
        Self::PolicyBindings,
    ];

    /// Returns group, version, plural name and kind.
    const fn names(self) -> [&'static str; 4] {
        match self {
            Self::Nodes => ["", "v1", "nodes", "Node"],
            Self::Pods => ["", "v1", "pods", "Pod"],
            Self::Budgets => ["policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget"],
            Self::Events => ["", "v1", "events", "Event"],
            Self::Leases => ["coordination.k8s.io", "v1", "leases", "Lease"],
            Self::Claims => ["", "v1", "persistentvolumeclaims", "PersistentVolumeClaim"],
            Self::Attachments => ["storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment"],
            Self::Bindings => ["elbv2.k8s.aws", "v1beta1", "targetgroupbindings", "TargetGroupBinding"],
            Self::ReplicaSets => ["apps", "v1", "replicasets", "ReplicaSet"],
            Self::Deployments => ["apps", "v1", "deployments", "Deployment"],
            Self::Policies => {
                ["admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy"]
            }
            Self::PolicyBindings => [
                "admissionregistration.k8s.io",
                "v1",
                "validatingadmissionpolicybindings",
                "ValidatingAdmissionPolicyBinding",
            ],
        }
    }

    pub const fn group(self) -> &'static str {
        self.names()[0]
    }

    pub const fn plural(self) -> &'static str {
        self.names()[2]
    }

    pub const fn kind(self) -> &'static str {
        self.names()[3]
    }

    /// Returns group and version, as in an object's `apiVersion`.
    pub fn api_version(self) -> String {
        let [group, version, ..] = self.names();
        if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
    }

    /// Returns the name in messages: `pods`, `leases.coordination.k8s.io`.
    pub fn qualified(self) -> String {
        let [group, _, plural, _] = self.names();
        if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") }
    }

    pub const fn is_namespaced(self) -> bool {
        !matches!(self, Self::Nodes | Self::Attachments | Self::Policies | Self::PolicyBindings)
    }
}

/// Verb of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }
}

/// Target of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A resource: all of it, a namespace's (`namespace` is empty for all), or one object.
    Resource { resource: Resource, namespace: String, name: Option<String>, sub: Option<String> },
    /// A path that is not a resource's.
    Path,
}

/// A parsed request.
#[derive(Debug)]
pub(super) struct Call {
    pub target: Target,
    pub verb: Verb,
    pub method: Method,
    pub path: String,
    pub query: BTreeMap<String, String>,
    /// Format of the objects in the answer.
    pub form: Form,
    pub content_type: String,
    pub body: Bytes,
    /// Operation and subject, for the record of calls and the fault plan.
    pub operation: String,
    pub subject: String,
}

impl Call {
    pub fn read(request: Request<Bytes>) -> Self {
        let (head, body) = request.into_parts();
        let path = head.uri.path().trim_end_matches('/').to_owned();
        let query: BTreeMap<String, String> =
            form_urlencoded::parse(head.uri.query().unwrap_or_default().as_bytes()).into_owned().collect();
        let header = |name| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let (target, events_v1) = target(&path);
        let form = if header(header::ACCEPT).contains("as=PartialObjectMetadata") {
            Form::Partial
        } else if events_v1 {
            Form::EventsV1
        } else {
            Form::Full
        };
        let mut call = Self {
            verb: verb(&head.method, &target, &query),
            target,
            method: head.method.clone(),
            path,
            query,
            form,
            content_type: header(header::CONTENT_TYPE).split(';').next().unwrap_or_default().trim().to_owned(),
            body,
            operation: String::new(),
            subject: String::new(),
        };
        call.operation = call.operation();
        call.subject = call.subject();
        call
    }

    /// Returns a query parameter, if it is given and not empty.
    pub fn asked(&self, key: &str) -> Option<&str> {
        self.query.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns whether the call is a dry run.
    pub fn is_dry_run(&self) -> bool {
        self.asked("dryRun") == Some("All")
    }

    fn operation(&self) -> String {
        match &self.target {
            Target::Resource { resource, sub: Some(sub), .. } => {
                format!("{} {}/{sub}", self.verb.name(), resource.plural())
            }
            Target::Resource { resource, .. } => format!("{} {}", self.verb.name(), resource.plural()),
            Target::Path if self.path.starts_with("/apis/auth") => {
                format!("{} {}", self.verb.name(), self.path.rsplit('/').next().unwrap_or_default())
            }
            Target::Path => format!("{} {}", self.method.as_str().to_lowercase(), self.path),
        }
    }

    fn subject(&self) -> String {
        let Target::Resource { resource, namespace, name, .. } = &self.target else {
            return String::new();
        };
        let named = |name: &str| {
            if resource.is_namespaced() { format!("{namespace}/{name}") } else { name.to_owned() }
        };
        if let Some(name) = name {
            return named(name);
        }
        if self.verb == Verb::Create {
            let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
            return body["metadata"]["name"].as_str().map(named).unwrap_or_default();
        }
        let fields = self.asked("fieldSelector").unwrap_or_default();
        let on_node = fields.split(',').find_map(|field| field.trim().strip_prefix("spec.nodeName="));
        on_node.unwrap_or(namespace).to_owned()
    }
}

/// Splits a path; the second value is whether the path is in the group `events.k8s.io`.
fn target(path: &str) -> (Target, bool) {
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let (group, version, rest) = match parts.as_slice() {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return (Target::Path, false),
    };
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
        _ => ("", rest),
    };
    let (plural, name, sub) = match rest {
        [plural] => (*plural, None, None),
        [plural, name] => (*plural, Some(*name), None),
        [plural, name, sub] => (*plural, Some(*name), Some(*sub)),
        _ => return (Target::Path, false),
    };
    let events_v1 = group == "events.k8s.io" && plural == "events";
    let group = if events_v1 { "" } else { group };
    let found = Resource::ALL.into_iter().find(|resource| resource.names()[..3] == [group, version, plural]);
    let Some(resource) = found else {
        return (Target::Path, false);
    };
    // Some resources have no namespace, and a single pod needs one.
    if namespace.is_empty() == resource.is_namespaced() && (name.is_some() || !namespace.is_empty()) {
        return (Target::Path, false);
    }
    let (namespace, name, sub) = (namespace.to_owned(), name.map(str::to_owned), sub.map(str::to_owned));
    (Target::Resource { resource, namespace, name, sub }, events_v1)
}

fn verb(method: &Method, target: &Target, query: &BTreeMap<String, String>) -> Verb {
    let one = matches!(target, Target::Resource { name: Some(_), .. } | Target::Path);
    let watch = query.get("watch").is_some_and(|value| value == "true" || value == "1");
    match *method {
        Method::POST => Verb::Create,
        Method::PUT => Verb::Update,
        Method::PATCH => Verb::Patch,
        Method::DELETE if one => Verb::Delete,
        Method::DELETE => Verb::DeleteCollection,
        _ if one => Verb::Get,
        _ if watch => Verb::Watch,
        _ => Verb::List,
    }
}
