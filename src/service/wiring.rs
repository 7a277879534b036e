//! The parts of the service, made of its settings and clients. Nothing runs yet.

use crate::cli::settings::Settings;
use crate::clients::connect::Clients;
use crate::clients::gate::Gate;
use crate::fact::{Facts, TaskKind};
use crate::leases::election::{Election, Office};
use crate::leftovers::collector::{Collector, Leftovers};
use crate::leftovers::leases::Leases;
use crate::leftovers::nodes;
use crate::pipeline::drain::{Drainer, PodWatch, Surges, pod_api};
use crate::pipeline::interruption::{
    Attachments, Confirmations, DrainingNodes, GroupLookup, Groups, Hints, Hooks, Interrupter, LoadBalancers,
    NoticeBurst, Policy, Reboots, Shifts, Slots, Waves,
};
use crate::pipeline::node::{
    ClusterNames, Index, Listing, Marker, NodeReleaser, OwnerLookup, PerPool, Restarts, node_api,
};
use crate::pipeline::queue::Queue;
use crate::pipeline::sources::{
    Deliverer, Ec2, Interruptions, MAX_NOTICES, NodeRefusals, Nodes, Offers, OutcomeCache, RepairBrake, Sources,
    Unclaimed,
};
use crate::runtime::clock::Clock;
use crate::runtime::task::Tasks;
use crate::telemetry::kube_events::{Backlog, EventWriter, Scope, event_subscriber};
use crate::telemetry::notify::{self, Notifier, notify_subscriber};
use crate::telemetry::traces::{FinishedTraces, TraceExporter, trace_subscriber};
use std::sync::Arc;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

/// The pieces that all parts share.
pub(super) struct Wiring {
    pub settings: Settings,
    pub clients: Clients,
    pub clock: Clock,
    pub facts: Facts,
    pub tasks: Tasks,
    /// The gate of all calls to the API server, except for the Lease of [`Wiring::nodes_election`].
    pub gate: Gate,
    /// Cancelled when the ordered shutdown begins.
    pub stop: CancellationToken,
}

impl Wiring {
    /// Returns the writer of Events and conditions.
    pub fn event_writer(&self, scope: Scope, backlog: Backlog) -> EventWriter {
        let instance = self.settings.selection_rules.own_pod.as_ref().map_or("ebbtide", |(_, name)| name).to_owned();
        let (client, gate, facts) = (self.clients.kube.clone(), self.gate.clone(), self.facts.clone());
        EventWriter::new(scope, backlog, client, gate, self.clock, facts, instance)
    }

    /// Returns the notifier, if there is a receiver.
    pub fn notifier(&self, backlog: notify::Backlog) -> Option<Notifier> {
        let settings = Arc::new(self.settings.notify.clone()?);
        Some(Notifier::new(settings, backlog, self.clients.webhook.clone()?, self.clock, self.facts.clone()))
    }

    /// Returns the exporter of traces, if there is a collector.
    pub fn trace_exporter(&self, finished: FinishedTraces) -> Option<TraceExporter> {
        let (settings, connector) = (self.settings.traces.clone()?, self.clients.collector.clone()?);
        Some(TraceExporter::new(settings, finished, connector, self.clock, self.facts.clone()))
    }

    /// Returns the collector of leftovers, if the settings ask for some. Replicas elect one of them by a Lease; a dry run writes nothing, so
    /// it has no election.
    pub fn collector(&self, interrupter: &Arc<Interrupter>) -> Option<Collector> {
        let Self { settings, clients, clock, facts, gate, .. } = self;
        let dry_run = settings.policy().dry_run;
        let (namespace, name) = settings.selection_rules.own_pod.as_ref()?;
        let leases = || Box::new(Leases::new(&clients.kube, gate.clone(), *clock, facts.clone(), dry_run)) as _;
        let nodes = || Box::new(nodes::Nodes::new(Arc::clone(interrupter))) as _;
        let all = [settings.collect_leases.then(leases), settings.collect_nodes.then(nodes)];
        let all: Vec<Box<dyn Leftovers>> = all.into_iter().flatten().collect();
        if all.is_empty() {
            return None;
        }
        let election = Election::new(Office::COLLECTOR, clients.kube.clone(), namespace, name, gate.clone(), *clock);
        Some(Collector::new(all, facts.clone(), (!dry_run).then_some(election)))
    }

