//! The simulated API server, with the parts of a cluster behind it that a drain meets: kubelets that stop pods, a
//! disruption controller that counts budgets, and, switched on, controllers that replace evicted pods.
//!
//! ```text
//! request ─▶ route ─▶ Edge ─▶ server ─▶ State: store (objects, history) ◀─ kubelet, controller, budget
//!                                         └▶ watch: streams read the history, each with its own place in it
//! ```
//!
//! All of it is one [`state::State`] behind one lock, which is never held over an await. What is due by the clock
//! happens whenever the lock is taken, so that no reader can see a pod that should be gone; one background task takes
//! it when nobody else does.

mod budget;
mod controller;
mod delete;
mod event;
mod kubelet;
mod node;
mod object;
mod patch;
mod pod;
mod refusal;
mod route;
mod select;
mod server;
mod state;
mod store;
#[cfg(test)]
mod tests;
mod watch;
mod workers;

pub use budget::Limit;
pub use delete::{By, Evicted};
pub use pod::{Pod, PodSpec};
pub use watch::Interrupt;

use crate::clock::Clock;
use crate::fault::{Disconnected, Edge};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use jiff::SignedDuration;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::client::ClientBuilder;
use node::Rival;
use object::Object;
use route::{Call, Resource, Verb};
use state::{Shared, State};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use store::Key;
use tower::BoxError;
use tower::util::BoxService;
use workers::Workers;

/// The body of an answer: whole, or a watch that goes on.
pub type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, Disconnected>;

/// One simulated cluster. Copies are the same cluster.
#[derive(Clone, Debug)]
pub struct Kube {
    shared: Arc<Shared>,
    edge: Edge,
    workers: Arc<Workers>,
}

/// As a client meets it.
impl Kube {
    pub(crate) fn new(clock: Clock, edge: Edge, seed: u64) -> Self {
        Self { shared: Arc::new(Shared::new(clock, seed)), edge, workers: Arc::default() }
    }

    /// A real kube client on this API server, in memory and without retries. Needs a tokio runtime.
    #[must_use]
    pub fn client(&self) -> kube::Client {
        self.client_builder().build()
    }

    /// What that client is made of, to be put into layers of its user's own.
    #[must_use]
    pub fn client_builder(&self) -> ClientBuilder<BoxService<Request<kube::client::Body>, Response<Body>, BoxError>> {
        let kube = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let kube = kube.clone();
            // Nothing may happen before this future is polled: a planned panic belongs to the caller, and would kill
            // the client's shared worker here.
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                Ok::<_, BoxError>(kube.serve(Request::from_parts(head, body)).await?)
            }
        });
        ClientBuilder::new(BoxService::new(service), "default")
    }

    /// Serves one request. The body of the answer is a stream where the request is a watch.
    ///
    /// # Errors
    ///
    /// [`Disconnected`] where the fault plan says so.
    pub async fn serve(&self, request: Request<Bytes>) -> Result<Response<Body>, Disconnected> {
        let call = Call::read(request);
        let refuse = |fault| server::refuse(&call, fault);
        let answer = || server::answer(&self.shared, &call);
        // A watch would never give its worker back.
        let serve = async {
            let mut answer = if call.verb == Verb::Watch { answer() } else { self.workers.work(answer).await };
            answer.headers_mut().insert(http::header::DATE, self.date());
            answer
        };
        self.edge.pass("kube", &call.operation, &call.subject, refuse, serve).await
    }

    /// From now on the server does at most `workers` calls at a time, each of which takes so long; others queue. Watches don't
    /// count, and faults that refuse a call or break it off take no worker's time.
    pub fn busy(&self, workers: usize, takes: Duration) {
        self.workers.set(workers, takes);
    }

    /// From now on the client may not do this: `list pods`, `create pods/eviction`. A review says so, and the call is refused.
    pub fn deny(&self, operation: &str) {
        self.state().denied.insert(operation.to_owned());
    }

    /// From now on the server's clock shows so much more than the world's.
    pub fn set_clock_ahead(&self, by: SignedDuration) {
        self.state().ahead = by;
    }

    fn date(&self) -> http::HeaderValue {
        let state = self.state();
        let now = state.clock.now() + state.ahead;
        let date = now.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        date.parse().expect("a date must be a valid header")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }
}

/// Nodes, as other writers see and change them.
impl Kube {
    /// Adds a Ready node for an EC2 instance, with a boot ID of its own.
    pub fn add_node(&self, name: &str, instance_id: &str) {
        let mut state = self.state();
        let node = node::new(&mut state, name, instance_id);
        state.put(Resource::Nodes, node);
    }

