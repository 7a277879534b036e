//! `ebbtide undo`: removes what is left of Ebbtide on Nodes, once neither the service nor an agent runs.

use crate::cli::answer::Answer;
use crate::cli::flags::undo::Undo;
use crate::cli::input::asked;
use crate::cli::text::clean;
use crate::clients::connect::{ConnectError, cluster_client};
use crate::clients::gate::{CALL_TIMEOUT, Call, Category, Class, Gate, KubeError};
use crate::clients::trimmed::{self, Trimmed};
use crate::commands::cluster::{Phase, chosen, list_all};
use crate::fact::Facts;
use crate::pipeline::node::mark::MarkSettings;
use crate::pipeline::node::remnants::{Remnants, drain_conditions};
use crate::pipeline::node::{IGNORE_ANNOTATION, Node, NodeApi, NodeScope, TrimmedNode, node_api};
use crate::runtime::clock::Clock;
use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use std::fmt::Write;
use std::io::{IsTerminal, stdin};
use tokio::time::Instant;

/// Labels of the pods of the service and of agents. The chart sets them.
const PROGRAMS: [(&str, &str); 2] = [("ebbtide/service=true", "the service"), ("ebbtide/agent=true", "an agent")];

/// Maximum number of Nodes that are patched at the same time.
const AT_ONCE: usize = 8;

/// Maximum number of patches of one Node: others may write it at the same time, and annotations beyond 64 of a kind are read only when the
/// first are gone.
const MAX_PATCHES: usize = 20;

/// The reason why nothing was removed.
#[derive(Debug, thiserror::Error)]
enum UndoError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Kube(#[from] KubeError),
    #[error("there is no Node \"{0}\"; kubectl get nodes lists all Nodes")]
    NoNode(String),
    #[error(
        "{program} still runs, in pod {pod}, and would mark Nodes again; uninstall it first, or scale it to 0 replicas, and wait until its pods have ended"
    )]
    Runs { program: &'static str, pod: String },
}

/// A Node with what is left on it.
struct Left {
    node: String,
    instance: String,
    remnants: Remnants,
    /// Whether the Node has the annotation with which its owner excludes it.
    ignored: bool,
    /// The failure to remove it, if there was one.
    failure: Option<KubeError>,
}

/// Removes what is left of Ebbtide on the Nodes of the command line.
pub async fn undo(mut flags: Undo) -> Answer {
    if !flags.dry_run && !flags.yes && !stdin().is_terminal() {
        return Answer::wrong(
            &"undo uncordons Nodes, and asks before: answer in a terminal, or give --yes or --dry-run",
        );
    }
    let cluster = chosen(std::mem::take(&mut flags.cluster));
    match cluster_client(Clock::system(), &cluster).await {
        Ok(client) => undo_with(client, flags, asked).await,
        Err(error) => Answer::failed(&error),
    }
}

/// Does the same with this client. `answer` answers the question.
pub async fn undo_with(client: Client, flags: Undo, answer: impl FnOnce(&str) -> bool) -> Answer {
    let eraser = Eraser {
        nodes: node_api(client.clone()),
        gate: Gate::new(Facts::to(Vec::new())),
        settings: MarkSettings { former_taints: flags.taint_key.clone(), ..MarkSettings::default() },
    };
    let mut left = match eraser.found(client, &flags).await {
        Ok(left) => left,
        Err(error) => return Answer::failed(&error),
    };
    let due = left.iter().filter(|left| !left.ignored).count();
    if due == 0 || flags.dry_run {
        return Answer::well(
            flags.output.of(&json!({ "dry_run": flags.dry_run, "nodes": report(&left) }), || text(&left, true)),
        );
    }
    let cordoned = left.iter().filter(|left| !left.ignored && left.remnants.cordon).count();
    if !flags.yes
        && !answer(&format!("{}Remove this from {due} Nodes, and uncordon {cordoned} of them?", text(&left, true)))
    {
        return Answer::failed(&"nothing was removed");
    }
    eraser.erase(&mut left).await;
    let failures: Vec<_> = left.iter().filter_map(|left| left.failure.as_ref().map(ToString::to_string)).collect();
    let output = flags.output.of(&json!({ "dry_run": false, "nodes": report(&left) }), || text(&left, false));
    Answer { problems: failures.join("\n"), code: u8::from(!failures.is_empty()), ..Answer::well(output) }
}