    /// Returns the election of the replica that handles notices from Nodes; `None` in a dry run, in which all do. Its calls have a gate of
    /// their own: the evictions of a storm must not cost the turn.
    fn nodes_election(&self) -> Option<Election> {
        let own_pod = self.settings.selection_rules.own_pod.as_ref();
        let (namespace, name) = own_pod.filter(|_| !self.settings.policy().dry_run)?;
        let (client, gate) = (self.clients.kube.clone(), Gate::new(self.facts.clone()));
        let office = Office::nodes(self.settings.nodes_lease);
        Some(Election::new(office, client, namespace, name, gate, self.clock))
    }

    pub fn queue(&self) -> Queue {
        let url = self.settings.queue_url.clone();
        Queue::new(self.clients.aws.sqs.clone(), url, self.clock, &self.tasks, self.facts.clone())
    }

    pub fn interrupter(&self, index: &Index) -> Interrupter {
        let Self { settings, clients, clock, facts, tasks, gate, .. } = self;
        let policy = settings.policy();
        let nodes = node_api(clients.kube.clone());
        let marker =
            Marker::new(nodes.clone(), index.clone(), gate.clone(), policy.mark_settings.clone(), policy.dry_run);
        let nodes_known = index.clone();
        let cluster = ClusterNames::new(settings.cluster_name.clone(), move || nodes_known.any_instance());
        let tag = settings.managed_tag.clone();
        let owner = OwnerLookup::new(clients.aws.ec2.clone(), tag, cluster, tasks, facts.clone());
        let drainer = Drainer {
            client: clients.kube.clone(),
            pods: pod_api(clients.kube.clone()),
            nodes,
            gate: gate.clone(),
            facts: facts.clone(),
            pod_watch: PodWatch::new(clients.watches.clone(), tasks.clone(), facts.clone()),
            index: index.clone(),
            marker: marker.clone(),
            clock: *clock,
            rules: settings.selection_rules.clone(),
            pod_selector: settings.pod_selector.clone(),
            terms: settings.policies.map(|policy| policy.drain),
            surges: Surges::default(),
            notes_addresses: !policy.awaits_load_balancers().is_zero(),
            dry_run: policy.dry_run,
            leave: self.stop.clone(),
            running: watch::Sender::default(),
            probing: tokio::sync::Mutex::default(),
        };
        let (autoscaling, lifecycle) = (clients.aws.autoscaling.clone(), Gate::new(facts.clone()));
        let balancing = (autoscaling.clone(), clients.aws.elb.clone());
        let kube = (clients.kube.clone(), gate.clone());
        let waited = policy.waits.load_balancers;
        let group_lookup = GroupLookup::new(autoscaling.clone(), tasks, facts.clone());
        let lookups = (owner.clone(), group_lookup.clone());
        let load_balancers = LoadBalancers::new(waited, kube, balancing, lookups, tasks, facts);
        let confirmations = Confirmations::new(clients.aws.ec2.clone(), group_lookup.clone(), *clock, tasks, facts);
        Interrupter {
            draining: Arc::new(DrainingNodes::new(policy.admission.limit)),
            waves: waves(index, &settings.policies),
            shifts: Shifts::new(index, policy.waits.zonal_shift.clone()),
            confirmations,
            clock: *clock,
            facts: facts.clone(),
            tasks: tasks.clone(),
            owner,
            marker,
            drainer: Arc::new(drainer),
            hooks: Hooks::new(autoscaling.clone(), lifecycle.clone(), group_lookup),
            groups: Groups::new(autoscaling, lifecycle, facts.clone()),
            reboots: Reboots::new(clients.aws.ec2.clone(), facts.clone()),
            settling: NoticeBurst::default(),
            hints: Hints::default(),
            attachments: Attachments::new(clients.watches.clone(), tasks.clone(), facts.clone()),
            load_balancers,
            drains: Slots::new(tasks.clone(), TaskKind::Drain),
            index: index.clone(),
            policies: settings.policies.map(|policy| Arc::new(policy.clone())),
        }
    }

