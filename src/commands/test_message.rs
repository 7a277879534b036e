//! Test messages for a Node, which `simulate` shows and `send` sends.

mod body;
mod group;
mod post;

pub use group::GroupHook;
pub use post::send;

use self::body::Subject;
use self::group::hook_of_instance;
use crate::clients::connect::Clients;
use crate::clients::gate::{AwsError, CALL_TIMEOUT, Call, Class, Gate, KubeError};
use crate::fact::Facts;
use crate::pipeline::event::{InstanceId, NoticeKind};
use crate::pipeline::node::{Node, NodeScope, TEST_ANNOTATION, TrimmedNode, node_api};
use crate::pipeline::queue::QueueUrl;
use crate::runtime::random;
use jiff::Timestamp;
use tokio::time::Instant;

/// Account of a message whose queue is not known. Nothing reads it.
const NO_ACCOUNT: &str = "000000000000";

/// The reason why there is no test message.
#[derive(Debug, thiserror::Error)]
pub enum TestMessageError {
    /// The Node could not be read.
    #[error(transparent)]
    Kube(#[from] KubeError),
    /// There is no such Node.
    #[error("there is no Node \"{0}\"; kubectl get nodes lists all Nodes")]
    NoNode(String),
    /// The Node is not an EC2 instance.
    #[error("Node \"{0}\" is not an EC2 instance: its spec.providerID must be aws:///ZONE/INSTANCE-ID")]
    NoInstance(String),
    /// The Node does not allow tests.
    #[error(
        "Node {0} does not allow tests, which cordon and drain it; to allow them: kubectl annotate node {0} {TEST_ANNOTATION}=true"
    )]
    NotAllowed(String),
    /// No message brings notices of this kind.
    #[error(
        "no message brings {0}: the Node itself reports it, or EC2 is asked; ebbtide simulate shows what would be done"
    )]
    NoMessage(NoticeKind),
    /// The lifecycle hook is not known.
    #[error("{0}; give --group NAME and --hook NAME")]
    NoHook(#[from] HookError),
}

/// The reason why an instance's lifecycle hook is not known.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// There is no group, or no hook of this kind.
    #[error("{instance} is in no Auto Scaling group with a hook for {kind} that Ebbtide would complete")]
    None {
        /// The instance.
        instance: InstanceId,
        /// The kind.
        kind: NoticeKind,
    },
    /// AWS could not be asked.
    #[error("the instance's Auto Scaling group can't be found: {}", brief(.0))]
    Aws(AwsError),
}

/// The parameters of a test message.
#[derive(Clone, Copy, Debug)]
pub struct MessageRequest<'a> {
    /// The kind.
    pub kind: NoticeKind,
    /// The Node's name.
    pub node: &'a str,
    /// The group and the hook, if they are given.
    pub hook: Option<(&'a str, &'a str)>,
    /// Hooks that others complete: they get no message.
    pub ignored_hooks: &'a [String],
    /// The queue's URL, if it is known.
    pub queue_url: &'a str,
    /// Whether the message will be sent, which the Node must allow.
    pub sent: bool,
}

/// The clients that a test message is made with.
pub struct Sources<'a> {
    /// The clients.
    pub clients: &'a Clients,
    /// The subscribers to the calls.
    pub facts: &'a Facts,
    /// The gate of calls to the API server.
    pub gate: &'a Gate,
    /// The service's Nodes.
    pub scope: &'a NodeScope,
    /// The labels that the waits read.
    pub labels: &'a [Box<str>],
}

/// A message made for a Node.
#[derive(Debug)]
pub struct TestMessage {
    /// The message's body.
    pub body: String,
    /// The identity of its notice.
    pub identity: String,
    /// The Node.
    pub node: Node,
}

/// Makes a message for a Node, as of `now`. Only reads. If the hook is not known, `fallback` may replace it.
///
/// # Errors
/// The reason why there is no message.
pub async fn make(
    sources: &Sources<'_>,
    request: MessageRequest<'_>,
    now: Timestamp,
    fallback: impl FnOnce(HookError) -> Result<GroupHook, TestMessageError>,
) -> Result<TestMessage, TestMessageError> {
    let Sources { clients, scope, labels, .. } = sources;
    if request.sent && request.kind.is_repair() {
        return Err(TestMessageError::NoMessage(request.kind));
    }
    let object = read_node(sources, request.node).await?;
    let region = region(&object, clients);
    let is_used = |key: &str| labels.iter().any(|label| **label == *key);
    let node = Node::from_wire(object, scope, is_used, &[], &[])
        .ok_or_else(|| TestMessageError::NoInstance(request.node.to_owned()))?;
    if request.sent && node.record.text(TEST_ANNOTATION).is_none_or(|value| value != "true") {
        return Err(TestMessageError::NotAllowed(node.name.to_string()));
    }
    let hook = match (request.kind, request.hook) {
        (NoticeKind::AsgTerminate | NoticeKind::AsgLaunch, None) => {
            let found = find_hook(sources, &node.instance, request).await;
            found.or_else(fallback)?
        }
        (_, Some((group, hook))) => GroupHook { group: group.to_owned(), hook: hook.to_owned() },
        _ => GroupHook { group: String::new(), hook: String::new() },
    };
    let identity = body::identity(random::u128());
    let account = QueueUrl::parse(request.queue_url).and_then(|url| url.account);
    let subject = Subject {
        instance: &node.instance,
        region: &region,
        account: account.as_deref().unwrap_or(NO_ACCOUNT),
        hook: (&hook.group, &hook.hook),
    };
    let body = body::message(request.kind, &subject, &identity, now);
    Ok(TestMessage { body, identity, node })
}

async fn read_node(Sources { clients, gate, .. }: &Sources<'_>, name: &str) -> Result<TrimmedNode, TestMessageError> {
    let api = node_api(clients.kube.clone());
    let call = Call { verb: "get", resource: "nodes", subject: name };
    let found = gate.kube(call, Class::List, Instant::now() + CALL_TIMEOUT, || api.get_opt(name)).await?;
    found.ok_or_else(|| TestMessageError::NoNode(name.to_owned()))
}

/// Returns the hook that would hold the instance.
async fn find_hook(
    Sources { clients, facts, .. }: &Sources<'_>,
    instance: &InstanceId,
    MessageRequest { kind, ignored_hooks, .. }: MessageRequest<'_>,
) -> Result<GroupHook, HookError> {
    let terminating = kind == NoticeKind::AsgTerminate;
    let found = hook_of_instance(&clients.aws.autoscaling, facts, instance.as_str(), terminating, ignored_hooks).await;
    found.map_err(HookError::Aws)?.ok_or_else(|| HookError::None { instance: instance.clone(), kind })
}

/// Returns the text of an AWS error without the advice for the service's role, because a user's credentials made the call.
#[must_use]
pub fn brief(error: &AwsError) -> String {
    let AwsError { operation, message, .. } = error;
    let code = error.code.as_ref().map(|code| format!("{code}: ")).unwrap_or_default();
    format!("{operation}: {code}{message}")
}

/// Returns the region of the Node's label, or else of the calls to AWS.
fn region(node: &TrimmedNode, clients: &Clients) -> String {
    let label = node.metadata.labels.as_ref().and_then(|labels| labels.get("topology.kubernetes.io/region"));
    let configured = || clients.aws.region().map(str::to_owned);
    label.cloned().or_else(configured).unwrap_or_default()
}
