//! The running service: work, then the ordered shutdown.

use crate::fact::{Fact, Facts};
use crate::pipeline::queue::Message;
use crate::pipeline::sources::Deliverer;
use crate::runtime::task::{Group, Handle, Tasks};
use crate::service::signals::Shutdown;
use crate::telemetry::admin::Readiness;
use futures_util::StreamExt;
use futures_util::future::{Fuse, FusedFuture};
use futures_util::stream::FuturesUnordered;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

/// Maximum duration of the ordered shutdown. The pod's terminationGracePeriod must be longer.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// Part of the shutdown that is kept for the steps after the last message.
const LAST_STEPS: Duration = Duration::from_secs(1);

/// Timeout of the last Events, of the last notifications, and of the collector's Lease.
const LAST_CALLS_TIMEOUT: Duration = Duration::from_millis(500);

/// How the service ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Every message was deleted or released.
    Clean,
    /// Some work was aborted. Its messages become visible when their visibility timeout ends.
    Aborted,
    /// A task that lives as long as the service ended before it: a bug. Its messages were released, and a new process can continue.
    TaskEnded,
}

/// The running service.
pub struct Service {
    pub(super) facts: Facts,
    pub(super) tasks: Tasks,
    pub(super) shutdown: Shutdown,
    pub(super) readiness: Readiness,
    /// Receives messages; terminated without a queue.
    pub(super) poller: Fuse<Handle<()>>,
    /// Works on what other sources offer, and stops by itself when shutdown begins.
    pub(super) sources: Fuse<Handle<()>>,
    pub(super) messages: mpsc::UnboundedReceiver<Message>,
    pub(super) deliverer: Arc<Deliverer>,
    pub(super) deliveries: Group<()>,
    /// The watch of Nodes, the admin server, the undo task, and without a queue the readiness task: the service does not work
    /// without them.
    pub(super) fixed: FuturesUnordered<Handle<()>>,
    /// Writes Events. Not one of the fixed tasks: drains continue without Events.
    pub(super) event_writer: Option<StoppableTask>,
    /// Sends notifications. Not one of the fixed tasks either.
    pub(super) notifier: Option<StoppableTask>,
    /// Sends traces. Not one of the fixed tasks either.
    pub(super) trace_exporter: Option<StoppableTask>,
    /// Collects what is left of Nodes, and stops by itself when shutdown begins. Not one of the fixed tasks either.
    pub(super) collector: Option<Handle<()>>,
    /// Checks the set-up once. Nothing waits for it.
    pub(super) checks: Option<Handle<()>>,
    /// Serves the status page. Not one of the fixed tasks: drains continue without it.
    pub(super) page: Option<Handle<()>>,
    pub(super) admin: SocketAddr,
    pub(super) status: Option<SocketAddr>,
}

/// A task, and the token that asks it to finish its work and end.
pub(super) struct StoppableTask {
    pub handle: Handle<()>,
    pub stop: CancellationToken,
}

impl Service {
    /// Returns the address of the admin server.
    #[must_use]
    pub const fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    /// Returns the address of the status page, if there is one.
    #[must_use]
    pub const fn status_address(&self) -> Option<SocketAddr> {
        self.status
    }

    /// Returns the service's tasks; their counts outlive the service.
    #[must_use]
    pub fn tasks(&self) -> Tasks {
        self.tasks.clone()
    }