    /// Returns the task that removes marks from Nodes. A dry run sets none, so it removes none.
    pub fn releaser(&self, index: &Index, marker: &Marker) -> Option<NodeReleaser> {
        let (index, marker, facts) = (index.clone(), marker.clone(), self.facts.clone());
        // The settings with which the role may ask.
        let asks = self.settings.policy().admission.may_ask() || self.settings.ec2_poll_interval.is_some();
        let listing = asks.then(|| Listing::new(self.clients.aws.ec2.clone(), self.facts.clone()));
        let restarts = Restarts { listing, marker: marker.clone(), clock: self.clock, facts: facts.clone() };
        (!self.settings.policy().dry_run).then(|| NodeReleaser { index, marker, clock: self.clock, restarts, facts })
    }

    pub fn interruptions(&self, interrupter: Interrupter) -> Interruptions {
        Interruptions {
            running: Slots::new(self.tasks.clone(), TaskKind::Interruption),
            outcomes: OutcomeCache::default(),
            interrupter: Arc::new(interrupter),
        }
    }

    pub fn deliverer(&self, queue: Queue, interruptions: &Arc<Interruptions>) -> Deliverer {
        Deliverer {
            queue,
            interruptions: Arc::clone(interruptions),
            interrupter: Arc::clone(&interruptions.interrupter),
            facts: self.facts.clone(),
            unclaimed: Unclaimed::default(),
            has_other_sources: self.settings.sources.ec2 || self.settings.sources.nodes,
            permits: Semaphore::new(MAX_NOTICES),
        }
    }

    /// Returns the sources besides messages.
    pub fn sources(&self, interruptions: Arc<Interruptions>) -> Sources {
        let Self { settings, clients, facts, .. } = self;
        let interrupter = || Arc::clone(&interruptions.interrupter);
        let refusals = Arc::new(NodeRefusals::new(interrupter().index.clone(), facts.clone()));
        let brake = Arc::new(RepairBrake::new(interrupter(), settings.ec2_poll_interval.is_some()));
        let ec2 = |interval| Ec2 {
            listing: Listing::new(clients.aws.ec2.clone(), facts.clone()),
            interval,
            interrupter: interrupter(),
            brake: Arc::clone(&brake),
            answers: Default::default(),
        };
        let nodes = || Nodes::new(interrupter(), Arc::clone(&refusals), settings.sources.queue);
        Sources {
            ec2: settings.ec2_poll_interval.map(ec2),
            nodes: settings.sources.nodes.then(nodes),
            election: self.nodes_election().filter(|_| settings.sources.nodes),
            offers: Offers { interrupter: interrupter(), interruptions, brake, refusals },
        }
    }
}

/// Returns the waves of each pool: its own, which count its Nodes alone, or those of all other Nodes.
fn waves(index: &Index, policies: &PerPool<Policy>) -> PerPool<Arc<Waves>> {
    let shared = policies.iter().filter(|(_, policy)| !policy.waits.own_waves).map(|(pool, _)| pool.cloned()).collect();
    let of = |policy: &Policy, pools| Arc::new(Waves::new(index, policy.waits.waves.clone(), pools));
    let rest = of(policies.rest(), shared);
    policies.map(|policy| match &policy.pool {
        Some(pool) if policy.waits.own_waves => of(policy, vec![Some(Arc::clone(pool))]),
        _ => Arc::clone(&rest),
    })
}

/// Adds the subscriber that notes facts for Events and conditions, if the settings ask for any. A dry run writes none: it does nothing.
pub(super) fn subscribe(settings: &Settings, facts: Facts) -> (Facts, Option<(Scope, Backlog)>) {
    let scope = settings.reported;
    if scope == Scope::None || settings.policy().dry_run {
        return (facts, None);
    }
    let (subscriber, backlog) = event_subscriber();
    (facts.with(Arc::new(subscriber)), Some((scope, backlog)))
}

/// Adds the subscriber that notes facts for notifications, if there is a receiver. A dry run sends none: it does nothing.
pub(super) fn subscribe_notifier(settings: &Settings, facts: Facts) -> (Facts, Option<notify::Backlog>) {
    if settings.notify.is_none() || settings.policy().dry_run {
        return (facts, None);
    }
    let (subscriber, backlog) = notify_subscriber();
    (facts.with(Arc::new(subscriber)), Some(backlog))
}

/// Adds the subscriber that puts facts together to traces, if there is a collector.
pub(super) fn subscribe_traces(settings: &Settings, clock: Clock, facts: Facts) -> (Facts, Option<FinishedTraces>) {
    if settings.traces.is_none() {
        return (facts, None);
    }
    let (subscriber, finished) = trace_subscriber(clock);
    (facts.with(Arc::new(subscriber)), Some(finished))
}
