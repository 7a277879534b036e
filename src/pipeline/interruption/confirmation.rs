//! AWS's confirmation of a notice: whether EC2 or Auto Scaling agrees with the message. Messages have no signature, so an attacker with
//! access to the queue can forge one.

use super::group_lookup::{GroupLookup, InGroup};
use super::limits::{Admission, Verify};
use super::times::WARNING_TIME;
use crate::clients::answers::Denials;
use crate::clients::batch::Batcher;
use crate::clients::gate::{AwsClass, AwsError, CALL_TIMEOUT, Gate, Operation};
use crate::fact::Facts;
use crate::pipeline::event::{
    CapacityBlock, Detail, Identity, InstanceAction, InstanceId, Notice, NoticeKind, ScheduledChange,
};
use crate::pipeline::node::{DESCRIBE_INSTANCES, Listing, by_id, describe};
use crate::runtime::clock::Clock;
use crate::runtime::task::Tasks;
use aws_sdk_ec2::Client;
use aws_sdk_ec2::types::{Filter, Instance, InstanceInterruptionBehavior, InstanceStateName, SpotInstanceRequest};
use futures_util::future::{BoxFuture, join_all};
use jiff::Timestamp;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::mem::{Discriminant, discriminant};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Maximum number of instances that a call to EC2 names: the limit for a filter's values.
const MAX_INSTANCES: usize = 200;

/// Maximum number of spot warnings in a call, which is about all of them: this only bounds memory.
const MAX_WARNINGS: usize = 10_000;

/// The statuses of a spot request whose instance EC2 interrupts, as values of EC2's filter: a `*` stands for any end. An interruption for
/// lack of capacity that terminates has its last status from the start, two minutes before the instance ends; a stop or a hibernation is marked
/// first: <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instances-request-status-lifecycle.html>. A user's own end is no
/// interruption.
const INTERRUPTED: [&str; 5] = [
    "marked-for-*",
    "instance-terminated-no-capacity",
    "instance-terminated-by-price",
    "instance-terminated-launch-group-constraint",
    "instance-terminated-by-experiment",
];

/// Interval between turns. All unconfirmed notices are asked about again in the same turn, so that a thousand share a few calls.
const TURN: Duration = Duration::from_secs(5);

/// Maximum number of turns between two questions.
const MAX_TURNS: u32 = 6;

/// Time before the deadline for an answer in which each turn asks: AWS's APIs may show an event half a minute after its message.
const NEAR: Duration = Duration::from_mins(3);

/// Time for which a question waits for others to share its call.
const BATCH_WAIT: Duration = Duration::from_millis(50);

/// Time ahead for which ending Capacity Blocks are looked up.
const BLOCK_LOOK_AHEAD: Duration = Duration::from_hours(1);

/// Maximum difference between a message's time of a change, or of a block's end, and EC2's: an earlier time would rush the drain, a later
/// one would put it off.
const START_TOLERANCE: Duration = Duration::from_mins(5);

/// Maximum age of a spot warning relative to EC2's mark on the spot request: an older one would rush the drain.
pub(super) const SPOT_TOLERANCE: Duration = Duration::from_mins(1);

const SPOT_REQUESTS: Operation = Operation::new("ec2", "DescribeSpotInstanceRequests");

/// AWS's evidence for a notice. An instance that stops or is terminated proves every notice except a hook's; of a
/// spot warning only once its two minutes are over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Proof {
    /// The spot request shows the interruption since then; a hibernation starts at once.
    SpotRequest {
        /// AWS's time of the warning.
        at: Timestamp,
        /// Whether the instance hibernates.
        hibernates: bool,
    },
    /// The instance waits in its Auto Scaling group, or in this one if the message names it.
    WaitsInGroup {
        /// The group.
        group: Option<String>,
    },
    /// The instance stops or is terminated.
    Stops,
    /// EC2 lists a change of the instance with this start.
    ListedChange {
        /// Whether the capacity ends with it. EC2's codes differ from AWS Health's.
        hard: bool,
        /// The start.
        start: Option<Timestamp>,
    },
    /// EC2 no longer lists a change of the instance with this start.
    UnlistedChange {
        /// The start.
        start: Option<Timestamp>,
    },
    /// The instance's Capacity Block is about to end, and its instances are terminated at this time.
    EndingBlock {
        /// The end of the reservation.
        ends: Option<Timestamp>,
        /// The time, some time before the end, which differs with the instances' type.
        terminates_at: Option<Timestamp>,
    },
}