/// Finds what is left, and removes it.
struct Eraser {
    nodes: NodeApi,
    gate: Gate,
    settings: MarkSettings,
}

impl Eraser {
    /// Returns the Nodes on which something is left, by name.
    async fn found(&self, client: Client, flags: &Undo) -> Result<Vec<Left>, UndoError> {
        for (label, program) in PROGRAMS {
            let resource = ApiResource::erase::<Pod>(&());
            let pods: Api<Trimmed<IgnoredAny, Phase>> = Api::all_with(client.clone(), &resource);
            let pods = list_all(&self.gate, "pods", "", &pods, ListParams::default().labels(label)).await?;
            if let Some(pod) = pods.into_iter().find(|pod| !matches!(&*pod.status.phase, "Succeeded" | "Failed")) {
                let (namespace, name) =
                    (pod.metadata.namespace.unwrap_or_default(), pod.metadata.name.unwrap_or_default());
                return Err(UndoError::Runs { program, pod: format!("{namespace}/{name}") });
            }
        }
        let mut objects = list_all(&self.gate, "nodes", "", &self.nodes, ListParams::default()).await?;
        let is_named = |object: &TrimmedNode, name: &String| object.metadata.name.as_ref() == Some(name);
        if let Some(missing) = flags.node.iter().find(|name| !objects.iter().any(|object| is_named(object, name))) {
            return Err(UndoError::NoNode(missing.clone()));
        }
        objects.retain(|object| flags.node.is_empty() || flags.node.iter().any(|name| is_named(object, name)));
        let mut left: Vec<_> = objects.into_iter().filter_map(|object| self.left(object)).collect();
        left.sort_by(|a, b| a.node.cmp(&b.node));
        Ok(left)
    }

    fn left(&self, object: TrimmedNode) -> Option<Left> {
        let conditions = drain_conditions(&object);
        let node = Node::from_wire(object, &NodeScope::default(), |_| false, &[], &[])?;
        let remnants = Remnants::of(&node, conditions, &self.settings)?;
        let Node { name, instance, ignored, .. } = node;
        Some(Left { node: name.to_string(), instance: instance.to_string(), remnants, ignored, failure: None })
    }

    /// Removes what is left on all Nodes whose owners allow it, and notes the failures.
    async fn erase(&self, all: &mut [Left]) {
        let due = stream::iter(all.iter_mut().filter(|left| !left.ignored));
        due.for_each_concurrent(AT_ONCE, |left| async {
            left.failure = self.erase_from(&left.node, &left.remnants).await.err();
        })
        .await;
    }

    async fn erase_from(&self, name: &str, first: &Remnants) -> Result<(), KubeError> {
        let mut remnants = first.clone();
        for nth in 1.. {
            match self.patch(name, &remnants).await {
                Err(error) if error.category == Category::NotFound => return Ok(()),
                Err(error) if error.category != Category::Conflict || nth == MAX_PATCHES => return Err(error),
                _ => {}
            }
            let call = Call { verb: "get", resource: "nodes", subject: name };
            let find = || trimmed::find(&self.nodes, "nodes", name);
            let object = self.gate.kube(call, Class::List, Instant::now() + CALL_TIMEOUT, find).await?;
            match object.and_then(|object| self.left(object)) {
                Some(left) if nth < MAX_PATCHES => remnants = left.remnants,
                _ => break,
            }
        }
        Ok(())
    }

