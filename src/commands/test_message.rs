//! Messages made for a Node, which `explain` looks through and `send` sends.

use crate::clients::connect::Clients;
mod body;
mod group;
mod post;

pub use group::GroupHook;
pub use post::send;

use self::body::Subject;
use self::group::hook_of_instance;
use crate::clients::gate::{AwsError, CALL_TIMEOUT, Call, Class, Gate, KubeError};
use crate::fact::Facts;
use crate::pipeline::event::{InstanceId, Kind};
use crate::pipeline::node::label::Selector;
use crate::pipeline::node::{Node, TrimmedNode, node_api};
use crate::pipeline::queue::Place;
use crate::runtime::random;
use jiff::Timestamp;
use tokio::time::Instant;

/// The account of a message whose queue is not known. Nothing reads it.
const NO_ACCOUNT: &str = "000000000000";

/// The annotation by which a Node allows messages that are made to test.
const ALLOW: &str = "ebbtide/allow-test";

/// Why there is no message for a Node.
#[derive(Debug, thiserror::Error)]
pub enum Unmade {
    /// The API server did not say what the Node is.
    #[error(transparent)]
    Unread(#[from] KubeError),
    /// There is no such Node.
    #[error("there is no Node \"{0}\"; kubectl get nodes lists those there are")]
    NoNode(String),
    /// The Node is no EC2 instance.
    #[error("Node \"{0}\" is no EC2 instance: its spec.providerID must be aws:///ZONE/INSTANCE-ID")]
    NoInstance(String),
    /// The Node does not allow tests.
    #[error(
        "Node {0} does not allow tests, which cordon and drain it; to allow them: kubectl annotate node {0} {ALLOW}=true"
    )]
    NotAllowed(String),
    /// There is no group and no hook to name.
    #[error("{0}; give --group NAME and --hook NAME")]
    NoHook(String),
}

/// The kind of this name.
///
/// # Errors
/// That there is none, and which there are.
pub fn kind(name: &str) -> Result<Kind, String> {
    Kind::ALL.into_iter().find(|kind| kind.as_str() == name).ok_or_else(|| {
        let kinds = Kind::ALL.map(Kind::as_str).join(", ");
        format!("--kind: there is no kind \"{name}\"; the kinds are {kinds}")
    })
}

/// What a message is wanted for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The kind.
    pub kind: Kind,
    /// The Node's name.
    pub node: &'a str,
    /// The group and the hook, where they are given.
    pub hook: Option<(&'a str, &'a str)>,
    /// Hooks that others complete: no message is made for them.
    pub ignored_hooks: &'a [String],
    /// The queue that it is for, where that is known.
    pub queue_url: &'a str,
    /// Whether it is to be sent, which the Node must allow.
    pub sent: bool,
}

/// A message made for a Node.
#[derive(Debug)]
pub struct Trial {
    /// The message's body.
    pub body: String,
    /// What it is known by.
    pub identity: String,
    /// The Node, as `selector` sees it.
    pub node: Node,
}

/// Makes a message for a Node. Only reads. What is in the way of a group's and a hook's name is left to `named`, which may make some up.
///
/// # Errors
/// Why there is none.
pub async fn make(
    clients: &Clients,
    (facts, gate, selector): (&Facts, &Gate, &Selector),
    wanted: Wanted<'_>,
    (now, named): (Timestamp, impl FnOnce(String) -> Result<GroupHook, Unmade>),
) -> Result<Trial, Unmade> {
    let object = read_node(clients, gate, wanted.node).await?;
    let region = region(&object, clients);
    let node = Node::from_wire(object, selector).ok_or_else(|| Unmade::NoInstance(wanted.node.to_owned()))?;
    if wanted.sent && node.annotations.get(ALLOW).is_none_or(|value| value != "true") {
        return Err(Unmade::NotAllowed(node.name.to_string()));
    }
    let hook = match (wanted.kind, wanted.hook) {
        (Kind::AsgTerminate | Kind::AsgLaunch, None) => {
            let found = find_hook(clients, facts, &node.instance, wanted).await;
            found.or_else(named)?
        }
        (_, Some((group, hook))) => GroupHook { group: group.to_owned(), hook: hook.to_owned() },
        _ => GroupHook { group: String::new(), hook: String::new() },
    };
    let identity = body::identity(random::u128());
    let account = Place::of(wanted.queue_url).and_then(|place| place.account);
    let about = Subject {
        instance: &node.instance,
        region: &region,
        account: account.as_deref().unwrap_or(NO_ACCOUNT),
        hook: (&hook.group, &hook.hook),
    };
    let body = body::message(wanted.kind, &about, &identity, now);
    Ok(Trial { body, identity, node })
}

async fn read_node(clients: &Clients, gate: &Gate, name: &str) -> Result<TrimmedNode, Unmade> {
    let api = node_api(clients.kube.clone());
    let call = Call { verb: "get", resource: "nodes", subject: name };
    let found = gate.kube(call, Class::List, Instant::now() + CALL_TIMEOUT, || api.get_opt(name)).await?;
    found.ok_or_else(|| Unmade::NoNode(name.to_owned()))
}

/// The hook that would hold the instance; else why it is not known.
async fn find_hook(
    clients: &Clients,
    facts: &Facts,
    instance: &InstanceId,
    Wanted { kind, ignored_hooks, .. }: Wanted<'_>,
) -> Result<GroupHook, String> {
    let terminating = kind == Kind::AsgTerminate;
    match hook_of_instance(&clients.aws.autoscaling, facts, instance.as_str(), terminating, ignored_hooks).await {
        Ok(Some(found)) => Ok(found),
        Ok(None) => Err(format!(
            "{instance} is in no Auto Scaling group that has a hook for {kind}, beside those that others complete"
        )),
        Err(error) => Err(format!("the instance's Auto Scaling group can't be found: {}", brief(&error))),
    }
}

/// An error of AWS's without the advice for the service's own role, which is not who asks here.
#[must_use]
pub fn brief(error: &AwsError) -> String {
    let AwsError { service, operation, message, .. } = error;
    let code = error.code.as_ref().map(|code| format!("{code}: ")).unwrap_or_default();
    format!("{service}:{operation}: {code}{message}")
}

/// The region that the Node says it is in, else the one that AWS is asked in.
fn region(node: &TrimmedNode, clients: &Clients) -> String {
    let label = node.metadata.labels.as_ref().and_then(|labels| labels.get("topology.kubernetes.io/region"));
    let configured = || clients.aws.region().map(str::to_owned);
    label.cloned().or_else(configured).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_that_is_none_names_those_there_are() {
        assert_eq!(kind("spot"), Ok(Kind::Spot));
        assert!(kind("weather").unwrap_err().contains("asg-terminate, asg-launch, spot"));
    }
}
