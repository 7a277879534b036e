//! The one place that spawns.
//!
//! Every task has a [`Kind`], is counted while it lives, and is owned: its [`Handle`] aborts it on drop, a [`Group`] aborts
//! its members. So a forgotten task is a task that ends, and `ebbtide_tasks{kind}` tells what is going on. When nothing is,
//! every transient kind reads 0: the test of leak-freedom.

pub use crate::fact::TaskKind as Kind;
use crate::fact::{Fact, Facts};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::task::{Context, Poll};
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinHandle, JoinSet};

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It came to its end.
    Finished,
    /// It came to its end with an error.
    Failed,
    /// It was aborted, or its runtime went away.
    Cancelled,
    /// It panicked.
    Panicked,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 4] = [Self::Finished, Self::Failed, Self::Cancelled, Self::Panicked];

    /// The outcome's name in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Panicked => "panicked",
        }
    }
}

/// What a task's result says about how it ended.
pub trait Ending {
    /// Whether this result is a failure.
    fn failed(&self) -> bool;
}

impl Ending for () {
    fn failed(&self) -> bool {
        false
    }
}

impl<T, E> Ending for Result<T, E> {
    fn failed(&self) -> bool {
        self.is_err()
    }
}

/// Starts tasks and counts them. Clones share the counts.
#[derive(Clone, Debug)]
pub struct Tasks {
    counts: Arc<Counts>,
    facts: Facts,
}

#[derive(Debug, Default)]
struct Counts {
    alive: [AtomicI64; Kind::ALL.len()],
    started: [AtomicU64; Kind::ALL.len()],
    ended: [[AtomicU64; Outcome::ALL.len()]; Kind::ALL.len()],
    changed: Notify,
}

impl Tasks {
    /// A spawner with all counts at 0; a panic is told to `facts`.
    #[must_use]
    pub fn new(facts: Facts) -> Self {
        Self { counts: Arc::default(), facts }
    }

    /// Starts `work`; dropping the handle aborts it.
    #[allow(clippy::disallowed_methods, reason = "this is the one place that spawns")]
    pub fn spawn<F>(&self, kind: Kind, work: F) -> Handle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Ending + Send + 'static,
    {
        Handle(tokio::spawn(self.counted(kind, work)))
    }

    /// An empty group, whose members are aborted when it is dropped.
    #[must_use]
    pub fn group<T: Ending + Send + 'static>(&self, kind: Kind) -> Group<T> {
        Group { tasks: self.clone(), kind, members: JoinSet::new() }
    }

    /// How many tasks of a kind live now.
    #[must_use]
    pub fn alive(&self, kind: Kind) -> i64 {
        self.counts.alive[kind as usize].load(Ordering::Acquire)
    }

    /// How many tasks of a kind were started so far.
    #[must_use]
    pub fn started(&self, kind: Kind) -> u64 {
        self.counts.started[kind as usize].load(Ordering::Relaxed)
    }

    /// How many tasks of a kind ended so far, and so.
    #[must_use]
    pub fn ended(&self, kind: Kind, outcome: Outcome) -> u64 {
        self.counts.ended[kind as usize][outcome as usize].load(Ordering::Relaxed)
    }

    /// Returns once no task lives for which `counted` holds.
    pub async fn gone(&self, counted: impl Fn(Kind) -> bool) {
        loop {
            let changed = self.counts.changed.notified();
            if Kind::ALL.into_iter().filter(|kind| counted(*kind)).all(|kind| self.alive(kind) == 0) {
                return;
            }
            changed.await;
        }
    }

    fn counted<F>(&self, kind: Kind, work: F) -> impl Future<Output = F::Output> + Send + use<F>
    where
        F: Future + Send + 'static,
        F::Output: Ending + Send + 'static,
    {
        // Made here and not inside the future: a task which is aborted before its first poll is counted all the same.
        let mut alive = Alive::new(self.clone(), kind);
        // What a future was given and what it awaits are two places in it: unboxed, all tasks would be twice as large.
        let work = Box::pin(work);
        async move {
            let result = work.await;
            // A method, so that all of it is captured: a field alone would leave it behind, to be dropped here and now.
            alive.ends_with(&result);
            result
        }
    }
}

/// Counts one task for as long as its future exists. What it records unless told otherwise is "cancelled".
struct Alive {
    tasks: Tasks,
    kind: Kind,
    outcome: Outcome,
}

