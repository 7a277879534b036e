//! The classes of calls, in order of precedence, and what each gate allows.

use std::time::Duration;
use tokio::time::Instant;

/// The classes of the calls of one gate: a closed set, in order of precedence.
pub trait CallClass: Copy + std::fmt::Debug + Send + Sync + 'static {
    /// Number of classes.
    const COUNT: usize;

    /// Bounds of the number of calls in flight.
    const LIMITS: Limits;

    /// Number of privileged classes, counted from the first. They have a reserve of places beyond the limit.
    const PRIVILEGED: usize = 0;

    /// Whether a throttled call holds its place while it waits: right if another call would only be throttled in its stead.
    const HOLDS_PLACE_WHILE_THROTTLED: bool = false;

    /// Maximum wait of a throttled call, if the server names no time.
    const MAX_BACKOFF: Duration = Duration::from_secs(5);

    /// Returns the class's place in the order of precedence, from 0.
    fn rank(self) -> usize;

    /// Returns the class that this one yields to: none of its calls begins while a call of that class waits or is in flight, for
    /// some seconds at most.
    fn yields_to(self) -> Option<Self> {
        None
    }
}

/// Bounds of the number of calls in flight.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Limit at the start.
    pub first: u16,
    /// Minimum, however overloaded the server is.
    pub least: u16,
    /// Maximum, however well the server answers.
    pub most: u16,
}

/// The purpose of a call to the API server, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Deletions, and evictions with less than 15 s left.
    Urgent,
    /// Patches that cordon or move a deadline: in a storm they come before all evictions, or evicted pods land on the next victim.
    Cordon,
    /// Lists and reads; patches that write notes or remove marks.
    List,
    /// Evictions, by deadline.
    Evict,
    /// Events, conditions, what is left of Nodes and checks: no drain waits for them.
    Background,
}

impl Class {
    /// Time left below which an eviction is urgent.
    const URGENT: Duration = Duration::from_secs(15);

    /// Returns the class of an eviction with this deadline.
    #[must_use]
    pub fn of_eviction(deadline: Instant) -> Self {
        if deadline.saturating_duration_since(Instant::now()) < Self::URGENT { Self::Urgent } else { Self::Evict }
    }
}

impl CallClass for Class {
    const COUNT: usize = 5;
    /// The first limit is what one API server with default priority and fairness takes without queueing.
    const LIMITS: Limits = Limits { first: 64, least: 4, most: 512 };
    /// `Urgent` and `Cordon`.
    const PRIVILEGED: usize = 2;

    fn rank(self) -> usize {
        self as usize
    }

    /// Precedence alone would begin an eviction next to cordons in flight whenever there is room.
    fn yields_to(self) -> Option<Self> {
        (self == Self::Evict).then_some(Self::Cordon)
    }
}

/// The purpose of a call to AWS, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AwsClass {
    /// Reads. Of a hook's timeouts: one call for each hook in some minutes. All drains of the hook wait for it, and without it they send
    /// more heartbeats than they need.
    Describe,
    /// Completions: each ends the heartbeats of its hook. Deregistrations from load balancers, which have a gate of their own.
    Complete,
    /// Heartbeats, by the time at which the hook expires.
    Heartbeat,
    /// Questions about groups, and wishes for replacements: the drain comes without them, too.
    Replace,
}

impl CallClass for AwsClass {
    const COUNT: usize = 4;
    /// All callers of the AWS account share Auto Scaling's rate, which AWS does not publish.
    const LIMITS: Limits = Limits { first: 16, least: 1, most: 64 };
    /// The rate is the account's: another call would be throttled as well.
    const HOLDS_PLACE_WHILE_THROTTLED: bool = true;
    /// The last heartbeat before a hook expires is sent 3 s before, and a throttled call may hold the only place.
    const MAX_BACKOFF: Duration = Duration::from_secs(2);

    fn rank(self) -> usize {
        self as usize
    }
}
