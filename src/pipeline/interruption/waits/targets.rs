//! The targets of target groups: polled while an interruption waits, with one call for all targets of a group; and their deregistration,
//! with one call for many targets of a group.

use super::target_group::{TargetGroup, name_of};
use crate::clients::answers::Denials;
use crate::clients::batch::Batcher;
use crate::clients::gate::{AwsClass, AwsError, Backoff, CALL_TIMEOUT, Category, Gate, Operation};
use crate::fact::{Fact, Facts, TaskKind};
use crate::pipeline::interruption::{Seat, Slots};
use crate::runtime::task::Tasks;
use aws_sdk_elasticloadbalancingv2::Client;
use aws_sdk_elasticloadbalancingv2::types::{TargetDescription, TargetHealthDescription, TargetHealthStateEnum};
use futures_util::future::join_all;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

/// Intervals between two polls of one group: a deregistration takes minutes.
const POLLS: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(15));

/// Mean interval between two polls of any groups: with many groups each is polled less often, because all callers of the account share the
/// rate limit.
const PACE: Duration = Duration::from_millis(500);

/// Time whose polls may be made at once after a pause: the first polls for a node with many groups.
const BURST: Duration = Duration::from_secs(10);

/// Intervals between failed calls.
const RETRIES: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(30));

/// Interval between checks of a deregistration that another interruption has started.
const RUNNING_CHECK: Duration = Duration::from_millis(500);

/// Time for which a deregistration is remembered: longer than its call, and than the age of a poll's answer.
const REQUEST_KEPT: Duration = Duration::from_secs(30);

/// Maximum number of targets that are deregistered in one call, and the time for which they wait for each other.
const MAX_DEREGISTERED: usize = 100;
const BATCH_WAIT: Duration = Duration::from_millis(200);

const DESCRIBE: Operation = Operation::new("elasticloadbalancing", "DescribeTargetHealth");
const DEREGISTER: Operation = Operation::new("elasticloadbalancing", "DeregisterTargets");

/// A target that is registered, or that is being deregistered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    port: Option<i32>,
    pub draining: bool,
}

/// The known targets of a group, by ID: instances or addresses.
#[derive(Debug, Default)]
enum KnownTargets {
    /// Nothing yet.
    #[default]
    Nothing,
    All(HashMap<String, Vec<Target>>),
    /// The permission to read them is missing.
    Denied,
}

/// Targets of this ID to deregister from the group of this ARN.
type Deregistration = (Arc<str>, String, Vec<Target>);

/// The targets of all groups. All interruptions that wait for a group share its polls.
pub(super) struct Targets {
    polls: Arc<Polls>,
    groups: Slots<Arc<str>, watch::Sender<KnownTargets>, ()>,
    deregistrations: Option<Batcher<Deregistration, ()>>,
}

struct Polls {
    client: Client,
    gate: Gate<AwsClass>,
    facts: Facts,
    /// The earliest time of the next poll.
    next: Mutex<Instant>,
    /// Denied polls, by the group's ARN: a group of another account may be denied alone.
    poll_denials: Denials<Arc<str>>,
    /// Denied deregistrations, by the group's ARN.
    deregister_denials: Denials<Arc<str>>,
    /// The failure of the last deregistration, if it failed.
    failed: Mutex<Option<Category>>,
    /// Deregistrations that run or were recently accepted, by the group and the ID.
    requests: Mutex<HashMap<(Arc<str>, String), DeregistrationRequest>>,
}

/// A deregistration that an interruption has requested. The interruption may end before the answer comes.
#[derive(Clone, Copy, Debug)]
struct DeregistrationRequest {
    at: Instant,
    accepted: bool,
}

/// A share in the polls of one group. Dropping the last share ends them.
pub(super) struct PollShare {
    /// The group.
    pub group: TargetGroup,
    seen: watch::Receiver<KnownTargets>,
    _seat: Seat<Arc<str>, watch::Sender<KnownTargets>, ()>,
}

/// The permission for the call is missing.
#[derive(Debug)]
pub(super) struct MissingPermission;

impl Targets {
    /// The targets that `client` can read. Polls start with the first wait.
    pub(super) fn new(client: Client, tasks: Tasks, facts: Facts) -> Self {
        let gate = Gate::new(facts.clone());
        let next = Mutex::new(Instant::now());
        let polls = Polls {
            client,
            gate,
            facts,
            next,
            poll_denials: Denials::default(),
            deregister_denials: Denials::default(),
            failed: Mutex::default(),
            requests: Mutex::default(),
        };
        let polls = Arc::new(polls);
        Self { polls, groups: Slots::new(tasks, TaskKind::TargetHealth), deregistrations: None }
    }

    /// Also deregisters targets.
    #[must_use]
    pub(super) fn with_deregistration(mut self, tasks: &Tasks) -> Self {
        let polls = Arc::clone(&self.polls);
        let call = move |all| {
            let polls = Arc::clone(&polls);
            async move { polls.deregister(all).await }
        };
        self.deregistrations = Some(Batcher::start(tasks, DEREGISTER, MAX_DEREGISTERED, BATCH_WAIT, call));
        self
    }