impl Alive {
    fn new(tasks: Tasks, kind: Kind) -> Self {
        tasks.counts.alive[kind as usize].fetch_add(1, Ordering::AcqRel);
        tasks.counts.started[kind as usize].fetch_add(1, Ordering::Relaxed);
        Self { tasks, kind, outcome: Outcome::Cancelled }
    }

    fn ends_with(&mut self, result: &impl Ending) {
        self.outcome = if result.failed() { Outcome::Failed } else { Outcome::Finished };
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.outcome = Outcome::Panicked;
            self.tasks.facts.emit(&Fact::TaskPanicked { task: self.kind });
        }
        let counts = &self.tasks.counts;
        counts.ended[self.kind as usize][self.outcome as usize].fetch_add(1, Ordering::Relaxed);
        counts.alive[self.kind as usize].fetch_sub(1, Ordering::AcqRel);
        counts.changed.notify_waiters();
    }
}

/// Why a task has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Died {
    /// It was aborted.
    #[error("the task was cancelled")]
    Cancelled,
    /// It panicked.
    #[error("the task panicked; this is a bug in Ebbtide, please report it with the log")]
    Panicked,
}

impl From<JoinError> for Died {
    fn from(error: JoinError) -> Self {
        if error.is_panic() { Self::Panicked } else { Self::Cancelled }
    }
}

/// A running task. Await it for its result; drop it to abort the task.
#[derive(Debug)]
#[must_use = "dropping the handle aborts the task"]
pub struct Handle<T>(JoinHandle<T>);

impl<T> Future for Handle<T> {
    type Output = Result<T, Died>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map_err(Died::from)
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Tasks of one kind that are owned together.
#[derive(Debug)]
pub struct Group<T> {
    tasks: Tasks,
    kind: Kind,
    members: JoinSet<T>,
}

impl<T: Ending + Send + 'static> Group<T> {
    /// Starts a member.
    #[allow(clippy::disallowed_methods, reason = "this is the one place that spawns")]
    pub fn spawn(&mut self, work: impl Future<Output = T> + Send + 'static) {
        self.members.spawn(self.tasks.counted(self.kind, work));
    }

    /// The next result, in order of ending; `None` when the group is empty.
    pub async fn next(&mut self) -> Option<Result<T, Died>> {
        self.members.join_next().await.map(|result| result.map_err(Died::from))
    }

    /// How many members have not been taken by [`Group::next`].
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether no member is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::sleep;

    fn ended(tasks: &Tasks) -> [u64; 4] {
        Outcome::ALL.map(|outcome| tasks.ended(Kind::Drain, outcome))
    }

    #[tokio::test(start_paused = true)]
    async fn every_end_is_counted_as_what_it_was() {
        let tasks = Tasks::new(Facts::to(Vec::new()));
        let finished = tasks.spawn(Kind::Drain, sleep(Duration::from_secs(1)));
        let failed = tasks.spawn(Kind::Drain, async { Err::<(), _>("no") });
        let panicked = tasks.spawn(Kind::Drain, async { panic!("planned") });
        let dropped = tasks.spawn(Kind::Drain, std::future::pending());
        assert_eq!(tasks.alive(Kind::Drain), 4);
        let () = dropped.0.abort();
        let (finished, failed, panicked, dropped): (Result<(), _>, _, Result<(), _>, Result<(), _>) =
            tokio::join!(finished, failed, panicked, dropped);
        assert_eq!((finished, failed, panicked), (Ok(()), Ok(Err("no")), Err(Died::Panicked)));
        assert_eq!(dropped, Err(Died::Cancelled));
        assert_eq!((tasks.alive(Kind::Drain), tasks.started(Kind::Drain), ended(&tasks)), (0, 4, [1, 1, 1, 1]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_handle_that_is_dropped_takes_its_task_along() {
        let tasks = Tasks::new(Facts::to(Vec::new()));
        drop(tasks.spawn(Kind::Drain, sleep(Duration::from_hours(1))));
        let mut group = tasks.group(Kind::Drain);
        group.spawn(sleep(Duration::from_hours(1)));
        drop(group);
        tasks.gone(|_| true).await;
        assert_eq!(ended(&tasks), [0, 0, 2, 0]);
    }
}
