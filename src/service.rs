//! The wiring, and the service's life: start, work, ordered shutdown.

use crate::ack::{Deliverer, Ended};
use crate::admin::{Admin, ListenError, Readiness};
use crate::clock::Clock;
use crate::connect::Clients;
use crate::drain::{Drainer, Gone, pod_api};
use crate::fact::metrics::Metrics;
use crate::fact::{Fact, Facts};
use crate::gate::Gate;
use crate::interruption::{Hooks, Interrupter, Slots};
use crate::node::mark::Marker;
use crate::node::{Index, Owner, node_api};
use crate::queue::{Message, Poller, Queue};
use crate::settings::Settings;
use crate::task::{Group, Handle, Kind, Tasks};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

/// Shutdown takes at most so long; a pod's terminationGracePeriod must be longer.
const SHUTDOWN: Duration = Duration::from_secs(10);

/// What is kept of it for the last steps, once messages have had their time.
const LAST_STEPS: Duration = Duration::from_secs(1);

/// How the service is told to end.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    /// In order.
    pub ordered: CancellationToken,
    /// At once.
    pub abort: CancellationToken,
}

/// How the service ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Every message was handed on or released.
    Clean,
    /// Some work was cut off; its messages become visible by themselves.
    Aborted,
    /// A part that lives as long as the service ended before it: a bug. Its messages were released, and a new process can go on.
    Broken,
}

/// The running service.
pub struct Service {
    facts: Facts,
    tasks: Tasks,
    shutdown: Shutdown,
    readiness: Readiness,
    deliverer: Arc<Deliverer>,
    deliveries: Group<()>,
    messages: mpsc::UnboundedReceiver<Message>,
    poller: Handle<()>,
    /// The watch of Nodes and the admin server: as long as the service.
    fixed: FuturesUnordered<Handle<()>>,
    admin: SocketAddr,
}