impl Proof {
    /// Returns the proof of a notice; `None` if AWS has none. With [`Verify::Always`], a notice with a hard deadline always has one: a late
    /// drain is better than a forged one.
    #[must_use]
    pub fn of(notice: &Notice, verify: Verify) -> Option<Self> {
        match &notice.detail {
            Detail::Spot { action } => {
                Some(Self::SpotRequest { at: notice.at(), hibernates: *action == InstanceAction::Hibernate })
            }
            Detail::AsgTerminate(hook) => Some(Self::WaitsInGroup { group: Some(hook.group.clone()) }),
            Detail::AsgTermination { .. } => Some(Self::WaitsInGroup { group: None }),
            Detail::StateChange { .. } => Some(Self::Stops),
            Detail::ScheduledChange(ScheduledChange { start, is_issue: false, withdrawn: true, .. }) => {
                Some(Self::UnlistedChange { start: *start })
            }
            Detail::TakenBack(NoticeKind::ScheduledChange) => Some(Self::UnlistedChange { start: None }),
            Detail::ScheduledChange(ScheduledChange { hard, start, is_issue: false, .. }) => {
                Some(Self::ListedChange { hard: *hard, start: *start })
            }
            // No API shows the interruption of another reservation in advance.
            Detail::CapacityReservation { terminates_at } => match notice.identity {
                Identity::Block { ends, .. } => Some(Self::EndingBlock { ends, terminates_at: *terminates_at }),
                _ => (verify == Verify::Always).then_some(Self::Stops),
            },
            Detail::ScheduledChange(_)
            | Detail::Rebalance
            | Detail::Condition(_)
            | Detail::StatusCheck(_)
            | Detail::TakenBack(_)
            | Detail::AsgLaunch(_) => None,
        }
    }

    /// Returns the proof that a change with the known `start` is called off: a forged cancellation could name any other start, which EC2
    /// doesn't list.
    #[must_use]
    pub fn of_known(self, start: Option<Timestamp>) -> Self {
        match self {
            Self::UnlistedChange { start: named } => Self::UnlistedChange { start: start.or(named) },
            other => other,
        }
    }

    /// Returns how easily AWS confirms this, compared with other notices of the kind about the instance: it confirms a spot warning and all
    /// that claim a later time, but a hibernation only for an instance that hibernates.
    #[must_use]
    pub const fn ease(&self) -> Timestamp {
        match self {
            Self::SpotRequest { at, hibernates: false } => *at,
            _ => Timestamp::MIN,
        }
    }

    /// Returns the expected evidence, in words.
    #[must_use]
    pub const fn expected(&self) -> &'static str {
        match self {
            Self::SpotRequest { .. } => "its spot request is marked for interruption",
            Self::WaitsInGroup { .. } => "its Auto Scaling group terminates it",
            Self::Stops => "EC2 stops or terminates it",
            Self::ListedChange { .. } => "EC2 lists the change",
            Self::UnlistedChange { .. } => "EC2 no longer lists the change",
            Self::EndingBlock { .. } => "its Capacity Block is about to end",
        }
    }
}

impl Admission {
    /// Whether AWS must confirm the notice before anything is done about it.
    #[must_use]
    pub fn is_verified(&self, notice: &Notice) -> bool {
        self.verify == Verify::Always && Proof::of(notice, self.verify).is_some()
    }
}

type Question = (InstanceId, Proof);