    /// The node as it is now.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<v1::Node> {
        self.state().store.get(Resource::Nodes, &Key::cluster(name)).map(|node| node.typed(Resource::Nodes))
    }

    /// All nodes as they are now, by name.
    #[must_use]
    pub fn nodes(&self) -> Vec<v1::Node> {
        self.state().store.all(Resource::Nodes).map(|node| node.typed(Resource::Nodes)).collect()
    }

    /// Changes a node as another writer would, at any resourceVersion; does nothing if there is no such node.
    pub fn update_node(&self, name: &str, change: impl FnOnce(&mut v1::Node)) {
        let mut state = self.state();
        let Some(old) = state.store.get(Resource::Nodes, &Key::cluster(name)).cloned() else {
            return;
        };
        let mut node: v1::Node = old.typed(Resource::Nodes);
        change(&mut node);
        state.put(Resource::Nodes, Object::of(Resource::Nodes, &node));
    }

    /// Takes a node away, as a cloud controller does when the instance is gone; its pods go with it at once.
    pub fn remove_node(&self, name: &str) {
        self.state().remove_node(name);
    }

    /// Sets the node's Ready condition: `True`, or `Unknown` as when its kubelet is silent. Pods on a node that is not
    /// Ready are not stopped by anyone. No taint is set.
    pub fn set_ready(&self, name: &str, ready: bool) {
        let now = self.state().clock.now();
        self.update_node(name, |node| node::set_ready(node, ready, now));
    }

    /// Gives the node a new boot ID, as a reboot, or a stop and a start, do. Its Ready condition stays as it is.
    pub fn reboot(&self, name: &str) {
        let boot = self.state().uuid();
        self.update_node(name, |node| node::set_boot_id(node, &boot));
    }

    /// From now on a cordoned node gets the taint `node.kubernetes.io/unschedulable`, and loses it when uncordoned, as
    /// the node lifecycle controller of a real cluster does: a write by someone else right after each cordon.
    pub fn taint_cordoned(&self) {
        self.state().taint_cordoned = true;
    }
}

/// A rival.
impl Kube {
    /// From now on a rival taints a node right before a client's patch of it arrives, at most so often on each node: what the
    /// client has read is old then. Its taints are `rival-0:NoSchedule`, `rival-1:NoSchedule` and so on.
    pub fn rival_taints(&self, times: u32) {
        self.state().rival = Rival::tainting(times);
    }
}

/// Pods, and what became of them.
impl Kube {
    /// Adds a pod as its builder says; answers its name. Its controller is from now on meant to have one more.
    pub fn add_pod(&self, pod: Pod) -> String {
        let mut state = self.state();
        state.expect_replica(&pod);
        state.create_pod(pod)
    }

    /// All pods as they are now, by namespace and name.
    #[must_use]
    pub fn pods(&self) -> Vec<v1::Pod> {
        self.state().store.all(Resource::Pods).map(|pod| pod.typed(Resource::Pods)).collect()
    }

    /// The pods that are bound to a node.
    #[must_use]
    pub fn pods_on(&self, node: &str) -> Vec<v1::Pod> {
        self.state().store.pods_on(node).map(|pod| pod.typed(Resource::Pods)).collect()
    }

    /// One pod as it is now.
    #[must_use]
    pub fn pod(&self, namespace: &str, name: &str) -> Option<v1::Pod> {
        self.state().store.get(Resource::Pods, &Key::new(namespace, name)).map(|pod| pod.typed(Resource::Pods))
    }

    /// Changes a pod as another writer would; does nothing if there is no such pod.
    pub fn update_pod(&self, namespace: &str, name: &str, change: impl FnOnce(&mut v1::Pod)) {
        let mut state = self.state();
        let Some(old) = state.store.get(Resource::Pods, &Key::new(namespace, name)).cloned() else {
            return;
        };
        let mut pod: v1::Pod = old.typed(Resource::Pods);
        change(&mut pod);
        state.put(Resource::Pods, Object::of(Resource::Pods, &pod));
    }

    /// Takes a pod away at once, as a forced deletion by somebody else does.
    pub fn remove_pod(&self, namespace: &str, name: &str) {
        self.state().remove_pod(&Key::new(namespace, name));
    }

