//! The start of the service.

use crate::cli::settings::{Settings, Sources};
use crate::clients::connect::Clients;
use crate::clients::gate::Gate;
use crate::fact::{Fact, Facts, TaskKind};
use crate::pipeline::node::{Index, node_api};
use crate::pipeline::queue::Poller;
use crate::runtime::clock::Clock;
use crate::runtime::task::{Handle, Tasks};
use crate::service::running::{Service, StoppableTask};
use crate::service::signals::Shutdown;
use crate::service::wiring::{Wiring, subscribe, subscribe_notifier, subscribe_traces};
use crate::telemetry::admin::{Admin, Readiness};
use crate::telemetry::history::History;
use crate::telemetry::http::{ListenError, Server};
use crate::telemetry::log_filter::LogFilter;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::page::Page;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Fuse};
use futures_util::stream::FuturesUnordered;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Maximum time that the checks of the set-up wait for readiness. A service that does not get ready needs them most.
const CHECKS_DELAY: Duration = Duration::from_mins(1);

/// The inputs of the service.
pub struct Inputs {
    /// The validated settings.
    pub settings: Settings,
    /// The clients of AWS and of the API server.
    pub clients: Clients,
    /// The clock.
    pub clock: Clock,
    /// The subscribers of facts. The service adds the one that writes Events.
    pub facts: Facts,
    /// The metrics that the admin server shows.
    pub metrics: Arc<Metrics>,
    /// The filter of the log, if the process has a log of its own.
    pub log_filter: Option<LogFilter>,
    /// The tokens that end the service.
    pub shutdown: Shutdown,
    /// The checks of the set-up, if they are asked for.
    pub start_checks: Option<StartChecks>,
}

