//! The simulated API server, and the parts of a cluster that a drain meets: kubelets that stop pods, a disruption
//! controller that counts budgets, and, if switched on, controllers that replace evicted pods.
//!
//! ```text
//! request ─▶ route ─▶ Edge ─▶ server ─▶ State: store (objects, history) ◀─ kubelet, controller, budget
//!                                         └▶ watch: streams read the history, each with its own place in it
//! ```
//!
//! The state is one [`state::State`] behind one lock, which is never held across an await. Due timers run whenever the
//! lock is taken, so that no reader sees a pod that should be gone; a background task takes the lock when a timer is
//! due and no reader takes it.

mod binding;
mod budget;
mod controller;
mod delete;
mod deployment;
mod event;
mod forget;
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
mod volume;
mod watch;
mod workers;

pub use budget::Limit;
pub use delete::{By, Evicted};
pub use deployment::Deployment;
pub use pod::{Placement, Pod, PodSpec};
pub use watch::Interrupt;

use crate::clock::Clock;
use crate::fault::{Disconnected, Edge};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use jiff::SignedDuration;
use k8s_openapi::api::apps;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::client::ClientBuilder;
use node::Rival;
use object::Object;
use parking_lot::MutexGuard;
use route::{Call, Resource, Verb};
use state::{Shared, State};
use std::sync::Arc;
use std::time::Duration;
use store::Key;
use tower::BoxError;
use tower::util::BoxService;
use workers::Workers;

/// Body of an answer: complete, or the stream of a watch.
pub type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, Disconnected>;

/// One simulated cluster. Clones are the same cluster.
#[derive(Clone, Debug)]
pub struct Kube {
    shared: Arc<Shared>,
    edge: Edge,
    workers: Arc<Workers>,
}

/// Clients.
impl Kube {
    pub(crate) fn new(clock: Clock, edge: Edge, seed: u64) -> Self {
        Self { shared: Arc::new(Shared::new(clock, seed)), edge, workers: Arc::default() }
    }

    /// Returns a real kube client of this API server, in memory and without retries. Needs a tokio runtime.
    #[must_use]
    pub fn client(&self) -> kube::Client {
        self.client_builder().build()
    }

    /// Returns the tower service under that client, for callers that add layers of their own.
    #[must_use]
    pub fn client_builder(&self) -> ClientBuilder<BoxService<Request<kube::client::Body>, Response<Body>, BoxError>> {
        let kube = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let kube = kube.clone();
            // The call starts only when this future is polled: a planned panic belongs to the caller, and would kill
            // the client's shared worker here.
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                Ok::<_, BoxError>(kube.serve(Request::from_parts(head, body)).await?)
            }
        });
        ClientBuilder::new(BoxService::new(service), "default")
    }

    /// Serves one request. The body of the answer is a stream if the request is a watch.
    ///
    /// # Errors
    ///
    /// Returns [`Disconnected`] if the fault plan breaks the connection.
    pub async fn serve(&self, request: Request<Bytes>) -> Result<Response<Body>, Disconnected> {
        let call = Call::read(request);
        let refuse = |fault| server::refuse(&call, fault);
        let answer = || server::answer(&self.shared, &call);
        // A watch would never release its worker.
        let serve = async {
            let mut answer = if call.verb == Verb::Watch { answer() } else { self.workers.work(answer).await };
            answer.headers_mut().insert(http::header::DATE, self.date());
            answer
        };
        self.edge.pass("kube", &call.operation, &call.subject, refuse, serve).await
    }

    /// Limits the server to `workers` calls at a time, each of which takes the given time; other calls queue. Watches don't
    /// count, and faults that refuse a call or break it off take no worker's time.
    pub fn busy(&self, workers: usize, takes: Duration) {
        self.workers.set(workers, takes);
    }

    /// Forbids the client an action: `list pods`, `create pods/eviction`. Access reviews report it, and the call is refused.
    pub fn deny(&self, operation: &str) {
        self.state().denied.insert(operation.to_owned());
    }

    /// Sets how far the server's clock is ahead of the world's.
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

    /// Adds a Ready node with labels besides the usual ones.
    pub fn add_labelled_node<'a>(
        &self,
        name: &str,
        instance_id: &str,
        labels: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) {
        let mut state = self.state();
        let mut node: v1::Node = node::new(&mut state, name, instance_id).typed(Resource::Nodes);
        let labels = labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
        node.metadata.labels.get_or_insert_default().extend(labels);
        state.put(Resource::Nodes, Object::of(Resource::Nodes, &node));
    }

    /// Adds a node for an EC2 instance that is not Ready yet.
    pub fn add_unready_node(&self, name: &str, instance_id: &str) {
        let mut state = self.state();
        let now = state.clock.now();
        let mut node: v1::Node = node::new(&mut state, name, instance_id).typed(Resource::Nodes);
        node::set_ready(&mut node, false, now);
        state.put(Resource::Nodes, Object::of(Resource::Nodes, &node));
    }

    /// Returns the node as it is now.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<v1::Node> {
        self.state().store.get(Resource::Nodes, &Key::cluster(name)).map(|node| node.typed(Resource::Nodes))
    }

    /// Returns all nodes as they are now, by name.
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

    /// Removes a node, as a cloud controller does when the instance is gone; its pods are removed at once.
    pub fn remove_node(&self, name: &str) {
        self.state().remove_node(name);
    }

    /// Sets the node's Ready condition: `True`, or `Unknown` as when its kubelet is silent. Pods on a node that is not
    /// Ready are not stopped. No taint is set.
    pub fn set_ready(&self, name: &str, ready: bool) {
        let now = self.state().clock.now();
        self.update_node(name, |node| node::set_ready(node, ready, now));
    }

    /// Gives the node a new boot ID, as a reboot or a stop and start does. Its Ready condition stays as it is.
    pub fn reboot(&self, name: &str) {
        let boot = self.state().uuid();
        self.update_node(name, |node| node::set_boot_id(node, &boot));
    }

    /// Makes a controller set the taint `node.kubernetes.io/unschedulable` on each cordoned node, and remove it from each
    /// uncordoned one, as the node lifecycle controller of a real cluster does: a foreign write right after each cordon.
    pub fn taint_cordoned(&self) {
        self.state().taint_cordoned = true;
    }
}