    /// From now on controllers replace pods that were evicted, deleted or lost: a ReplicaSet's (or any other owner's)
    /// `after` its end began, a StatefulSet's, under the same name, `after` it is gone, a DaemonSet's likewise and on
    /// its own node. They come up Ready on a node that is Ready and has no cordon or taint, or wait for one.
    pub fn replace(&self, after: Duration) {
        self.state().replace_after = Some(after);
    }

    /// The evictions and deletions that were accepted, in order; without dry runs.
    #[must_use]
    pub fn evictions(&self) -> Vec<Evicted> {
        self.state().evicted.clone()
    }

    /// From now on the namespace is being terminated: nothing can be created in it, evictions included (403).
    pub fn terminate_namespace(&self, namespace: &str) {
        self.state().terminating.insert(namespace.to_owned());
    }

    /// The Events that were recorded, by namespace and name.
    #[must_use]
    pub fn events(&self) -> Vec<v1::Event> {
        self.state().store.all(Resource::Events).map(|event| event.typed(Resource::Events)).collect()
    }
}

/// Disruption budgets.
impl Kube {
    /// Adds a budget over the namespace's pods that carry all of `labels`, or changes it.
    pub fn add_budget<'a>(
        &self,
        namespace: &str,
        name: &str,
        labels: impl IntoIterator<Item = (&'a str, &'a str)>,
        limit: Limit,
    ) {
        let labels = labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        self.state().add_budget(&Key::new(namespace, name), labels, limit);
    }

    /// Changes what a budget allows; does nothing if there is no such budget.
    pub fn set_budget(&self, namespace: &str, name: &str, limit: Limit) {
        self.state().set_budget(&Key::new(namespace, name), limit);
    }

    /// Takes a budget away.
    pub fn remove_budget(&self, namespace: &str, name: &str) {
        self.state().remove_budget(&Key::new(namespace, name));
    }

    /// Whether the disruption controller is behind with this budget: evictions are then refused with `Retry-After: 10`.
    pub fn stall_budget(&self, namespace: &str, name: &str, stalled: bool) {
        self.state().stall_budget(&Key::new(namespace, name), stalled);
    }

    /// The budget's `status.disruptionsAllowed` now.
    #[must_use]
    pub fn disruptions_allowed(&self, namespace: &str, name: &str) -> Option<i32> {
        self.state().disruptions_allowed(&Key::new(namespace, name))
    }
}

/// Leases.
impl Kube {
    /// Changes a Lease as another writer would, at any resourceVersion; makes it, where it is not there.
    pub fn put_lease(&self, namespace: &str, name: &str, change: impl FnOnce(&mut Lease)) {
        let mut state = self.state();
        let old = state.store.get(Resource::Leases, &Key::new(namespace, name)).cloned();
        let mut lease = old.map(|old| old.typed(Resource::Leases)).unwrap_or_else(|| {
            let (name, namespace, uid) = (Some(name.to_owned()), Some(namespace.to_owned()), Some(state.uuid()));
            let metadata = ObjectMeta { name, namespace, uid, ..ObjectMeta::default() };
            Lease { metadata, spec: None }
        });
        change(&mut lease);
        state.put(Resource::Leases, Object::of(Resource::Leases, &lease));
    }

    /// Takes a Lease away; does nothing if there is no such Lease.
    pub fn remove_lease(&self, namespace: &str, name: &str) {
        self.state().remove(Resource::Leases, &Key::new(namespace, name));
    }

    /// A namespace's Leases, by name.
    #[must_use]
    pub fn leases(&self, namespace: &str) -> Vec<Lease> {
        self.state()
            .store
            .in_namespace(Resource::Leases, namespace)
            .map(|lease| lease.typed(Resource::Leases))
            .collect()
    }
}

/// History and watches.
impl Kube {
    /// Whether the server's caches are behind and etcd is busy: a list of now, one that names no version, is then refused (500), as
    /// an overloaded API server does in the end. What it may answer from its caches, it answers.
    pub fn fall_behind(&self, behind: bool) {
        self.state().behind = behind;
    }

    /// Forgets all history, and all half-read lists: a watch from before now answers 410 Gone, and so does the rest of
    /// a list. Watches that run and are up to date go on.
    pub fn compact(&self) {
        self.state().store.compact();
    }

    /// Does something to all watches that run now; later ones are not touched.
    pub fn interrupt_watches(&self, how: Interrupt) {
        self.state().store.interrupt(how);
    }

    /// How many watches run now.
    #[must_use]
    pub fn watches(&self) -> usize {
        self.shared.watches()
    }
}