impl Service {
    /// Wires everything, and starts what runs as long as the service.
    ///
    /// # Errors
    /// When the admin address can't be bound.
    pub async fn start(
        settings: Settings,
        clients: Clients,
        clock: Clock,
        (facts, metrics): (Facts, Arc<Metrics>),
        shutdown: Shutdown,
    ) -> Result<Self, ListenError> {
        let tasks = Tasks::new(facts.clone());
        let readiness = Readiness::default();
        let admin = Admin::bind(settings.admin_address, readiness.clone(), metrics, tasks.clone()).await?;
        let address = admin.address();
        facts.emit(&Fact::Started { queue: &settings.queue_url, dry_run: settings.policy.dry_run });
        facts.emit(&Fact::AdminListening { address });

        let index = Index::default();
        let (synced, nodes_synced) = oneshot::channel();
        let watch = index.clone().watch(node_api(clients.watches.clone()), facts.clone(), synced);
        let fixed =
            [tasks.spawn(Kind::Admin, admin.serve()), tasks.spawn(Kind::NodeWatch, watch)].into_iter().collect();

        let queue = Queue::new(clients.sqs.clone(), settings.queue_url.clone(), clock, &tasks, facts.clone());
        let interrupter = interrupter(&settings, &clients, clock, &facts, &tasks, index);
        let deliverer = Arc::new(Deliverer {
            queue: queue.clone(),
            interruptions: Slots::new(tasks.clone(), Kind::Interruption),
            interrupter: Arc::new(interrupter),
            facts: facts.clone(),
            ended: Ended::default(),
        });

        let (sender, messages) = mpsc::unbounded_channel();
        let (answered, queue_answered) = oneshot::channel();
        let poller = Poller { queue, messages: sender, answered, stop: shutdown.ordered.clone() };
        let stop = shutdown.ordered.clone();
        let ready = (readiness.clone(), facts.clone());
        let poller = tasks.spawn(Kind::Poller, async move {
            // Without the Nodes every instance would look like another cluster's.
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = nodes_synced => {}
            }
            let ready = async {
                if queue_answered.await.is_ok() {
                    ready.0.set(true);
                    ready.1.emit(&Fact::Ready);
                }
            };
            tokio::join!(poller.run(), ready);
        });
        let deliveries = tasks.group(Kind::Message);
        Ok(Self { facts, tasks, shutdown, readiness, deliverer, deliveries, messages, poller, fixed, admin: address })
    }

    /// Where the admin server listens.
    #[must_use]
    pub const fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    /// The service's tasks; their counts outlive it.
    #[must_use]
    pub fn tasks(&self) -> Tasks {
        self.tasks.clone()
    }

    /// Works until it is told to end, and ends in order. Dropping the future ends everything at once, as a kill would.
    pub async fn run(mut self) -> Exit {
        let mut polling = true;
        let whole = loop {
            tokio::select! {
                biased;
                () = self.shutdown.ordered.cancelled() => break true,
                // They panicked, which was told. Ready for ever and doing nothing would be worse than a restart.
                _ = &mut self.poller => {
                    polling = false;
                    break false;
                }
                Some(_) = self.fixed.next() => break false,
                Some(message) = self.messages.recv() => self.take(message),
                // A panic was told where it happened; its message becomes visible by itself.
                Some(_) = self.deliveries.next() => {}
            }
        };
        self.shutdown.ordered.cancel();
        let begun = Instant::now();
        self.facts.emit(&Fact::ShutdownBegun { messages: self.deliveries.len() });
        let (facts, tasks, abort) = (self.facts.clone(), self.tasks.clone(), self.shutdown.abort.clone());
        let clean = tokio::select! {
            biased;
            () = abort.cancelled() => false,
            clean = self.end(polling, begun + SHUTDOWN) => clean,
        };
        // What was aborted is gone only when the runtime has dropped it.
        let gone = timeout_at(begun + SHUTDOWN, tasks.gone(|_| true)).await;
        let clean = clean && gone.is_ok();
        facts.emit(&Fact::ShutdownEnded { clean, took: begun.elapsed() });
        match (whole, clean) {
            (false, _) => Exit::Broken,
            (true, true) => Exit::Clean,
            (true, false) => Exit::Aborted,
        }
    }

    fn take(&mut self, message: Message) {
        let (deliverer, stop) = (Arc::clone(&self.deliverer), self.shutdown.ordered.clone());
        self.deliveries.spawn(async move { deliverer.deliver(message, stop).await });
    }

    /// The ordered end. Tells whether everything ended by itself.
    async fn end(mut self, mut polling: bool, by: Instant) -> bool {
        // Not ready any more: a rollout sees it, and nobody counts on us.
        self.readiness.set(false);
        // The poller has seen the same token: no receive begins, one in flight is given 2 s. Every delivery has seen it, too:
        // it leaves its interruptions, which stop their heartbeats, and releases its message for another replica.
        let all = async {
            while polling || !self.deliveries.is_empty() {
                tokio::select! {
                    // What the last receive brings is released by a delivery of its own.
                    Some(message) = self.messages.recv() => self.take(message),
                    _ = &mut self.poller, if polling => polling = false,
                    Some(_) = self.deliveries.next() => {}
                }
            }
            while let Ok(message) = self.messages.try_recv() {
                self.take(message);
            }
            while self.deliveries.next().await.is_some() {}
        };
        let clean = timeout_at(by - LAST_STEPS, all).await.is_ok();
        // Nobody needs the rest any more: watches, batches and the admin server are aborted with their handles.
        self.fixed.clear();
        clean
    }
}

fn interrupter(
    settings: &Settings,
    clients: &Clients,
    clock: Clock,
    facts: &Facts,
    tasks: &Tasks,
    index: Index,
) -> Interrupter {
    let policy = settings.policy.clone();
    let gate = Gate::new(facts.clone());
    let drainer = Drainer {
        client: clients.kube.clone(),
        pods: pod_api(clients.kube.clone()),
        nodes: node_api(clients.kube.clone()),
        gate: gate.clone(),
        facts: facts.clone(),
        gone: Gone::new(clients.watches.clone(), tasks.clone(), facts.clone()),
        index: index.clone(),
        own_pod: settings.own_pod.clone(),
        pod_grace: settings.pod_grace,
        dry_run: policy.dry_run,
    };
    Interrupter {
        clock,
        facts: facts.clone(),
        tasks: tasks.clone(),
        owner: Owner::new(clients.ec2.clone(), settings.managed_tag.clone(), tasks, facts.clone()),
        marker: Marker::new(node_api(clients.kube.clone()), index.clone(), gate, policy.dry_run),
        drainer: Arc::new(drainer),
        hooks: Hooks::new(clients.autoscaling.clone(), Gate::new(facts.clone())),
        drains: Slots::new(tasks.clone(), Kind::Drain),
        index,
        policy,
    }
}
