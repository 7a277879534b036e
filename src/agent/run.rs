//! The loop of the agent: reads the metadata every two seconds, and writes changes to the Node.
//!
//! It makes no other call to the API server: no watch, no list, no read. So the agent does not know which notices were on the Node before
//! it started, nor when others change its annotations: it writes all kinds once at its start, and announced ones every ten minutes. A
//! patch that changes nothing is not stored.

use super::metadata::{Failure, Metadata};
use super::reading::{is_in_service, path, read};
use crate::clients::gate::{Backoff, CALL_TIMEOUT, Call, Category, Class, Gate, KubeError};
use crate::fact::{AgentNoticeKind, Fact, Facts, MetadataFailure};
use crate::pipeline::node::{AGENT_REPEAT, AgentNotice, node_api};
use crate::runtime::random;
use kube::api::{Patch, PatchParams};
use serde_json::{Map, Value, json};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Interval between two readings of the metadata.
const INTERVAL: Duration = Duration::from_secs(2);

/// Maximum interval between readings that fail.
const MAX_INTERVAL: Duration = Duration::from_secs(30);

/// Number of readings without an announcement after which its notice is removed: a short gap ends no drain.
const READINGS_TO_TAKE_BACK: u32 = 3;

/// Minimum and maximum wait before a patch that failed is tried again.
const RETRY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// The agent of one node.
pub struct Agent {
    metadata: Metadata,
    kube: kube::Client,
    gate: Gate,
    facts: Facts,
    node: String,
    kinds: [KindState; AgentNoticeKind::ALL.len()],
    /// Whether the instance has been in service since the agent began.
    was_in_service: bool,
}

/// The state of a kind in the metadata or on the Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Words {
    /// It is not known yet.
    #[default]
    Unknown,
    /// Nothing.
    Nothing,
    /// This annotation's value.
    Value(String),
}

impl Words {
    /// Returns the annotation's value; `None` if there is to be none.
    fn text(&self) -> Option<&str> {
        match self {
            Self::Value(text) => Some(text),
            Self::Unknown | Self::Nothing => None,
        }
    }
}

/// The state of one kind.
#[derive(Clone, Debug, Default)]
struct KindState {
    /// The state in the metadata.
    read: Words,
    /// The last announcement of the metadata.
    last: Vec<AgentNotice>,
    /// The state on the Node: not known until the agent has written it.
    written: Words,
    /// When that was written.
    written_at: Option<Instant>,
    /// Whether a patch failed since: it may have been made without an answer, so the next one writes all again.
    unsure: bool,
    /// Number of readings without an announcement.
    silent: u32,
    /// Whether the last reading had an answer.
    answered: bool,
}

impl KindState {
    fn note(&mut self, notices: Vec<AgentNotice>) {
        self.answered = true;
        if notices.is_empty() {
            self.silent = self.silent.saturating_add(1);
            if self.silent >= READINGS_TO_TAKE_BACK {
                self.read = Words::Nothing;
            }
            return;
        }
        self.silent = 0;
        // AWS calls the time of a spot interruption approximate: one that moves a little is no new notice.
        let is_known = notices.len() == self.last.len()
            && notices.iter().zip(&self.last).all(|(notice, last)| notice.repeats(last));
        if !is_known || self.read.text().is_none() {
            self.read = Words::Value(AgentNotice::text(&notices));
        }
        self.last = notices;
    }

    /// Returns what to write, if the Node does not have it, or may have lost it.
    fn change(&self) -> Option<Words> {
        let is_new = self.read != Words::Unknown && (self.read != self.written || self.unsure);
        let is_old = || self.written_at.is_some_and(|at| at.elapsed() >= AGENT_REPEAT);
        (is_new || self.answered && self.read.text().is_some() && is_old()).then(|| self.read.clone())
    }
}

impl Agent {
    /// Returns the agent of the Node `node`.
    #[must_use]
    pub fn new(metadata: Metadata, kube: kube::Client, facts: Facts, node: String) -> Self {
        let gate = Gate::new(facts.clone());
        Self { metadata, kube, gate, facts, node, kinds: Default::default(), was_in_service: false }
    }