    /// Returns a share in the polls of the group.
    pub(super) fn join(&self, group: &TargetGroup) -> PollShare {
        let (polls, arn) = (Arc::clone(&self.polls), Arc::clone(&group.arn));
        let work = |known: Arc<watch::Sender<KnownTargets>>, _stop| async move {
            polls.run(&arn, &known).await;
            // Only a denial ends it.
            known.send_replace(KnownTargets::Denied);
        };
        let seat = self.groups.join(Arc::clone(&group.arn), watch::Sender::default, work).0;
        PollShare { group: group.clone(), seen: seat.shared().subscribe(), _seat: seat }
    }

    /// Deregisters these targets of one ID from the group. Retries until AWS has accepted it, or the group is gone.
    ///
    /// # Errors
    /// The permission is missing.
    pub(super) async fn deregister(
        &self,
        group: &Arc<str>,
        id: &str,
        targets: Vec<Target>,
    ) -> Result<(), MissingPermission> {
        let Some(batcher) = &self.deregistrations else { return Ok(()) };
        let mut backoff = RETRIES;
        loop {
            if self.polls.deregister_denials.is_recent(group) {
                return Err(MissingPermission);
            }
            match self.polls.recent_request(group, id) {
                Some(DeregistrationRequest { accepted: true, .. }) => return Ok(()),
                Some(_) => {
                    sleep(RUNNING_CHECK).await;
                    continue;
                }
                None => {}
            }
            match batcher.ask((Arc::clone(group), id.to_owned(), targets.clone())).await {
                Ok(()) => return Ok(()),
                // The group or the target is gone, or can't be one.
                Err(error) if matches!(error.category, Category::NotFound | Category::Invalid) => return Ok(()),
                Err(error) if error.category == Category::Denied => return Err(MissingPermission),
                Err(_) => sleep(backoff.step()).await,
            }
        }
    }
}

impl PollShare {
    /// Returns the targets whose ID is wanted, once the group has been polled.
    ///
    /// # Errors
    /// The permission to read them is missing.
    pub(super) async fn of(&mut self, wanted: impl Fn(&str) -> bool) -> Result<Vec<Target>, MissingPermission> {
        self.polled().await;
        match &*self.seen.borrow_and_update() {
            KnownTargets::All(targets) => {
                Ok(targets.iter().filter(|(id, _)| wanted(id)).flat_map(|(_, targets)| targets).cloned().collect())
            }
            KnownTargets::Nothing | KnownTargets::Denied => Err(MissingPermission),
        }
    }

    /// Waits until the group has been polled.
    pub(super) async fn polled(&mut self) {
        // The sender lives as long as the share.
        let _ = self.seen.wait_for(|known| !matches!(known, KnownTargets::Nothing)).await;
    }

    /// Waits for the next poll.
    pub(super) async fn changed(&mut self) {
        let _ = self.seen.changed().await;
    }
}

impl Polls {
    /// Polls one group, until aborted, or until a poll is denied.
    async fn run(&self, arn: &Arc<str>, known: &watch::Sender<KnownTargets>) {
        let (mut polls, mut retries, mut failed) = (POLLS, RETRIES, None);
        if self.poll_denials.is_recent(arn) {
            return;
        }
        loop {
            self.turn().await;
            let error = match self.poll(arn).await {
                Ok(targets) => {
                    retries.reset();
                    failed = None;
                    known.send_replace(KnownTargets::All(targets));
                    sleep(polls.step()).await;
                    continue;
                }
                Err(error) => error,
            };
            if error.category == Category::Denied {
                return self.denied(&self.poll_denials, arn, &error);
            }
            if failed.replace(error.category) != Some(error.category) {
                self.report(&error);
            }
            // An invalid group has no targets. Otherwise one mistyped ARN would hold every hook.
            if error.category == Category::Invalid {
                known.send_replace(KnownTargets::All(HashMap::new()));
            }
            sleep(retries.step()).await;
        }
    }

    /// Waits for the turn of a poll.
    async fn turn(&self) {
        let at = {
            let mut next = self.next.lock();
            let now = Instant::now();
            let at = now.checked_sub(BURST).map_or(*next, |earliest| earliest.max(*next));
            *next = at + PACE;
            at
        };
        sleep_until(at).await;
    }

