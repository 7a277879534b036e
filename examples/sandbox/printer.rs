//! Prints the facts that matter to a user, one line each.

use crate::paint::{Paint, Tone};
use crate::plan::{NEW, OTHER, Plan, QUEUELESS};
use ebbtide::fact::{
    DrainOutcome, Fact, HeartbeatResult, MessageRelease, NoticeOutcome, NoticeRef, Subscriber, WaitOutcome,
};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum time of a wait that is not shown.
const SHORT: Duration = Duration::from_millis(500);

/// Turns facts into lines. A thread of its own writes the lines, so that a slow terminal does not delay the service.
pub struct Printer {
    begun: Instant,
    /// Node names by instance ID.
    names: HashMap<String, String>,
    /// Nodes whose facts are all printed. For other nodes only failures are printed.
    shown: HashSet<String>,
    all: AtomicBool,
    /// Pods whose eviction a budget refused.
    blocked: Mutex<HashSet<String>>,
    writing: Mutex<Option<Writing>>,
    width: usize,
    paint: Paint,
}

#[derive(Debug)]
struct Writing {
    lines: mpsc::Sender<String>,
    writer: JoinHandle<()>,
}

/// A line: its mark, its tone, its subject, its source, its text.
struct Line<'a>(char, Tone, &'a str, &'a str, String);