/// Conflicting writers.
impl Kube {
    /// Makes a rival taint a node right before a client's patch of it arrives, up to this number of times on each node, so that the
    /// client's read is stale. The taints are `rival-0:NoSchedule`, `rival-1:NoSchedule` and so on.
    pub fn rival_taints(&self, times: u32) {
        self.state().rival = Rival::tainting(times);
    }
}

/// Pods and their ends.
impl Kube {
    /// Adds the builder's pod; returns its name. Increases the number of pods that its controller should have.
    pub fn add_pod(&self, pod: Pod) -> String {
        let mut state = self.state();
        state.expect_replica(&pod);
        state.create_pod(pod)
    }

    /// Returns all pods as they are now, by namespace and name.
    #[must_use]
    pub fn pods(&self) -> Vec<v1::Pod> {
        self.state().store.all(Resource::Pods).map(|pod| pod.typed(Resource::Pods)).collect()
    }

    /// Returns the pods that are bound to a node.
    #[must_use]
    pub fn pods_on(&self, node: &str) -> Vec<v1::Pod> {
        self.state().store.pods_on(node).map(|pod| pod.typed(Resource::Pods)).collect()
    }

    /// Returns one pod as it is now.
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

    /// Removes a pod at once, as a forced deletion does.
    pub fn remove_pod(&self, namespace: &str, name: &str) {
        self.state().remove_pod(&Key::new(namespace, name));
    }

    /// Makes controllers replace pods that were evicted, deleted or lost. A ReplicaSet (or any other owner) replaces a pod
    /// `after` its termination began; a StatefulSet `after` it is gone, under the same name; a DaemonSet likewise, on
    /// the same node. New pods become Ready on a node that is Ready without cordon or taint, or wait for such a node.
    pub fn replace(&self, after: Duration) {
        self.state().replace_after = Some(after);
    }

    /// Returns the accepted evictions and deletions in order, without dry runs.
    #[must_use]
    pub fn evictions(&self) -> Vec<Evicted> {
        self.state().evicted.clone()
    }

    /// Marks the namespace as terminating: nothing can be created in it, evictions included (403).
    pub fn terminate_namespace(&self, namespace: &str) {
        self.state().terminating.insert(namespace.to_owned());
    }

    /// Returns the recorded Events, by namespace and name.
    #[must_use]
    pub fn events(&self) -> Vec<v1::Event> {
        self.state().store.all(Resource::Events).map(|event| event.typed(Resource::Events)).collect()
    }
}