    async fn patch(&self, name: &str, remnants: &Remnants) -> Result<(), KubeError> {
        let (params, by) = (PatchParams::default(), || Instant::now() + CALL_TIMEOUT);
        if let Some(patch) = remnants.patch() {
            let (patch, call) = (Patch::Merge(patch), Call { verb: "patch", resource: "nodes", subject: name });
            self.gate.kube(call, Class::List, by(), || self.nodes.patch(name, &params, &patch)).await?;
        }
        if let Some(patch) = remnants.status_patch() {
            let (patch, call) =
                (Patch::Strategic(patch), Call { verb: "patch", resource: "nodes/status", subject: name });
            self.gate.kube(call, Class::List, by(), || self.nodes.patch_status(name, &params, &patch)).await?;
        }
        Ok(())
    }
}

/// Returns the Nodes as JSON.
fn report(all: &[Left]) -> Vec<Value> {
    let object = |Left { node, instance, remnants, ignored, failure }: &Left| {
        let Remnants { cordon, taints, labels, annotations, conditions, left, notices, hook, group, .. } = remnants;
        json!({
            "node": node, "instance": instance, "ignored": ignored, "cordon": cordon, "taints": taints, "labels": labels,
            "annotations": annotations, "conditions": conditions, "left": left, "notices": notices, "hook_may_wait": hook,
            "replaced_by_group": group, "error": failure.as_ref().map(ToString::to_string),
        })
    };
    all.iter().map(object).collect()
}

/// Returns the Nodes as text: what would be removed, or what was.
fn text(all: &[Left], ahead: bool) -> String {
    let mut text = String::new();
    for left in all {
        describe(&mut text, left, ahead);
    }
    let count = all.iter().filter(|left| !left.ignored && left.failure.is_none()).count();
    let _ = match (count, ahead) {
        (0, _) if all.is_empty() => writeln!(text, "Nothing of Ebbtide is left on any Node."),
        (1, true) => writeln!(text, "1 Node to undo."),
        (count, true) => writeln!(text, "{count} Nodes to undo."),
        (1, false) => writeln!(text, "1 Node undone."),
        (count, false) => writeln!(text, "{count} Nodes undone."),
    };
    text
}

fn describe(text: &mut String, Left { node, instance, remnants, ignored, failure }: &Left, ahead: bool) {
    let Remnants { cordon, taints, labels, annotations, conditions, left, notices, hook, group, .. } = remnants;
    let _ = writeln!(text, "{} ({})", clean(node), clean(instance));
    let mut line = |name: &str, what: &str| {
        let _ = writeln!(text, "  {name:<9}{}", clean(what));
    };
    if *ignored {
        return line("skipped", &format!("it has the annotation {IGNORE_ANNOTATION}: remove that, and run undo again"));
    }
    if failure.is_some() {
        return line("failed", "see below; run undo again");
    }
    let items = cordon.then(|| "the cordon".to_owned()).into_iter();
    let items = items.chain(taints.iter().map(|taint| format!("the taint {taint}")));
    let items = items.chain(labels.iter().map(|label| format!("the label {label}")));
    let count = |number: usize, what: &str| match number {
        0 => None,
        1 => Some(format!("1 {what}")),
        number => Some(format!("{number} {what}s")),
    };
    let items = items.chain(count(annotations.len(), "annotation")).chain(count(conditions.len(), "condition"));
    line(if ahead { "remove" } else { "removed" }, &items.collect::<Vec<_>>().join(", "));
    if !notices.is_empty() {
        line("notices", &format!("not over: {}", notices.join(", ")));
    }
    if *hook {
        line(
            "hook",
            &format!("may wait for {instance} until its timeout: aws autoscaling complete-lifecycle-action ends it"),
        );
    }
    if let Some(group) = group {
        line(
            "group",
            &format!(
                "{group} was asked to replace it, and may still: aws autoscaling set-instance-health --instance-id {instance} --health-status Healthy"
            ),
        );
    }
    if !left.is_empty() {
        line("stays", &format!("{}: give --taint-key if the service added it", left.join(", ")));
    }
}
