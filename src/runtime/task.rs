//! The only place that spawns tasks.
//!
//! Every task has a [`TaskKind`], is counted while it lives, and has an owner: its [`Handle`] aborts it on drop, and a [`Group`] aborts
//! its members. So a forgotten task ends, and `ebbtide_tasks{kind}` shows the live ones. Without work every transient kind reads
//! 0, which tests assert: no task leaks.

use crate::fact::{Fact, Facts, TaskKind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::task::{Context, Poll};
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinHandle, JoinSet};

pub use crate::fact::TaskOutcome;

/// The result of a task.
pub trait Ending {
    /// Whether the result is a failure.
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
    alive: [AtomicI64; TaskKind::ALL.len()],
    started: [AtomicU64; TaskKind::ALL.len()],
    ended: [[AtomicU64; TaskOutcome::ALL.len()]; TaskKind::ALL.len()],
    changed: Notify,
}

impl Tasks {
    /// A spawner with all counts at 0. Panics are sent to `facts`.
    #[must_use]
    pub fn new(facts: Facts) -> Self {
        Self { counts: Arc::default(), facts }
    }

    /// Starts `work`; dropping the handle aborts it.
    #[allow(clippy::disallowed_methods, reason = "this is the only place that spawns")]
    pub fn spawn<F>(&self, kind: TaskKind, work: F) -> Handle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Ending + Send + 'static,
    {
        Handle(tokio::spawn(self.counted(kind, work)))
    }

    /// Returns an empty group, which aborts its members on drop.
    #[must_use]
    pub fn group<T: Ending + Send + 'static>(&self, kind: TaskKind) -> Group<T> {
        Group { tasks: self.clone(), kind, members: JoinSet::new() }
    }

    /// Returns the number of tasks of a kind that live now.
    #[must_use]
    pub fn alive(&self, kind: TaskKind) -> i64 {
        self.counts.alive[kind as usize].load(Ordering::Acquire)
    }

    /// Returns the number of tasks of a kind that were started so far.
    #[must_use]
    pub fn started(&self, kind: TaskKind) -> u64 {
        self.counts.started[kind as usize].load(Ordering::Relaxed)
    }

    /// Returns the number of tasks of a kind that had this outcome so far.
    #[must_use]
    pub fn ended(&self, kind: TaskKind, outcome: TaskOutcome) -> u64 {
        self.counts.ended[kind as usize][outcome as usize].load(Ordering::Relaxed)
    }

    /// Waits until no task of the `counted` kinds lives.
    pub async fn gone(&self, counted: impl Fn(TaskKind) -> bool) {
        loop {
            let changed = self.counts.changed.notified();
            if TaskKind::ALL.into_iter().filter(|kind| counted(*kind)).all(|kind| self.alive(kind) == 0) {
                return;
            }
            changed.await;
        }
    }

    fn counted<F>(&self, kind: TaskKind, work: F) -> impl Future<Output = F::Output> + Send + use<F>
    where
        F: Future + Send + 'static,
        F::Output: Ending + Send + 'static,
    {
        // Made here and not inside the future, so that a task is counted even if it is aborted before its first poll.
        let mut alive = Alive::new(self.clone(), kind);
        // A future stores its argument and what it awaits separately: unboxed, all tasks would be twice as large.
        let work = Box::pin(work);
        async move {
            let result = work.await;
            // A method call captures all of `alive`. A field access would capture the field only, and drop the rest too early.
            alive.ends_with(&result);
            result
        }
    }
}

/// Counts one task while its future exists. Without a result it records "cancelled".
struct Alive {
    tasks: Tasks,
    kind: TaskKind,
    outcome: TaskOutcome,
}

impl Alive {
    fn new(tasks: Tasks, kind: TaskKind) -> Self {
        tasks.counts.alive[kind as usize].fetch_add(1, Ordering::AcqRel);
        tasks.counts.started[kind as usize].fetch_add(1, Ordering::Relaxed);
        Self { tasks, kind, outcome: TaskOutcome::Cancelled }
    }