/// Deployments.
impl Kube {
    /// Adds a Deployment with a Ready pod on each of these nodes; returns the pods' names.
    pub fn add_deployment(&self, deployment: Deployment, nodes: &[&str]) -> Vec<String> {
        self.state().add_deployment(deployment, nodes)
    }

    /// Returns a Deployment as it is now.
    #[must_use]
    pub fn deployment(&self, namespace: &str, name: &str) -> Option<apps::v1::Deployment> {
        let key = Key::new(namespace, name);
        self.state().store.get(Resource::Deployments, &key).map(|found| found.typed(Resource::Deployments))
    }

    /// Changes the spec of a Deployment as another writer would; does nothing if there is no such Deployment.
    pub fn update_deployment(&self, namespace: &str, name: &str, change: impl FnOnce(&mut apps::v1::DeploymentSpec)) {
        let mut state = self.state();
        let Some(old) = state.store.get(Resource::Deployments, &Key::new(namespace, name)).cloned() else { return };
        let mut deployment: apps::v1::Deployment = old.typed(Resource::Deployments);
        change(deployment.spec.get_or_insert_default());
        deployment.metadata.generation = deployment.metadata.generation.map(|known| known + 1);
        state.put(Resource::Deployments, Object::of(Resource::Deployments, &deployment));
    }
}

/// Disruption budgets.
impl Kube {
    /// Adds a budget for the namespace's pods that carry all of `labels`, or changes it.
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

    /// Removes a budget.
    pub fn remove_budget(&self, namespace: &str, name: &str) {
        self.state().remove_budget(&Key::new(namespace, name));
    }

    /// Sets whether the disruption controller lags behind for this budget: evictions are then refused with `Retry-After: 10`.
    pub fn stall_budget(&self, namespace: &str, name: &str, stalled: bool) {
        self.state().stall_budget(&Key::new(namespace, name), stalled);
    }

    /// Returns the budget's current `status.disruptionsAllowed`.
    #[must_use]
    pub fn disruptions_allowed(&self, namespace: &str, name: &str) -> Option<i32> {
        self.state().disruptions_allowed(&Key::new(namespace, name))
    }
}

/// Volumes.
impl Kube {
    /// Sets how long after the last pod that uses a volume its attachment is removed, 2 s at first; with `None` it leaks.
    pub fn detach_after(&self, after: Option<Duration>) {
        self.state().detach_after = after;
    }

    /// Returns the names of the volume attachments, by name.
    #[must_use]
    pub fn attachments(&self) -> Vec<String> {
        self.state().store.all(Resource::Attachments).map(|attachment| attachment.name().to_owned()).collect()
    }

    /// Removes a volume attachment, as the controller does.
    pub fn remove_attachment(&self, name: &str) {
        self.state().remove(Resource::Attachments, &Key::cluster(name));
    }
}

/// Leases.
impl Kube {
    /// Changes a Lease as another writer would, at any resourceVersion; creates it if it does not exist.
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

    /// Removes a Lease; does nothing if there is no such Lease.
    pub fn remove_lease(&self, namespace: &str, name: &str) {
        self.state().remove(Resource::Leases, &Key::new(namespace, name));
    }

    /// Returns a namespace's Leases, by name.
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
    /// Sets whether the server's caches lag and etcd is overloaded: a list without a resourceVersion is then refused (500), as
    /// by an overloaded API server. Lists that caches may answer are answered.
    pub fn fall_behind(&self, behind: bool) {
        self.state().behind = behind;
    }

    /// Stops the server's caches, or lets them catch up: meanwhile a list that any cache may answer (resourceVersion 0) shows what
    /// there is now. All other answers are current.
    pub fn stop_caches(&self, stop: bool) {
        let mut state = self.state();
        state.cache = stop.then(|| state.store.version());
    }

    /// Forgets all history and all partly read lists: a watch from an earlier version gets 410 Gone, and so does the rest of
    /// a list. Running watches that are up to date continue.
    pub fn compact(&self) {
        self.state().store.compact();
    }

    /// Interrupts all running watches; later watches are not affected.
    pub fn interrupt_watches(&self, how: Interrupt) {
        self.state().store.interrupt(how);
    }

    /// Returns the number of running watches.
    #[must_use]
    pub fn watches(&self) -> usize {
        self.shared.watches()
    }
}