/// Checks of the set-up, made once after the start with the service's own gate and facts.
pub struct StartChecks(Box<dyn FnOnce(Gate, Facts) -> BoxFuture<'static, ()> + Send>);

impl StartChecks {
    /// Wraps `checks`, which is called when the service starts.
    pub fn new<F>(checks: impl FnOnce(Gate, Facts) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self(Box::new(|gate, facts| checks(gate, facts).boxed()))
    }

    /// Makes the checks once the service is ready, or after [`CHECKS_DELAY`]: readiness never waits for them.
    async fn run(self, gate: Gate, facts: Facts, readiness: Readiness) {
        let _ = timeout(CHECKS_DELAY, readiness.ready()).await;
        (self.0)(gate, facts).await;
    }
}

impl Service {
    /// Wires all parts, and starts the tasks that live as long as the service.
    ///
    /// # Errors
    /// When the admin address can't be bound.
    pub async fn start(inputs: Inputs) -> Result<Self, ListenError> {
        let Inputs { settings, clients, clock, facts, metrics, log_filter, shutdown, start_checks } = inputs;
        let (facts, events) = subscribe(&settings, facts);
        let (facts, notifications) = subscribe_notifier(&settings, facts);
        let (facts, finished_traces) = subscribe_traces(&settings, clock, facts);
        let (facts, page) = bind_page(&settings, clock, facts).await;
        if !(settings.sources.queue || settings.sources.nodes) {
            // Only the answers of the queue, and of the API server to the work on Nodes, are compared with the clock.
            clock.trust();
        }
        let tasks = Tasks::new(facts.clone());
        let gate = Gate::new(facts.clone());
        let stop = shutdown.ordered.clone();
        let wiring =
            Wiring { settings, clients, clock, facts: facts.clone(), tasks: tasks.clone(), gate, stop: stop.clone() };

        let event_writer = events.map(|(scope, backlog)| {
            let stop = CancellationToken::new();
            let handle = tasks.spawn(TaskKind::Teller, wiring.event_writer(scope, backlog).run(stop.clone()));
            StoppableTask { handle, stop }
        });

        let notifier = notifications.and_then(|backlog| wiring.notifier(backlog)).map(|notifier| {
            let stop = CancellationToken::new();
            StoppableTask { handle: tasks.spawn(TaskKind::Notifier, notifier.run(stop.clone())), stop }
        });

        let trace_exporter = finished_traces.and_then(|finished| wiring.trace_exporter(finished)).map(|exporter| {
            let stop = CancellationToken::new();
            StoppableTask { handle: tasks.spawn(TaskKind::Tracer, exporter.run(stop.clone())), stop }
        });

        let readiness = Readiness::default();
        let address = wiring.settings.admin_address;
        let server = Server::bind("--admin-address", address).await?.named(wiring.settings.host_names.clone());
        let admin = server.address();
        let pages =
            Admin { readiness: readiness.clone(), metrics, tasks: tasks.clone(), log_filter, facts: facts.clone() };
        let pages = Arc::new(pages);
        let sources = wiring.settings.sources;
        let (queue_url, dry_run) = (&*wiring.settings.queue_url, wiring.settings.policy().dry_run);
        let node_hook = wiring.settings.policy().node_hook();
        facts.emit(&Fact::Started { queue: queue_url, sources: &sources, node_hook, dry_run });
        facts.emit(&Fact::AdminListening { address: admin });

        let policy = wiring.settings.policy();
        let rules = Arc::clone(&policy.conditions);
        let index =
            Index::new(wiring.settings.scope.clone(), wiring.settings.labels(), rules, Arc::clone(&policy.work_signs));
        let (synced, nodes_synced) = oneshot::channel();
        let watch = index.clone().watch(node_api(wiring.clients.watches.clone()), facts.clone(), synced);
        let fixed = FuturesUnordered::new();
        let serving = tasks.clone();
        fixed.push(tasks.spawn(TaskKind::Admin, async move {
            server.serve(&serving, TaskKind::AdminConnection, pages).await;
        }));
        let status = page.as_ref().map(|(server, _)| server.address());
        let page = page.map(|(server, history)| {
            tasks.spawn(TaskKind::Status, show(server, history, tasks.clone(), wiring.settings.status_peers.clone()))
        });
        fixed.push(tasks.spawn(TaskKind::NodeWatch, watch));

        let checks = start_checks.map(|checks| {
            let checks = checks.run(wiring.gate.clone(), facts.clone(), readiness.clone());
            tasks.spawn(TaskKind::Checks, checks)
        });
        let interrupter = wiring.interrupter(&index);
        if let Some(releaser) = wiring.releaser(&index, &interrupter.marker) {
            fixed.push(tasks.spawn(TaskKind::Undo, releaser.run()));
        }

        let queue = wiring.queue();
        let (sender, messages) = mpsc::unbounded_channel();
        let (answered, queue_answered) = oneshot::channel();
        let ready = Ready { nodes_synced, queue_answered, readiness: readiness.clone(), facts: facts.clone() };
        let poller = Poller { queue: queue.clone(), messages: sender, answered, stop: stop.clone() };
        let poller = ready.spawned(&tasks, sources, poller, &fixed);
        let interruptions = Arc::new(wiring.interruptions(interrupter));
        let deliverer = Arc::new(wiring.deliverer(queue, &interruptions));
        let collector = wiring.collector(&interruptions.interrupter);
        let collector = collector.map(|it| tasks.spawn(TaskKind::Collector, it.run(stop.clone())));
        let sources = tasks.spawn(TaskKind::Sources, wiring.sources(interruptions).run(stop)).fuse();
        Ok(Self {
            deliverer,
            deliveries: tasks.group(TaskKind::Message),
            facts,
            tasks,
            shutdown,
            readiness,
            poller,
            sources,
            messages,
            fixed,
            event_writer,
            notifier,
            trace_exporter,
            collector,
            checks,
            page,
            admin,
            status,
        })
    }
}

/// Binds the address of the status page, if the settings have one, and adds the history that the page shows to the subscribers.
async fn bind_page(settings: &Settings, clock: Clock, facts: Facts) -> (Facts, Option<(Server, Arc<History>)>) {
    let Some(address) = settings.status_address else { return (facts, None) };
    match Server::bind("--status-address", address).await {
        Ok(server) => {
            facts.emit(&Fact::StatusListening { address: server.address() });
            let replica = settings.selection_rules.own_pod.as_ref().map_or("ebbtide", |(_, name)| name);
            let history = Arc::new(History::new(clock, replica, settings.policy().dry_run));
            let server = server.named(settings.host_names.clone());
            (facts.with(Arc::clone(&history) as _), Some((server, history)))
        }
        Err(error) => {
            // No reason not to drain.
            facts.emit(&Fact::StatusFailed { error: &error });
            (facts, None)
        }
    }
}

/// Serves the status page until dropped.
async fn show(server: Server, history: Arc<History>, tasks: Tasks, peers: Vec<String>) {
    let page = Arc::new(Page::new(history, tasks.clone(), peers));
    tokio::join!(server.serve(&tasks, TaskKind::StatusConnection, Arc::clone(&page)), page.send_frames());
}

/// The conditions for readiness, and its handle.
struct Ready {
    nodes_synced: oneshot::Receiver<()>,
    queue_answered: oneshot::Receiver<()>,
    readiness: Readiness,
    facts: Facts,
}

impl Ready {
    /// Starts to receive messages. Without a queue starts a task that makes the service ready, one of the `fixed` ones.
    fn spawned(
        self,
        tasks: &Tasks,
        sources: Sources,
        poller: Poller,
        fixed: &FuturesUnordered<Handle<()>>,
    ) -> Fuse<Handle<()>> {
        if sources.queue {
            return tasks.spawn(TaskKind::Poller, self.receive(poller)).fuse();
        }
        fixed.push(tasks.spawn(TaskKind::Poller, self.without_queue(poller)));
        Fuse::terminated()
    }

    /// Becomes ready once the Nodes are listed. Never ends; the poller keeps the channel of messages open.
    async fn without_queue(self, _poller: Poller) {
        if self.nodes_synced.await.is_ok() {
            self.readiness.set(true);
            self.facts.emit(&Fact::Ready);
        }
        pending::<()>().await;
    }

    /// Receives messages once the Nodes are listed: before, every instance would look like one of another cluster. The first answer
    /// of the queue makes the service ready.
    async fn receive(self, poller: Poller) {
        tokio::select! {
            biased;
            () = poller.stop.cancelled() => return,
            _ = self.nodes_synced => {}
        }
        let becomes_ready = async {
            if self.queue_answered.await.is_ok() {
                self.readiness.set(true);
                self.facts.emit(&Fact::Ready);
            }
        };
        tokio::join!(poller.run(), becomes_ready);
    }
}