    fn ends_with(&mut self, result: &impl Ending) {
        self.outcome = if result.failed() { TaskOutcome::Failed } else { TaskOutcome::Finished };
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.outcome = TaskOutcome::Panicked;
            self.tasks.facts.emit(&Fact::TaskPanicked { task: self.kind });
        }
        let counts = &self.tasks.counts;
        counts.ended[self.kind as usize][self.outcome as usize].fetch_add(1, Ordering::Relaxed);
        counts.alive[self.kind as usize].fetch_sub(1, Ordering::AcqRel);
        counts.changed.notify_waiters();
    }
}

/// The reason why a task has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    /// The task was aborted.
    #[error("the task was cancelled")]
    Cancelled,
    /// The task panicked.
    #[error("the task panicked; this is a bug in Ebbtide, please report it with the log")]
    Panicked,
}

impl From<JoinError> for TaskError {
    fn from(error: JoinError) -> Self {
        if error.is_panic() { Self::Panicked } else { Self::Cancelled }
    }
}

/// A running task. Await it for its result; drop it to abort the task.
#[derive(Debug)]
#[must_use = "dropping the handle aborts the task"]
pub struct Handle<T>(JoinHandle<T>);

impl<T> Handle<T> {
    /// Whether the task has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl<T> Future for Handle<T> {
    type Output = Result<T, TaskError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map_err(TaskError::from)
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
    kind: TaskKind,
    members: JoinSet<T>,
}

impl<T: Ending + Send + 'static> Group<T> {
    /// Starts a member.
    #[allow(clippy::disallowed_methods, reason = "this is the only place that spawns")]
    pub fn spawn(&mut self, work: impl Future<Output = T> + Send + 'static) {
        self.members.spawn(self.tasks.counted(self.kind, work));
    }

    /// Waits for the next member to end, and returns its result; `None` if the group is empty.
    pub async fn next(&mut self) -> Option<Result<T, TaskError>> {
        self.members.join_next().await.map(|result| result.map_err(TaskError::from))
    }

    /// Returns the number of members whose result [`Group::next`] has not returned yet.
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
        TaskOutcome::ALL.map(|outcome| tasks.ended(TaskKind::Drain, outcome))
    }

    #[tokio::test(start_paused = true)]
    async fn every_end_is_counted_as_what_it_was() {
        let tasks = Tasks::new(Facts::to(Vec::new()));
        let finished = tasks.spawn(TaskKind::Drain, sleep(Duration::from_secs(1)));
        let failed = tasks.spawn(TaskKind::Drain, async { Err::<(), _>("no") });
        let panicked = tasks.spawn(TaskKind::Drain, async { panic!("planned") });
        let dropped = tasks.spawn(TaskKind::Drain, std::future::pending());
        assert_eq!(tasks.alive(TaskKind::Drain), 4);
        let () = dropped.0.abort();
        let (finished, failed, panicked, dropped): (Result<(), _>, _, Result<(), _>, Result<(), _>) =
            tokio::join!(finished, failed, panicked, dropped);
        assert_eq!((finished, failed, panicked), (Ok(()), Ok(Err("no")), Err(TaskError::Panicked)));
        assert_eq!(dropped, Err(TaskError::Cancelled));
        assert_eq!((tasks.alive(TaskKind::Drain), tasks.started(TaskKind::Drain), ended(&tasks)), (0, 4, [1, 1, 1, 1]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_handle_that_is_dropped_takes_its_task_along() {
        let tasks = Tasks::new(Facts::to(Vec::new()));
        drop(tasks.spawn(TaskKind::Drain, sleep(Duration::from_hours(1))));
        let mut group = tasks.group(TaskKind::Drain);
        group.spawn(sleep(Duration::from_hours(1)));
        drop(group);
        tasks.gone(|_| true).await;
        assert_eq!(ended(&tasks), [0, 0, 2, 0]);
    }
}
