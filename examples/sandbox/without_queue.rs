//! A drain without a queue: two replicas with `--source nodes` alone, on a cluster and an AWS of their own, where every call is recorded.

use crate::clients;
use crate::plan::{Member, Part, Plan, QUEUELESS};
use crate::printer::Printer;
use crate::storm::{announce_spot, at_rest};
use crate::tally::Tally;
use ebbtide::fact::{Fact, Facts, Subscriber};
use ebbtide::runtime::{Clock, Tasks};
use ebbtide::service::{Exit, Inputs, Service, Shutdown};
use ebbtide::telemetry::{Metrics, Rows};
use ebbtide_sim::World;
use futures_util::future::join_all;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{interval, timeout};

/// Names of the replicas, which identify them in the election of the one that acts on agent notices.
const REPLICAS: [&str; 2] = ["without-queue-a", "without-queue-b"];

/// Timeout of the scene. A drain that has not ended then is a deviation.
const LONGEST: Duration = Duration::from_secs(30);

/// The scene after its end.
pub struct Scene {
    pub plan: Plan,
    pub world: World,
    pub tally: Arc<Tally>,
    /// How each replica ended.
    pub replicas: Vec<(Exit, Tasks)>,
}

/// Prints facts about the Node. Facts about the replicas are left out: they would look like the storm's.
struct OfNode(Arc<Printer>);

impl Subscriber for OfNode {
    fn note(&self, fact: &Fact<'_>) {
        if !matches!(fact, Fact::Ready | Fact::ShutdownBegun { .. } | Fact::ShutdownEnded { .. }) {
            self.0.note(fact);
        }
    }
}

impl Scene {
    /// Starts the replicas, annotates the Node with a spot interruption, and stops the replicas when all work has ended.
    pub async fn play(printer: &Arc<Printer>, seed: u64) -> Self {
        let (name, instance) = (QUEUELESS.0.to_owned(), QUEUELESS.1.to_owned());
        let member = Member { name, instance, pods: vec![Duration::from_secs(1); 2], part: Part::Announced };
        let plan = Plan { nodes: vec![member], seed };
        let (world, tally, shutdown) = (World::new(seed), Arc::new(Tally::default()), Shutdown::default());
        plan.build(&world);
        let loopback = world.bind().await.expect("a loopback port must be free");
        let clock = Clock::showing(world.clock.now());
        let mut replicas = Vec::new();
        for name in REPLICAS {
            let subscribers: Vec<Arc<dyn Subscriber>> =
                vec![Arc::new(OfNode(Arc::clone(printer))), tally.clone(), Arc::new(Rows::default())];
            let inputs = Inputs {
                settings: clients::settings(
                    name,
                    (SocketAddr::from(([127, 0, 0, 1], 0)), None),
                    &["--source", "nodes"],
                ),
                clients: clients::on(&loopback, clock),
                clock,
                facts: Facts::to(subscribers),
                metrics: Arc::new(Metrics::new()),
                log_filter: None,
                shutdown: shutdown.clone(),
                start_checks: None,
            };
            replicas.push(Service::start(inputs).await.expect("a loopback port must be free"));
        }
        printer.announce(&format!(
            "meanwhile, in a cluster without a queue: the agent of {} announces a spot interruption",
            plan.nodes[0].name
        ));
        announce_spot(&world, &plan.nodes[0].name);
        let tasks: Vec<Tasks> = replicas.iter().map(Service::tasks).collect();
        let course = async {
            let quiet = async {
                let mut poll = interval(Duration::from_millis(100));
                while !(tally.drains_ended() > 0 && tasks.iter().all(at_rest)) {
                    poll.tick().await;
                }
            };
            // The checks report a drain that has not ended.
            let _ = timeout(LONGEST, quiet).await;
            shutdown.ordered.cancel();
        };
        let (exits, ()) = tokio::join!(join_all(replicas.into_iter().map(Service::run)), course);
        Self { plan, world, tally, replicas: exits.into_iter().zip(tasks).collect() }
    }

    /// Returns the calls to AWS.
    pub fn calls_to_aws(&self) -> Vec<String> {
        let calls = self.world.calls.all().into_iter().filter(|call| call.service != "kube");
        calls.map(|call| call.operation).collect()
    }
}