    /// Works until it is dropped.
    pub async fn run(mut self) {
        self.facts.emit(&Fact::AgentStarted { node: &self.node });
        let mut backoff = Backoff::new(INTERVAL * 2, MAX_INTERVAL);
        let mut retry = Backoff::new(RETRY[0], RETRY[1]);
        let (mut failed, mut refused): (Option<MetadataFailure>, Option<Category>) = (None, None);
        let mut next_write = Instant::now();
        loop {
            let begun = Instant::now();
            let (failure, is_lasting) = self.read_all().await;
            if let Some(why) = failure {
                self.facts.emit(&Fact::MetadataFailed { why, again: failed == Some(why) });
            } else if failed.is_some() {
                self.facts.emit(&Fact::MetadataAnswer);
            }
            failed = failure;
            if Instant::now() >= next_write {
                match self.write().await {
                    Ok(()) => {
                        retry.reset();
                        refused = None;
                    }
                    Err(error) => {
                        let category = error.category;
                        // A missing right is reported once.
                        if refused.replace(category) != Some(category) {
                            self.facts.emit(&Fact::AgentWriteFailed { node: &self.node, category, error: &error });
                        }
                        next_write = Instant::now() + retry.step();
                    }
                }
            }
            let wait = if is_lasting { backoff.step() } else { random::jittered(INTERVAL, 0.8..1.2) };
            if !is_lasting {
                backoff.reset();
            }
            sleep(wait.saturating_sub(begun.elapsed())).await;
        }
    }

    /// Reads all metadata. A kind without an answer stays as it was; if the first has none, and the next fails like a service that is away,
    /// the rest is not asked.
    /// Returns the failure, and whether to wait longer for the next answers: what fails about one kind must not delay the others.
    async fn read_all(&mut self) -> (Option<MetadataFailure>, bool) {
        let (mut failure, mut makes_sense) = (None, false);
        self.kinds.iter_mut().for_each(|kind| kind.answered = false);
        for kind in AgentNoticeKind::ALL {
            let notices = match self.metadata.get(path(kind)).await {
                Ok(Some(text)) => {
                    self.was_in_service |= kind == AgentNoticeKind::Termination && is_in_service(&text);
                    read(kind, &text, self.was_in_service).map_err(|()| MetadataFailure::Nonsense)
                }
                Ok(None) => Ok(Some(Vec::new())),
                // A path that a filter keeps from us hides no other.
                Err(Failure::All(why)) if !makes_sense && kind != AgentNoticeKind::ALL[0] => return (Some(why), true),
                Err(Failure::All(why) | Failure::Path(why)) => Err(why),
            };
            match notices {
                Ok(notices) => {
                    makes_sense = true;
                    if let Some(notices) = notices {
                        self.kinds[kind as usize].note(notices);
                    }
                }
                Err(why) => failure = Some(why),
            }
        }
        (failure, !makes_sense)
    }

    /// Writes in one patch what has changed, and what was written some time ago.
    async fn write(&mut self) -> Result<(), KubeError> {
        let changes =
            AgentNoticeKind::ALL.into_iter().filter_map(|kind| Some((kind, self.kinds[kind as usize].change()?)));
        let changes: Vec<(AgentNoticeKind, Words)> = changes.collect();
        if changes.is_empty() {
            return Ok(());
        }
        let annotations: Map<String, Value> =
            changes.iter().map(|(kind, words)| (kind.annotation(), json!(words.text()))).collect();
        let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
        let (api, params) = (node_api(self.kube.clone()), PatchParams::default());
        let call = Call { verb: "patch", resource: "nodes", subject: &self.node };
        let by = Instant::now() + CALL_TIMEOUT;
        let answer = self.gate.kube(call, Class::Cordon, by, || api.patch(&self.node, &params, &patch)).await;
        for (kind, _) in &changes {
            self.kinds[*kind as usize].unsure = answer.is_err();
        }
        answer?;
        for (kind, words) in changes {
            let state = &mut self.kinds[kind as usize];
            state.written_at = Some(Instant::now());
            if words != state.written && words.text().or(state.written.text()).is_some() {
                let text = words.text().unwrap_or_default();
                self.facts.emit(&Fact::AgentWrote { node: &self.node, kind, text });
            }
            state.written = words;
        }
        Ok(())
    }
}
