//! The targets of target groups: asked for while somebody waits, a call for all targets of a group; and their deregistration, a call
//! for many targets of a group.

use super::target_groups::{TargetGroup, name_of};
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

/// Intervals between two looks at one group: a deregistration takes minutes.
const LOOKS: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(15));

/// Mean interval between two looks at any groups: with many groups each is looked at less often, because all callers of the account
/// share the rate.
const PACE: Duration = Duration::from_millis(500);

/// Time whose looks may be made at once after a pause: the first looks for a node with many groups.
const BURST: Duration = Duration::from_secs(10);

/// Intervals between tries of a look that fails.
const FAILED_LOOKS: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(30));

/// Interval between looks at a deregistration that somebody else has begun.
const RUNNING_LOOK: Duration = Duration::from_millis(500);

/// Time for which a deregistration is remembered: longer than its call, and than the age of a look.
const ASKED_KEPT: Duration = Duration::from_secs(30);

/// Maximum number of targets that are deregistered in one call, and the time that they wait for each other.
const MAX_DEREGISTERED: usize = 100;
const BATCH_WAIT: Duration = Duration::from_millis(200);

const DESCRIBE: Operation = Operation::new("elasticloadbalancing", "DescribeTargetHealth");
const DEREGISTER: Operation = Operation::new("elasticloadbalancing", "DeregisterTargets");

/// A target that is registered, or whose deregistration goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    port: Option<i32>,
    pub draining: bool,
}

/// What is known of the targets of a group, by their IDs: instances or addresses.
#[derive(Debug, Default)]
enum KnownTargets {
    /// Nothing yet.
    #[default]
    Nothing,
    All(HashMap<String, Vec<Target>>),
    /// We have no right to see them.
    Denied,
}

/// Targets of this ID to deregister from the group of this ARN.
type Deregistration = (Arc<str>, String, Vec<Target>);

/// The targets of all groups. All who wait for a group share the looks at it.
pub(super) struct Targets {
    looks: Arc<Looks>,
    groups: Slots<Arc<str>, watch::Sender<KnownTargets>, ()>,
    deregistrations: Option<Batcher<Deregistration, ()>>,
}

struct Looks {
    client: Client,
    gate: Gate<AwsClass>,
    facts: Facts,
    /// The earliest time of the next look.
    next: Mutex<Instant>,
    /// Denied looks, by the group's ARN: a group of another account may be denied alone.
    look_denials: Denials<Arc<str>>,
    /// Denied deregistrations, by the group's ARN.
    deregister_denials: Denials<Arc<str>>,
    /// The failure of the last deregistration, if it failed.
    failed: Mutex<Option<Category>>,
    /// Deregistrations that run or were accepted lately, by the group and the ID.
    asked: Mutex<HashMap<(Arc<str>, String), Asked>>,
}

/// A deregistration that somebody has asked for. Whoever asks may go before the answer comes.
#[derive(Clone, Copy, Debug)]
struct Asked {
    at: Instant,
    accepted: bool,
}

/// A share in the looks at one group. Dropping the last share ends them.
pub(super) struct LookShare {
    /// The group.
    pub group: TargetGroup,
    seen: watch::Receiver<KnownTargets>,
    _seat: Seat<Arc<str>, watch::Sender<KnownTargets>, ()>,
}

/// The right to the call is missing.
#[derive(Debug)]
pub(super) struct Denied;

impl Targets {
    /// The targets that `client` sees. Nothing is asked before somebody waits.
    pub(super) fn new(client: Client, tasks: Tasks, facts: Facts) -> Self {
        let gate = Gate::new(facts.clone());
        let next = Mutex::new(Instant::now());
        let looks = Looks {
            client,
            gate,
            facts,
            next,
            look_denials: Denials::default(),
            deregister_denials: Denials::default(),
            failed: Mutex::default(),
            asked: Mutex::default(),
        };
        let looks = Arc::new(looks);
        Self { looks, groups: Slots::new(tasks, TaskKind::TargetHealth), deregistrations: None }
    }

    /// Deregisters targets, too.
    #[must_use]
    pub(super) fn with_deregistration(mut self, tasks: &Tasks) -> Self {
        let looks = Arc::clone(&self.looks);
        let call = move |all| {
            let looks = Arc::clone(&looks);
            async move { looks.deregister(all).await }
        };
        self.deregistrations = Some(Batcher::start(tasks, DEREGISTER, MAX_DEREGISTERED, BATCH_WAIT, call));
        self
    }

    /// Returns a share in the looks at the group.
    pub(super) fn join(&self, group: &TargetGroup) -> LookShare {
        let (looks, arn) = (Arc::clone(&self.looks), Arc::clone(&group.arn));
        let work = |known: Arc<watch::Sender<KnownTargets>>, _stop| async move {
            looks.run(&arn, &known).await;
            // Only a denial ends it.
            known.send_replace(KnownTargets::Denied);
        };
        let seat = self.groups.join(Arc::clone(&group.arn), watch::Sender::default, work).0;
        LookShare { group: group.clone(), seen: seat.shared().subscribe(), _seat: seat }
    }

