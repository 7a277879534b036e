//! `ebbtide send`: sends a test message to the queue, for a Node that allows it.
//!
//! The caller's credentials send it, because the service's role can't. The service handles the message like one from AWS; only its
//! identity marks it as a test.

use crate::cli::answer::Answer;
use crate::cli::flags::EKS_HOOKS;
use crate::cli::flags::send::Send;
use crate::cli::input::asked;
use crate::cli::output::Output;
use crate::cli::settings;
use crate::cli::settings::SettingsError;
use crate::clients::connect;
use crate::clients::connect::{Clients, clients};
use crate::clients::gate::{AwsError, Category, Gate};
use crate::commands::cluster::chosen;
use crate::commands::test_message;
use crate::commands::test_message::{MessageRequest, Sources, TestMessage, brief};
use crate::fact::Facts;
use crate::pipeline::event::NoticeKind;
use crate::pipeline::node::NodeScope;
use crate::pipeline::queue::QueueUrl;
use crate::runtime::clock::Clock;
use serde_json::json;
use std::io::{IsTerminal, stdin};

/// Sends the message of the command line.
pub async fn send(mut flags: Send) -> Answer {
    let cluster = chosen(std::mem::take(&mut flags.cluster));
    let mut request = match SendRequest::of(flags) {
        Ok(request) => request,
        Err(error) => return Answer::wrong(&error),
    };
    if !request.yes && !stdin().is_terminal() {
        return Answer::wrong(
            &"send has the service drain a Node, and asks before: answer in a terminal, or give --yes",
        );
    }
    request.context = connect::context(&cluster);
    let clock = Clock::system();
    match clients(clock, QueueUrl::region_of(&request.queue_url), &cluster).await {
        Ok(clients) => request.send(&clients, clock, asked).await,
        Err(error) => Answer::failed(&error),
    }
}

/// Sends the message of the command line with these clients, at the clock's time. `answer` answers the question.
pub async fn send_with(clients: &Clients, clock: Clock, flags: Send, answer: impl FnOnce(&str) -> bool) -> Answer {
    match SendRequest::of(flags) {
        Ok(request) => request.send(clients, clock, answer).await,
        Err(error) => Answer::wrong(&error),
    }
}

/// The validated command line.
struct SendRequest {
    kind: NoticeKind,
    node: String,
    queue_url: String,
    hook: Option<(String, String)>,
    /// Whether to skip the confirmation.
    yes: bool,
    output: Output,
    /// The context of the kubeconfig, if there is one.
    context: Option<String>,
}

impl SendRequest {
    fn of(flags: Send) -> Result<Self, SettingsError> {
        let Send { kind, node, queue_url, group, hook, yes, output, .. } = flags;
        let queue_url = settings::queue_url(queue_url)?;
        let hook = settings::lifecycle_hook(kind, group, hook)?;
        Ok(Self { kind, node, queue_url, hook, yes, output, context: None })
    }

    async fn send(&self, clients: &Clients, clock: Clock, answer: impl FnOnce(&str) -> bool) -> Answer {
        let facts = Facts::to(Vec::new());
        let gate = Gate::new(facts.clone());
        let hook = self.hook.as_ref().map(|(group, hook)| (&**group, &**hook));
        let ignored_hooks: Vec<String> = EKS_HOOKS.split(',').map(str::to_owned).collect();
        let request = MessageRequest {
            kind: self.kind,
            node: &self.node,
            hook,
            ignored_hooks: &ignored_hooks,
            queue_url: &self.queue_url,
            sent: true,
        };
        let sources = Sources { clients, facts: &facts, gate: &gate, scope: &NodeScope::default(), labels: &[] };
        // There is no fallback: with an invented group the service's calls would fail, and the test would show nothing.
        let made = test_message::make(&sources, request, clock.now(), |error| Err(error.into())).await;
        let message = match made {
            Ok(message) => message,
            Err(error) => return Answer::failed(&error),
        };
        if !self.yes && !answer(&self.question(&message)) {
            return Answer::failed(&"nothing was sent");
        }
        match test_message::send(&clients.aws.sqs, &facts, &self.queue_url, &message.body).await {
            Ok(id) => {
                let report = json!({
                    "kind": self.kind.as_str(),
                    "node": &*message.node.name,
                    "instance": message.node.instance.as_str(),
                    "message_id": id,
                    "identity": message.identity,
                    "queue": self.queue_url,
                });
                Answer::well(self.output.of(&report, || self.sent(&message, &id)))
            }
            Err(error) => Answer::failed(&self.not_sent(&error)),
        }
    }

    fn question(&self, message: &TestMessage) -> String {
        let Self { kind, queue_url, .. } = self;
        let (node, context) = (&message.node, self.context.as_deref());
        let context = context.map(|name| format!(" of the context {name}")).unwrap_or_default();
        format!(
            "Send a test notice of kind {kind} for Node {} ({}){context} to {queue_url}? The service cordons and drains the Node.",
            node.name, node.instance
        )
    }

    fn sent(&self, message: &TestMessage, id: &str) -> String {
        let (kind, node) = (self.kind, &message.node);
        let mut text = format!(
            "Sent a test notice of kind {kind} for Node {} ({}).\n\n  message ID  {id}\n  identity    {}\n  queue       {}\n\n\
             The service handles it like a message from AWS. Watch:\n\n  kubectl get node {0} --watch\n  kubectl get pods --all-namespaces --field-selector spec.nodeName={0} --watch\n\n\
             Its log lines carry message_id={id}. Afterwards kubectl uncordon {0} makes the Node schedulable,\nand the service removes its marks.\n",
            node.name, node.instance, message.identity, self.queue_url
        );
        if matches!(kind, NoticeKind::AsgTerminate | NoticeKind::AsgLaunch) {
            text.push_str(
                "\nThe lifecycle action does not exist: AWS answers \"No active Lifecycle Action found\" when the service\n\
                 completes it, and the service treats that as completed. No instance is terminated.\n",
            );
        }
        if kind == NoticeKind::AsgLaunch {
            text.push_str(
                "\nBy default the service ignores asg-launch: nothing happens without --on asg-launch=ready.\n",
            );
        }
        text
    }

    fn not_sent(&self, error: &AwsError) -> String {
        let text = brief(error);
        match error.category {
            _ if error.unsigned.is_some() => format!(
                "{text}; give your own credentials that may send to the queue, by AWS_PROFILE; if its session has expired, sign in again, such \
                 as by aws sso login"
            ),
            Category::Denied => format!(
                "{text}; ebbtide send needs your own credentials that allow sqs:SendMessage on {} (and its KMS key), as a role or user that the queue's \
                 policy does not refuse: SenderArns of the stack, sender_arns of the module; the service's own role can't send",
                self.queue_url
            ),
            Category::NotFound => format!("{text}; check --queue-url, and that AWS_REGION is the queue's region"),
            _ => format!("{text}; the message was probably not sent, try again"),
        }
    }
}