    /// Returns the targets of a group. A group that is gone has none.
    async fn poll(&self, arn: &str) -> Result<HashMap<String, Vec<Target>>, AwsError> {
        // All targets: a query by ID alone finds a target only on the group's own port.
        let request = self.client.describe_target_health().target_group_arn(arn);
        let by = Instant::now() + CALL_TIMEOUT;
        let answer = self.gate.aws(DESCRIBE, &subject(arn), AwsClass::Describe, by, || request.send()).await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) if error.category == Category::NotFound => return Ok(HashMap::new()),
            Err(error) => return Err(error),
        };
        let mut targets: HashMap<_, Vec<_>> = HashMap::new();
        for described in answer.target_health_descriptions.unwrap_or_default() {
            if let Some((id, target)) = target(described) {
                targets.entry(id).or_default().push(target);
            }
        }
        Ok(targets)
    }

    /// Returns the deregistration of this ID that runs or was recently accepted.
    fn recent_request(&self, group: &Arc<str>, id: &str) -> Option<DeregistrationRequest> {
        let mut requests = self.requests.lock();
        requests.retain(|_, known| known.at.elapsed() < REQUEST_KEPT);
        requests.get(&(Arc::clone(group), id.to_owned())).copied()
    }

    /// Notes that a deregistration runs. From now on it outlives the interruption that requested it.
    fn note_started(&self, (group, id, _): &Deregistration) {
        let mut requests = self.requests.lock();
        requests.insert((Arc::clone(group), id.clone()), DeregistrationRequest { at: Instant::now(), accepted: false });
    }

    fn answered(&self, (group, id, _): &Deregistration, answer: &Result<(), AwsError>) {
        let mut requests = self.requests.lock();
        let key = (Arc::clone(group), id.clone());
        match answer {
            Ok(()) => drop(requests.insert(key, DeregistrationRequest { at: Instant::now(), accepted: true })),
            Err(_) => drop(requests.remove(&key)),
        }
    }

    /// Deregisters targets, with a call for each group. Returns an answer for each, in the same order.
    async fn deregister(&self, all: Vec<Deregistration>) -> Vec<Result<(), AwsError>> {
        for begun in &all {
            self.note_started(begun);
        }
        let mut groups: BTreeMap<&Arc<str>, Vec<usize>> = BTreeMap::new();
        for (n, (arn, ..)) in all.iter().enumerate() {
            groups.entry(arn).or_default().push(n);
        }
        let calls = groups.into_iter().map(async |(arn, members)| {
            let together = self.deregister_from(arn, members.iter().map(|n| &all[*n])).await;
            let is_refused = together.as_ref().is_err_and(|error| error.category == Category::Invalid);
            if !is_refused || members.len() == 1 {
                return members.into_iter().map(|n| (n, together.clone())).collect();
            }
            // One of them is an invalid target. The others are tried alone.
            let alone = members.into_iter().map(async |n| (n, self.deregister_from(arn, [&all[n]]).await));
            join_all(alone).await
        });
        let mut answers: Vec<_> = join_all(calls).await.into_iter().flatten().collect();
        answers.sort_unstable_by_key(|(n, _)| *n);
        all.iter().zip(&answers).for_each(|(asked, (_, answer))| self.answered(asked, answer));
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    async fn deregister_from(
        &self,
        arn: &Arc<str>,
        members: impl IntoIterator<Item = &Deregistration>,
    ) -> Result<(), AwsError> {
        let described =
            |id: &String, target: &Target| TargetDescription::builder().id(id).set_port(target.port).build();
        let targets = members.into_iter().flat_map(|(_, id, targets)| targets.iter().map(|it| described(id, it)));
        let targets: Vec<_> = targets.collect();
        let (by, count) = (Instant::now() + CALL_TIMEOUT, targets.len());
        let request = self.client.deregister_targets().target_group_arn(&**arn).set_targets(Some(targets));
        // Completions of hooks pass another gate: nothing but polls waits for this.
        let class = AwsClass::Complete;
        let called = self.gate.aws(DEREGISTER, &subject(arn), class, by, || request.send()).await;
        match &called {
            Ok(_) => {
                self.failed.lock().take();
                self.facts.emit(&Fact::TargetsDeregistered { group: name_of(arn), targets: count });
            }
            Err(error) if error.category == Category::Denied => {
                self.denied(&self.deregister_denials, arn, error);
            }
            Err(error) => {
                // A storm retries many batches.
                let last = self.failed.lock().replace(error.category);
                if last != Some(error.category) {
                    self.report(error);
                }
            }
        }
        called.map(drop)
    }

    fn report(&self, error: &AwsError) {
        self.facts.emit(&Fact::LoadBalancerFailed { category: error.category, error });
    }

    /// Remembers a denial, and reports the first of some minutes: usually the permission for all groups is missing.
    fn denied(&self, denials: &Denials<Arc<str>>, arn: &Arc<str>, error: &AwsError) {
        if denials.note(Arc::clone(arn)) {
            self.report(error);
        }
    }
}

/// Returns a described target; `None` for one that gets no traffic. A target with a missing or unknown state may get traffic.
fn target(described: TargetHealthDescription) -> Option<(String, Target)> {
    let state = described.target_health.and_then(|health| health.state);
    if state == Some(TargetHealthStateEnum::Unused) {
        return None;
    }
    let target = described.target?;
    let draining = matches!(state, Some(TargetHealthStateEnum::Draining | TargetHealthStateEnum::UnhealthyDraining));
    Some((target.id?, Target { port: target.port, draining }))
}

fn subject(arn: &str) -> String {
    format!("target group {}", name_of(arn))
}