    /// Works until a signal or a failed part ends the work, then shuts down in order. Dropping the future ends everything at once,
    /// as a kill would.
    pub async fn run(mut self) -> Exit {
        let is_whole = self.work().await;
        self.shutdown.ordered.cancel();
        let begun = Instant::now();
        self.facts.emit(&Fact::ShutdownBegun { messages: self.deliveries.len() });
        let (facts, tasks, abort) = (self.facts.clone(), self.tasks.clone(), self.shutdown.abort.clone());
        let ended_in_time = tokio::select! {
            biased;
            () = abort.cancelled() => false,
            in_time = self.shut_down(begun + SHUTDOWN_TIMEOUT) => in_time,
        };
        // Aborted tasks live until the runtime has dropped them.
        let tasks_gone = timeout_at(begun + SHUTDOWN_TIMEOUT, tasks.gone(|_| true)).await;
        let clean = ended_in_time && tasks_gone.is_ok();
        facts.emit(&Fact::ShutdownEnded { clean, took: begun.elapsed() });
        match (is_whole, clean) {
            (false, _) => Exit::TaskEnded,
            (true, true) => Exit::Clean,
            (true, false) => Exit::Aborted,
        }
    }

    /// Delivers messages until the ordered shutdown is asked for. Returns false if a part of the service ended before: its panic was
    /// reported, and a restart is better than a service that stays ready and does nothing.
    async fn work(&mut self) -> bool {
        loop {
            tokio::select! {
                biased;
                () = self.shutdown.ordered.cancelled() => return true,
                _ = &mut self.poller => return false,
                Some(_) = self.fixed.next() => return false,
                _ = &mut self.sources => return false,
                Some(message) = self.messages.recv() => self.deliver(message),
                // The task reports its own panic, and its message becomes visible again.
                Some(_) = self.deliveries.next() => {}
            }
        }
    }

    fn deliver(&mut self, message: Message) {
        let (deliverer, stop) = (Arc::clone(&self.deliverer), self.shutdown.ordered.clone());
        self.deliveries.spawn(async move { deliverer.deliver(message, stop).await });
    }

    /// Shuts down in order. Returns whether all messages were deleted or released in time.
    async fn shut_down(mut self, deadline: Instant) -> bool {
        // Nothing waits for the checks of the set-up.
        self.checks = None;
        // Readiness goes off, so that a rollout sees the shutdown.
        self.readiness.set(false);
        // The poller and all deliveries have seen the shutdown's token: the poller begins no receive and gives one in flight 2 s;
        // a delivery stops its interruptions with their heartbeats, and releases its message for another replica.
        let clean = timeout_at(deadline - LAST_STEPS, self.release_messages()).await.is_ok();
        // No drain runs any more. The writer of Events writes those of the drains that ended, the notifier reports them, traces are
        // sent, and the collector gives its Lease back.
        let (event_writer, notifier, tracer, collector) =
            (self.event_writer.take(), self.notifier.take(), self.trace_exporter.take(), self.collector.take());
        let collectors_lease = async {
            if let Some(collector) = collector {
                let _ = collector.await;
            }
        };
        let _ = tokio::join!(
            timeout(LAST_CALLS_TIMEOUT, stopped(event_writer)),
            timeout(LAST_CALLS_TIMEOUT, stopped(notifier)),
            timeout(LAST_CALLS_TIMEOUT, stopped(tracer)),
            timeout(LAST_CALLS_TIMEOUT, collectors_lease)
        );
        // Watches, batches and the servers are aborted with their handles.
        self.page = None;
        self.fixed.clear();
        clean
    }

    /// Waits until the poller has ended and every message has been deleted or released. Deliveries release the messages that the last
    /// receive brings.
    async fn release_messages(&mut self) {
        while !self.poller.is_terminated() || !self.deliveries.is_empty() {
            tokio::select! {
                Some(message) = self.messages.recv() => self.deliver(message),
                _ = &mut self.poller => {}
                Some(_) = self.deliveries.next() => {}
            }
        }
        while let Ok(message) = self.messages.try_recv() {
            self.deliver(message);
        }
        while self.deliveries.next().await.is_some() {}
        // It leaves its drains, and gives its Lease back.
        if !self.sources.is_terminated() {
            let _ = (&mut self.sources).await;
        }
    }
}

/// Asks a task to finish its work, and waits until it has.
async fn stopped(task: Option<StoppableTask>) {
    if let Some(StoppableTask { handle, stop }) = task {
        stop.cancel();
        let _ = handle.await;
    }
}
