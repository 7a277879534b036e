//! A drain without a queue: two replicas with `--source nodes` alone, on a cluster and an AWS of their own, where every call is recorded.

use crate::clients;
use crate::plan::{Member, Part, Plan, QUEUELESS};
use crate::storm::{at_rest, say_spot};
use crate::tally::Tally;
use crate::teller::Teller;
use ebbtide::fact::{Fact, Facts, Subscriber};
use ebbtide::runtime::{Clock, Tasks};
use ebbtide::service::{Exit, Inputs, Service, Shutdown};
use ebbtide::telemetry::{Log, Metrics};
use ebbtide_sim::World;
use futures_util::future::join_all;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{interval, timeout};

/// Names of the replicas: by them they elect the one that acts on what Nodes say.
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

/// Has facts about the Node told, not those about the replicas: they would look like the storm's.
struct OfNode(Arc<Teller>);

impl Subscriber for OfNode {
    fn note(&self, fact: &Fact<'_>) {
        if !matches!(fact, Fact::Ready | Fact::ShutdownBegun { .. } | Fact::ShutdownEnded { .. }) {
            self.0.note(fact);
        }
    }
}

impl Scene {
    /// Starts the replicas, has the Node say a spot interruption, and stops the replicas when all work has ended.
    pub async fn play(teller: &Arc<Teller>, seed: u64) -> Self {
        let (name, instance) = (QUEUELESS.0.to_owned(), QUEUELESS.1.to_owned());
        let member = Member { name, instance, pods: vec![Duration::from_secs(1); 2], part: Part::Said };
        let plan = Plan { nodes: vec![member], seed };
        let (world, tally, shutdown) = (World::new(seed), Arc::new(Tally::default()), Shutdown::default());
        plan.build(&world);
        let loopback = world.bind().await.expect("a loopback port must be free");
        let clock = Clock::showing(world.clock.now());
        let mut replicas = Vec::new();
        for name in REPLICAS {
            let subscribers: Vec<Arc<dyn Subscriber>> =
                vec![Arc::new(OfNode(Arc::clone(teller))), tally.clone(), Arc::new(Log::default())];
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
        teller
            .say(&format!("meanwhile, in a cluster without a queue: {} says a spot interruption", plan.nodes[0].name));
        say_spot(&world, &plan.nodes[0].name);
        let tasks: Vec<Tasks> = replicas.iter().map(Service::tasks).collect();
        let course = async {
            let quiet = async {
                let mut look = interval(Duration::from_millis(100));
                while !(tally.drains_ended() > 0 && tasks.iter().all(at_rest)) {
                    look.tick().await;
                }
            };
            // The checks tell of a drain that has not ended.
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