/// Asks AWS about many notices at once.
#[derive(Debug)]
pub struct Confirmations {
    /// Questions about spot requests, and all other EC2 questions: spot warnings have little time and wait for no other answer.
    spot: Batcher<Question, bool>,
    others: Batcher<Question, bool>,
    clock: Clock,
    groups: GroupLookup,
    /// The proofs for which a right is missing.
    denials: Denials<Discriminant<Proof>>,
    /// The start of the first turn.
    begun: Instant,
}

impl Confirmations {
    /// Asks EC2 with this client, and Auto Scaling by `groups`.
    #[must_use]
    pub fn new(ec2: Client, groups: GroupLookup, clock: Clock, tasks: &Tasks, facts: &Facts) -> Self {
        let listing = Listing::new(ec2.clone(), facts.clone());
        let asked = Ec2Queries { ec2, gate: Gate::new(facts.clone()), listing, clock };
        let marks = asked.clone();
        let spot = Batcher::start(tasks, SPOT_REQUESTS, MAX_WARNINGS, BATCH_WAIT, move |questions| {
            marks.clone().are_marked(questions)
        });
        let others = Batcher::start(tasks, DESCRIBE_INSTANCES, MAX_INSTANCES, BATCH_WAIT, move |questions| {
            asked.clone().answer(questions)
        });
        Self { spot, others, clock, groups, denials: Denials::default(), begun: Instant::now() }
    }

    /// Notes that the right to see this proof is missing. Returns `true` if that is new: a storm reports it once.
    pub fn is_first_denial(&self, proof: &Proof) -> bool {
        let right = discriminant(proof);
        let is_known = self.denials.is_recent(&right);
        self.denials.note(right);
        !is_known
    }

    /// Returns whether AWS shows the proof now.
    ///
    /// # Errors
    /// AWS did not answer. The caller retries.
    pub async fn shows(&self, instance: &InstanceId, proof: &Proof) -> Result<bool, AwsError> {
        let stops = async || self.others.ask((instance.clone(), Proof::Stops)).await;
        match proof {
            Proof::WaitsInGroup { group } => {
                let is_named = |found: &InGroup| group.as_ref().is_none_or(|group| found.group == *group);
                Ok(self.groups.find(instance).await?.is_some_and(|found| found.leaves() && is_named(&found)))
            }
            // During the two minutes of a warning its request shows more than the instance, and one call shows all marks.
            Proof::SpotRequest { at, hibernates } => {
                let marked = self.spot.ask((instance.clone(), proof.clone())).await;
                let is_over = at.saturating_add(WARNING_TIME).is_ok_and(|ends| ends <= self.clock.now());
                match marked {
                    Ok(false) if *hibernates || is_over => stops().await,
                    Err(error) if *hibernates || is_over => {
                        // Only a yes shows more than the failure.
                        stops().await.ok().filter(|stops| *stops).ok_or(error)
                    }
                    marked => marked,
                }
            }
            _ => self.others.ask((instance.clone(), proof.clone())).await,
        }
    }

    /// Waits for the turn of the next question, after this number of `questions`: twice as long each time, up to half a minute. Waits for
    /// one turn if the deadline for an answer, `by`, is near.
    pub async fn next_turn(&self, questions: u32, by: Instant) {
        let is_near = by.saturating_duration_since(Instant::now()) < NEAR;
        let turns = if is_near { 1 } else { (1_u32 << (questions - 1).min(3)).min(MAX_TURNS) };
        // A century has fewer turns.
        let passed = u32::try_from(self.begun.elapsed().as_secs() / TURN.as_secs()).unwrap_or(u32::MAX - MAX_TURNS);
        sleep_until(self.begun + TURN * (passed + turns)).await;
    }
}

/// Answers questions by calls to EC2.
#[derive(Clone)]
struct Ec2Queries {
    ec2: Client,
    gate: Gate<AwsClass>,
    listing: Listing,
    clock: Clock,
}

/// The questions that AWS confirms.
type ProvenQuestions = Result<HashSet<Question>, AwsError>;

