//! The wiring, and the service's life: start, work, ordered shutdown.

use crate::cli::settings::Settings;
use crate::clients::connect::Clients;
use crate::clients::gate::Gate;
use crate::commands::doctor;
use crate::fact::{Fact, Facts};
use crate::leases::collector::Collector;
use crate::leases::turn::Election;
use crate::pipeline::delivery::{Deliverer, OutcomeCache};
use crate::pipeline::drain::{Drainer, Gone, pod_api};
use crate::pipeline::interruption::{Hooks, Interrupter, Slots};
use crate::pipeline::node::{Index, Marker, Owner, Undo, node_api};
use crate::pipeline::queue::{Message, Poller, Queue};
use crate::runtime::clock::Clock;
use crate::runtime::task::{Group, Handle, Kind, Tasks};
use crate::telemetry::admin::{Admin, ListenError, Readiness};
use crate::telemetry::kube_events::{Noted, Scope, Teller, events};
use crate::telemetry::metrics::Metrics;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

/// Shutdown takes at most so long; a pod's terminationGracePeriod must be longer.
const SHUTDOWN: Duration = Duration::from_secs(10);

/// What is kept of it for the last steps, once messages have had their time.
const LAST_STEPS: Duration = Duration::from_secs(1);

/// What the teller is given of those, for the end of a drain that it has just heard of.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The set-up is checked once the service is ready, or after so long, if it does not get there.
const CHECKED_BY: Duration = Duration::from_mins(1);

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
    /// Writes Events, where they are wanted, until it is told to end. Not one of the fixed: were it to panic, which is told, drains
    /// would go on untold.
    teller: Option<(Handle<()>, CancellationToken)>,
    /// Looks at the set-up, once it is ready. Nobody waits for it.
    checks: Option<Handle<()>>,
    /// Collects leaked Leases, where that is wanted; it hears of the ordered end by itself. Not one of the fixed either.
    collector: Option<Handle<()>>,
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
        let (facts, noted) = subscribe(&settings, facts);
        let tasks = Tasks::new(facts.clone());
        let gate = Gate::new(facts.clone());
        let teller = noted.map(|(scope, noted)| {
            let instance = settings.choice.own_pod.as_ref().map_or("ebbtide", |(_, name)| name).to_owned();
            let calls = (clients.kube.clone(), gate.clone());
            let teller = Teller::new(scope, noted, calls, clock, facts.clone(), instance);
            let stop = CancellationToken::new();
            (tasks.spawn(Kind::Teller, teller.run(stop.clone())), stop)
        });
        let readiness = Readiness::default();
        let admin = Admin::bind(settings.admin_address, readiness.clone(), metrics, tasks.clone()).await?;
        let address = admin.address();
        facts.emit(&Fact::Started { queue: &settings.queue_url, dry_run: settings.policy.dry_run });
        facts.emit(&Fact::AdminListening { address });

        let index = Index::new(settings.node_selector.clone());
        let (synced, nodes_synced) = oneshot::channel();
        let watch = index.clone().watch(node_api(clients.watches.clone()), facts.clone(), synced);
        let fixed: FuturesUnordered<_> =
            [tasks.spawn(Kind::Admin, admin.serve()), tasks.spawn(Kind::NodeWatch, watch)].into_iter().collect();

        let (ready, begins) = oneshot::channel();
        let checks = settings.check_at_start.then(|| {
            let (settings, facts) = (settings.clone(), facts.clone());
            let checks = doctor::check_at_start(settings, clients.clone(), gate.clone(), clock, facts);
            // Nothing may delay its getting ready; but where it does not, they say why.
            tasks.spawn(Kind::Checks, async move {
                if !matches!(timeout(CHECKED_BY, begins).await, Ok(Err(_))) {
                    checks.await;
                }
            })
        });
        let collector = collector(&settings, &clients, clock, &facts, &gate);
        let collector = collector.map(|it| tasks.spawn(Kind::Collector, it.run(shutdown.ordered.clone())));

        let queue = Queue::new(clients.aws.sqs.clone(), settings.queue_url.clone(), clock, &tasks, facts.clone());
        let interrupter = interrupter(&settings, &clients, clock, (&facts, &tasks), (index.clone(), gate), &shutdown);
        if !settings.policy.dry_run {
            let undo = Undo { index, marker: interrupter.marker.clone(), clock, facts: facts.clone() };
            fixed.push(tasks.spawn(Kind::Undo, undo.run()));
        }
        let deliverer = Arc::new(Deliverer {
            queue: queue.clone(),
            interruptions: Slots::new(tasks.clone(), Kind::Interruption),
            interrupter: Arc::new(interrupter),
            facts: facts.clone(),
            outcomes: OutcomeCache::default(),
        });

        let (sender, messages) = mpsc::unbounded_channel();
        let (answered, queue_answered) = oneshot::channel();
        let poller = Poller { queue, messages: sender, answered, stop: shutdown.ordered.clone() };
        let stop = shutdown.ordered.clone();
        let told = (readiness.clone(), facts.clone());
        let poller = tasks.spawn(Kind::Poller, async move {
            // Without the Nodes every instance would look like another cluster's.
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = nodes_synced => {}
            }
            let answers = async {
                if queue_answered.await.is_ok() {
                    told.0.set(true);
                    told.1.emit(&Fact::Ready);
                    // Where nothing is checked nobody listens.
                    let _ = ready.send(());
                }
            };
            tokio::join!(poller.run(), answers);
        });
        let deliveries = tasks.group(Kind::Message);
        Ok(Self {
            facts,
            tasks,
            shutdown,
            readiness,
            deliverer,
            deliveries,
            messages,
            poller,
            fixed,
            teller,
            checks,
            collector,
            admin: address,
        })
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
        // What nobody waits for.
        self.checks = None;
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
        // No drain runs any more. What was told of those that ended is written; a server that does not answer is not waited for.
        let last_words = async {
            if let Some((teller, stop)) = self.teller.take() {
                stop.cancel();
                let _ = teller.await;
            }
        };
        // It stopped when shutdown began, and gives its turn back meanwhile.
        let turn_back = async {
            if let Some(collector) = self.collector.take() {
                let _ = collector.await;
            }
        };
        let _ = tokio::join!(timeout(LAST_WORDS, last_words), timeout(LAST_WORDS, turn_back));
        // Nobody needs the rest any more: watches, batches and the admin server are aborted with their handles.
        self.fixed.clear();
        clean
    }
}