    /// Deregisters these targets of one ID from the group. Retries until AWS has accepted it, or the group is gone.
    ///
    /// # Errors
    /// Without the right to.
    pub(super) async fn deregister(&self, group: &Arc<str>, id: &str, targets: Vec<Target>) -> Result<(), Denied> {
        let Some(batcher) = &self.deregistrations else { return Ok(()) };
        let mut backoff = FAILED_LOOKS;
        loop {
            if self.looks.deregister_denials.is_recent(group) {
                return Err(Denied);
            }
            match self.looks.asked(group, id) {
                Some(Asked { accepted: true, .. }) => return Ok(()),
                Some(_) => {
                    sleep(RUNNING_LOOK).await;
                    continue;
                }
                None => {}
            }
            let asked = batcher.ask((Arc::clone(group), id.to_owned(), targets.clone())).await;
            match asked {
                Ok(()) => return Ok(()),
                // The group or the target is gone, or can't be one.
                Err(error) if matches!(error.category, Category::NotFound | Category::Invalid) => return Ok(()),
                Err(error) if error.category == Category::Denied => return Err(Denied),
                Err(_) => sleep(backoff.step()).await,
            }
        }
    }
}

impl LookShare {
    /// Returns the targets whose ID is wanted, once the group has been looked at.
    ///
    /// # Errors
    /// Without the right to see them.
    pub(super) async fn of(&mut self, wanted: impl Fn(&str) -> bool) -> Result<Vec<Target>, Denied> {
        self.looked_at().await;
        match &*self.seen.borrow_and_update() {
            KnownTargets::All(targets) => {
                Ok(targets.iter().filter(|(id, _)| wanted(id)).flat_map(|(_, targets)| targets).cloned().collect())
            }
            KnownTargets::Nothing | KnownTargets::Denied => Err(Denied),
        }
    }

    /// Waits until the group has been looked at.
    pub(super) async fn looked_at(&mut self) {
        // The sender lives as long as the share.
        let _ = self.seen.wait_for(|known| !matches!(known, KnownTargets::Nothing)).await;
    }

    /// Waits for the next look.
    pub(super) async fn changed(&mut self) {
        let _ = self.seen.changed().await;
    }
}

impl Looks {
    /// Looks at one group, until aborted, or until a look is denied.
    async fn run(&self, arn: &Arc<str>, known: &watch::Sender<KnownTargets>) {
        let (mut looks, mut failed_looks, mut failed) = (LOOKS, FAILED_LOOKS, None);
        if self.look_denials.is_recent(arn) {
            return;
        }
        loop {
            self.turn().await;
            let error = match self.look(arn).await {
                Ok(targets) => {
                    failed_looks.reset();
                    failed = None;
                    known.send_replace(KnownTargets::All(targets));
                    sleep(looks.step()).await;
                    continue;
                }
                Err(error) => error,
            };
            if error.category == Category::Denied {
                return self.denied(&self.look_denials, arn, &error);
            }
            if failed.replace(error.category) != Some(error.category) {
                self.tell(&error);
            }
            // What can't be looked at lists nobody. Else one mistyped ARN would hold every hook.
            if error.category == Category::Invalid {
                known.send_replace(KnownTargets::All(HashMap::new()));
            }
            sleep(failed_looks.step()).await;
        }
    }

    /// Waits for the turn of a look.
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
    async fn look(&self, arn: &str) -> Result<HashMap<String, Vec<Target>>, AwsError> {
        // All targets: one that is asked for by its ID alone is found only on the group's own port.
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

    /// Returns the deregistration of this ID that runs or was accepted lately.
    fn asked(&self, group: &Arc<str>, id: &str) -> Option<Asked> {
        let mut asked = self.asked.lock();
        asked.retain(|_, known| known.at.elapsed() < ASKED_KEPT);
        asked.get(&(Arc::clone(group), id.to_owned())).copied()
    }

    /// Notes that a deregistration runs, whoever waits for it. Before its batch begins, it goes with who has asked.
    fn begins(&self, (group, id, _): &Deregistration) {
        let mut asked = self.asked.lock();
        asked.insert((Arc::clone(group), id.clone()), Asked { at: Instant::now(), accepted: false });
    }

    fn answered(&self, (group, id, _): &Deregistration, answer: &Result<(), AwsError>) {
        let mut asked = self.asked.lock();
        let key = (Arc::clone(group), id.clone());
        match answer {
            Ok(()) => drop(asked.insert(key, Asked { at: Instant::now(), accepted: true })),
            Err(_) => drop(asked.remove(&key)),
        }
    }

    /// Deregisters targets, with a call for each group. Returns an answer for each, in the same order.
    async fn deregister(&self, all: Vec<Deregistration>) -> Vec<Result<(), AwsError>> {
        for begun in &all {
            self.begins(begun);
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
            // One of them is not what AWS calls a target: the others are meant.
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
        // Completions of hooks pass another gate: nothing but looks waits for this.
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
                    self.tell(error);
                }
            }
        }
        called.map(drop)
    }

    fn tell(&self, error: &AwsError) {
        self.facts.emit(&Fact::LoadBalancerFailed { category: error.category, error });
    }

    /// Remembers a denial, and tells the first of some minutes: usually the right to all groups is missing.
    fn denied(&self, denials: &Denials<Arc<str>>, arn: &Arc<str>, error: &AwsError) {
        if denials.note(Arc::clone(arn)) {
            self.tell(error);
        }
    }
}

/// Returns a described target; `None` for one that gets no traffic. A state that is missing or unknown says nothing of traffic.
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