impl Ec2Queries {
    /// Returns whether each warning's spot request is marked, in the same order.
    async fn are_marked(self, warnings: Vec<Question>) -> Vec<Result<bool, AwsError>> {
        let marked = self.marked_requests(&warnings).await;
        let answer = |warning| marked.as_ref().map(|marked| marked.contains(warning)).map_err(AwsError::clone);
        warnings.iter().map(answer).collect()
    }

    /// Returns an answer to each other question, in the same order.
    async fn answer(self, questions: Vec<Question>) -> Vec<Result<bool, AwsError>> {
        let of = |wanted: fn(&Proof) -> bool| -> Vec<Question> {
            questions.iter().filter(|(_, proof)| wanted(proof)).cloned().collect()
        };
        let changes = of(|proof| matches!(proof, Proof::ListedChange { .. } | Proof::UnlistedChange { .. }));
        let blocks = of(|proof| matches!(proof, Proof::EndingBlock { .. }));
        // An instance that stops is proof as well.
        let stopping = of(|proof| !matches!(proof, Proof::UnlistedChange { .. }));
        let asked: [(&[Question], BoxFuture<'_, ProvenQuestions>); 3] = [
            (&changes, Box::pin(self.listed_changes(&changes))),
            (&blocks, Box::pin(self.in_ending_blocks(&blocks))),
            (&stopping, Box::pin(self.stopping(&stopping))),
        ];
        let asked = asked.into_iter().filter(|(questions, _)| !questions.is_empty());
        let answers = join_all(asked.map(async |(questions, answer)| (questions, answer.await))).await;
        let answer = |question: &Question| {
            let is_proven = |proven: &HashSet<Question>| proven.contains(question);
            if answers.iter().any(|(_, answer)| answer.as_ref().is_ok_and(is_proven)) {
                return Ok(true);
            }
            // A failed call might have had the proof.
            let mut asked = answers.iter().filter(|(questions, _)| questions.contains(question));
            asked.find_map(|(_, answer)| answer.as_ref().err().cloned()).map_or(Ok(false), Err)
        };
        questions.iter().map(answer).collect()
    }

    /// Spot instances that are about to end, by the status of their requests. One call shows those of the account in its region: EC2 deletes
    /// the requests of terminated instances after four hours.
    async fn marked_requests(&self, questions: &[Question]) -> ProvenQuestions {
        let mut by_instance: HashMap<&str, Vec<&Question>> = HashMap::new();
        for question in questions {
            by_instance.entry(question.0.as_str()).or_default().push(question);
        }
        let mut proven = HashSet::new();
        let mut page = None;
        let is_marked =
            Filter::builder().name("status-code").set_values(Some(INTERRUPTED.map(str::to_owned).to_vec())).build();
        loop {
            let request = self.ec2.describe_spot_instance_requests().filters(is_marked.clone());
            let request = request.set_next_token(page.take());
            let (class, by) = (AwsClass::Describe, Instant::now() + CALL_TIMEOUT);
            let answer = self.gate.aws(SPOT_REQUESTS, &subject(questions), class, by, || request.send()).await?;
            for request in answer.spot_instance_requests() {
                let asked = request.instance_id().and_then(|id| by_instance.get(id)).into_iter().flatten();
                proven
                    .extend(asked.filter(|(_, proof)| shows(request, proof)).map(|question| Question::clone(question)));
            }
            page = answer.next_token.filter(|token| !token.is_empty());
            if page.is_none() {
                return Ok(proven);
            }
        }
    }

    /// Instances that EC2 stops or terminates.
    async fn stopping(&self, questions: &[Question]) -> ProvenQuestions {
        let found = self.instances(questions).await?;
        let is_stopping = |instance: &&Instance| {
            let state = instance.state().and_then(|state| state.name());
            state.is_some_and(|state| !matches!(state, InstanceStateName::Pending | InstanceStateName::Running))
        };
        let stopping = found.iter().filter(is_stopping);
        Ok(stopping.flat_map(|instance| about(questions, instance.instance_id())).collect())
    }

    /// Instances for which EC2 lists the change, or no longer does.
    async fn listed_changes(&self, questions: &[Question]) -> ProvenQuestions {
        let now = self.clock.now();
        let listed = self.listing.changes(now).await?;
        let lists = |instance: &InstanceId, hard: bool, start: Option<Timestamp>| {
            listed.iter().any(|notice| match &notice.detail {
                Detail::ScheduledChange(change) => {
                    let is_as_hard = change.hard || !hard;
                    notice.instance == *instance && !change.withdrawn && is_as_hard && are_near(start, change.start)
                }
                _ => false,
            })
        };
        let is_proven = |(instance, proof): &&Question| match proof {
            // A change without a start is worked on now.
            Proof::ListedChange { hard, start } => lists(instance, *hard, start.or(Some(now))),
            Proof::UnlistedChange { start } => !lists(instance, false, *start),
            _ => false,
        };
        Ok(questions.iter().filter(is_proven).cloned().collect())
    }

    /// Instances in Capacity Blocks that end at the message's time.
    async fn in_ending_blocks(&self, questions: &[Question]) -> ProvenQuestions {
        let found = self.instances(questions).await?;
        let now = self.clock.now();
        let blocks = self.listing.ending_blocks(now, now.saturating_add(BLOCK_LOOK_AHEAD).unwrap_or(now)).await?;
        let ending = found.iter().filter_map(|instance| {
            let reservation = instance.capacity_reservation_id()?;
            let block = blocks.iter().find(|block| block.reservation == reservation)?;
            Some((instance.instance_id()?, block))
        });
        let is_then = |claimed: &Proof, listed: &CapacityBlock| match claimed {
            Proof::EndingBlock { ends: Some(ends), terminates_at: Some(at) } => {
                let is_in_time = *at > listed.terminates_at || are_near(Some(*at), Some(listed.terminates_at));
                are_near(Some(*ends), listed.ends) && is_in_time
            }
            _ => false,
        };
        let of_block = |(id, block)| about(questions, Some(id)).filter(move |(_, proof)| is_then(proof, block));
        let proven = ending.flat_map(of_block);
        Ok(proven.collect())
    }

    async fn instances(&self, questions: &[Question]) -> Result<Vec<Instance>, AwsError> {
        describe(&self.ec2, &self.gate, &by_id(ids(questions)), &subject(questions)).await
    }
}

/// Whether the status of a spot request confirms the warning.
fn shows(request: &SpotInstanceRequest, proof: &Proof) -> bool {
    let Proof::SpotRequest { at, hibernates } = proof else { return false };
    let (code, since) = request.status().map_or((None, None), |status| (status.code(), status.update_time()));
    let code = code.unwrap_or_default();
    let does =
        !hibernates || request.instance_interruption_behavior() == Some(&InstanceInterruptionBehavior::Hibernate);
    let is_new =
        since.is_none_or(|since| at.saturating_add(SPOT_TOLERANCE).is_ok_and(|at| at.as_second() >= since.secs()));
    let is_code = |status: &&str| status.strip_suffix('*').map_or(code == *status, |start| code.starts_with(start));
    INTERRUPTED.iter().any(is_code) && does && is_new
}

/// Whether a message's time, if it names one, is near EC2's.
fn are_near(named: Option<Timestamp>, listed: Option<Timestamp>) -> bool {
    named.zip(listed).is_none_or(|(named, listed)| named.duration_since(listed).unsigned_abs() <= START_TOLERANCE)
}

/// Names the instances in errors.
fn subject(questions: &[Question]) -> String {
    match questions {
        [(instance, _)] => instance.to_string(),
        many => format!("{} instances", many.len()),
    }
}

/// Returns the questions about the instance of this ID.
fn about<'a>(questions: &'a [Question], instance: Option<&'a str>) -> impl Iterator<Item = Question> + 'a {
    questions.iter().filter(move |(asked, _)| Some(asked.as_str()) == instance).cloned()
}

/// Returns the IDs of the instances, each once.
fn ids(questions: &[Question]) -> Vec<String> {
    let ids: BTreeSet<&InstanceId> = questions.iter().map(|(instance, _)| instance).collect();
    ids.into_iter().map(ToString::to_string).collect()
}