impl Printer {
    /// Starts the writing thread.
    #[allow(
        clippy::disallowed_methods,
        reason = "the sandbox's own thread, joined in `close`; it blocks on the terminal"
    )]
    pub fn start(plan: &Plan, paint: Paint) -> Self {
        let (lines, to_write) = mpsc::channel::<String>();
        let writer = std::thread::spawn(move || {
            for line in to_write {
                // A closed standard output is no reason to stop.
                let _ = writeln!(std::io::stdout(), "{line}");
            }
        });
        let others = [OTHER, NEW].map(|(name, instance)| (instance.to_owned(), name.to_owned()));
        let names = plan.nodes.iter().map(|node| (node.instance.clone(), node.name.clone())).chain(others).collect();
        let others = [OTHER.0, NEW.0, QUEUELESS.0];
        let shown = plan.shown().iter().map(|node| &*node.name).chain(others).map(str::to_owned).collect();
        let writing = Mutex::new(Some(Writing { lines, writer }));
        Self {
            begun: Instant::now(),
            names,
            shown,
            all: AtomicBool::new(false),
            blocked: Mutex::default(),
            writing,
            width: plan.width(),
            paint,
        }
    }

    /// Prints a line about the sandbox itself.
    pub fn announce(&self, text: &str) {
        self.write(&Line(' ', Tone::Faint, "sandbox", "", text.to_owned()));
    }

    /// Prints other text, in order with the lines.
    pub fn print(&self, text: String) {
        if let Some(writing) = &*lock(&self.writing) {
            let _ = writing.lines.send(text);
        }
    }

    /// Prints the facts of every node from now on.
    pub fn show_all(&self) {
        self.all.store(true, Ordering::Relaxed);
    }

    /// Returns when everything is written.
    pub fn close(&self) {
        if let Some(Writing { lines, writer }) = lock(&self.writing).take() {
            drop(lines);
            let _ = writer.join();
        }
    }

    fn write(&self, Line(mark, tone, who, what, text): &Line<'_>) {
        let at = self.begun.elapsed().as_secs_f64();
        let at = self.paint.tone(Tone::Faint, &format!("{at:>6.1}s"));
        let (width, mark) = (self.width, self.paint.tone(*tone, &mark.to_string()));
        let text = self.paint.tone(*tone, text);
        self.print(format!("{at} {mark} {who:<width$}  {what:<20}  {text}"));
    }

    /// Prints a line about a notice.
    fn notice(&self, about: &NoticeRef<'_>, mark: char, tone: Tone, text: impl Into<String>) {
        let who = about.node.or_else(|| self.names.get(about.instance).map(String::as_str)).unwrap_or(about.instance);
        self.node(who, about.kind.as_str(), mark, tone, text.into());
    }

    fn node(&self, who: &str, what: &str, mark: char, tone: Tone, text: String) {
        let wrong = matches!(tone, Tone::Warn | Tone::Bad);
        if wrong || self.shown.contains(who) || self.all.load(Ordering::Relaxed) {
            self.write(&Line(mark, tone, who, what, text));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

impl Subscriber for Printer {
    fn note(&self, fact: &Fact<'_>) {
        match fact {
            Fact::NodeCordoned { about, already: false, .. } => self.notice(about, ' ', Tone::Plain, "cordoned"),
            Fact::NoticeAnnotated { about } => {
                self.notice(about, ' ', Tone::Plain, "announced by the node's agent: no message is needed");
            }
            Fact::NoticeJoined { about } => {
                self.notice(about, '=', Tone::Plain, "duplicate: joins the first notice");
            }
            Fact::DrainJoined { about } => {
                self.notice(about, '=', Tone::Plain, "joins the node's running drain");
            }
            Fact::Heartbeat { about, result: HeartbeatResult::Sent, .. } => {
                self.notice(about, '♥', Tone::Beat, "heartbeat");
            }
            Fact::Heartbeat { about, result, .. } => {
                self.notice(about, '!', Tone::Warn, format!("heartbeat: {}", result.as_str()));
            }
            Fact::WaitBegun { about, wait, reason, .. } => {
                self.notice(about, '…', Tone::Plain, format!("waits ({wait}): {reason}"));
            }
            // AWS confirms what is beyond the limit at once.
            Fact::WaitEnded { about, wait, outcome, took, .. }
                if *outcome != WaitOutcome::NotNeeded && *took > SHORT =>
            {
                self.notice(about, ' ', Tone::Plain, format!("has waited for {} ({wait}): {outcome}", seconds(*took)));
            }
            Fact::TargetsDeregistered { group, targets } => {
                let text = format!("{targets} deregistered from target group {group}");
                self.write(&Line(' ', Tone::Plain, "ebbtide", "", text));
            }
            Fact::HookCompleted { about, result } => {
                self.notice(about, ' ', Tone::Plain, format!("lifecycle hook completed: {result}"));
            }
            Fact::NoticeEnded { about, outcome, .. } => self.ended(about, *outcome),
            Fact::DrainBegun { on, pods, left_alone, until, .. } => {
                let text =
                    format!("{} to evict, {left_alone} of a DaemonSet; at most {}", pods_of(*pods), seconds(*until));
                self.node(on.node, "drain", ' ', Tone::Plain, text);
            }
            Fact::PodBlocked { on, pod, by, .. } => {
                lock(&self.blocked).insert(pod.to_string());
                self.node(on.node, "drain", '!', Tone::Warn, format!("{pod} is held back: {by}"));
            }
            Fact::Eviction { on, pod, result: Ok(()) } => {
                if lock(&self.blocked).remove(&pod.to_string()) {
                    self.node(on.node, "drain", ' ', Tone::Plain, format!("{pod} is evicted after all"));
                }
            }
            Fact::Deletion { on, pod, grace, result: Ok(()) } => {
                lock(&self.blocked).remove(&pod.to_string());
                let text = format!("{pod} is deleted before the deadline, with a grace period of {grace} s");
                self.node(on.node, "drain", ' ', Tone::Plain, text);
            }
            Fact::DrainEnded { on, outcome, gone, took, report, .. } => match outcome {
                DrainOutcome::Drained | DrainOutcome::NodeGone | DrainOutcome::NodeDead => {
                    let text = format!("drained in {}: {} gone", seconds(*took), pods_of(*gone));
                    self.node(on.node, "drain", '✓', Tone::Good, text);
                }
                _ => {
                    let text = format!("FAILED after {}: {outcome}", seconds(*took));
                    self.node(on.node, "drain", '✗', Tone::Bad, text);
                    self.node(on.node, "", '✗', Tone::Bad, report.to_string());
                }
            },
            _ => self.note_service(fact),
        }
    }
}

impl Printer {
    fn ended(&self, about: &NoticeRef<'_>, outcome: NoticeOutcome) {
        let (mark, tone, text) = match outcome {
            NoticeOutcome::Drained => return,
            NoticeOutcome::HandedOver => (' ', Tone::Plain, "handed over to the next receiver; no more heartbeats"),
            NoticeOutcome::Cordoned => (' ', Tone::Plain, "done: a rebalance recommendation only cordons by default"),
            NoticeOutcome::NotOurs => ('–', Tone::Faint, "not ours: left alone"),
            NoticeOutcome::Ignored => ('–', Tone::Faint, "ignored by the settings"),
            NoticeOutcome::Blocked => ('✗', Tone::Bad, "ended: blocked; its heartbeat has stopped"),
            other => return self.notice(about, '✗', Tone::Bad, format!("ended: {other}")),
        };
        self.notice(about, mark, tone, text);
    }

    fn note_service(&self, fact: &Fact<'_>) {
        let (mark, tone, who, text) = match fact {
            Fact::Ready => (' ', Tone::Faint, "ebbtide", "ready: has read the nodes and reached the queue".to_owned()),
            Fact::MessageIgnored { reason, .. } => ('–', Tone::Faint, "queue", format!("message ignored: {reason}")),
            Fact::MessageMalformed { reason, excerpt, .. } => {
                ('!', Tone::Warn, "queue", format!("message can't be read ({reason}), deleted: {excerpt}"))
            }
            // Each notice has already been reported.
            Fact::MessageReleased { why: MessageRelease::Shutdown, .. } => return,
            Fact::MessageReleased { why, .. } => (' ', Tone::Faint, "queue", format!("message released: {why}")),
            Fact::ShutdownBegun { messages } => {
                (' ', Tone::Faint, "ebbtide", format!("shutdown begins, {messages} messages held"))
            }
            Fact::ShutdownEnded { clean, took } => {
                let how = if *clean { "gracefully" } else { "with aborted work" };
                (' ', Tone::Faint, "ebbtide", format!("shutdown ended {how}, after {}", seconds(*took)))
            }
            Fact::WatchFailed { resource, error } => {
                ('!', Tone::Warn, "ebbtide", format!("the watch of {resource} failed: {error}"))
            }
            Fact::ReceiveFailed { error, .. } => ('!', Tone::Warn, "ebbtide", format!("receiving failed: {error}")),
            Fact::MessageLeft { error, .. } => ('✗', Tone::Bad, "queue", format!("message left: {error}")),
            Fact::MessageLeaseEnded { why, .. } => ('✗', Tone::Bad, "queue", format!("lease ended: {why}")),
            Fact::TaskPanicked { task } => ('✗', Tone::Bad, "ebbtide", format!("a {task} task panicked")),
            Fact::DrainRetried { on, step, error, .. } => {
                ('!', Tone::Warn, on.node, format!("{step} failed, will be repeated: {error}"))
            }
            Fact::CordonFailed { about, error, .. } => {
                return self.trouble(about, "cordon failed, will be repeated", error);
            }
            Fact::CompletionRetried { about, error, .. } => {
                return self.trouble(about, "completion failed, will be repeated", error);
            }
            Fact::CompletionFailed { about, error } => {
                return self.trouble(about, "the hook could not be completed", error);
            }
            Fact::OwnerUnknown { about, error, .. } => {
                return self.trouble(about, "its owner is not yet known", error);
            }
            Fact::HookUnknown { about, error } => return self.trouble(about, "the hook's timeout is not known", error),
            _ => return,
        };
        self.write(&Line(mark, tone, who, "", text));
    }

    fn trouble(&self, about: &NoticeRef<'_>, what: &str, error: &dyn std::fmt::Display) {
        self.notice(about, '!', Tone::Warn, format!("{what}: {error}"));
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

fn pods_of(count: usize) -> String {
    if count == 1 { "1 pod".to_owned() } else { format!("{count} pods") }
}