/// Where Events are wanted, their subscriber hears of all facts, too. A dry run tells of nothing: it does nothing.
fn subscribe(settings: &Settings, facts: Facts) -> (Facts, Option<(Scope, Noted)>) {
    match settings.events {
        Some(scope) if !settings.policy.dry_run => {
            let (events, noted) = events();
            (facts.with(Arc::new(events)), Some((scope, noted)))
        }
        _ => (facts, None),
    }
}

/// Where it is wanted, what collects leaked Leases: by turns with other replicas. A dry run writes nothing, its turn neither.
fn collector(settings: &Settings, clients: &Clients, clock: Clock, facts: &Facts, gate: &Gate) -> Option<Collector> {
    let (namespace, name) = settings.choice.own_pod.as_ref().filter(|_| settings.collect_leases)?;
    let election = Election::new(clients.kube.clone(), namespace, name, gate.clone(), clock);
    let election = (!settings.policy.dry_run).then_some(election);
    Some(Collector::new(&clients.kube, gate.clone(), clock, facts.clone(), election))
}

fn interrupter(
    settings: &Settings,
    clients: &Clients,
    clock: Clock,
    (facts, tasks): (&Facts, &Tasks),
    (index, gate): (Index, Gate),
    shutdown: &Shutdown,
) -> Interrupter {
    let policy = settings.policy.clone();
    let nodes = node_api(clients.kube.clone());
    let marker = Marker::new(nodes.clone(), index.clone(), gate.clone(), policy.extras.clone(), policy.dry_run);
    let drainer = Drainer {
        client: clients.kube.clone(),
        pods: pod_api(clients.kube.clone()),
        nodes,
        gate,
        facts: facts.clone(),
        gone: Gone::new(clients.watches.clone(), tasks.clone(), facts.clone()),
        index: index.clone(),
        marker: marker.clone(),
        clock,
        choice: settings.choice.clone(),
        pod_selector: settings.pod_selector.clone(),
        at_deadline: settings.at_deadline,
        pod_grace: settings.pod_grace,
        dry_run: policy.dry_run,
        leave: shutdown.ordered.clone(),
        running: watch::Sender::default(),
    };
    Interrupter {
        clock,
        facts: facts.clone(),
        tasks: tasks.clone(),
        owner: Owner::new(clients.aws.ec2.clone(), settings.managed_tag.clone(), tasks, facts.clone()),
        marker,
        drainer: Arc::new(drainer),
        hooks: Hooks::new(clients.aws.autoscaling.clone(), Gate::new(facts.clone())),
        drains: Slots::new(tasks.clone(), Kind::Drain),
        index,
        policy,
    }
}
