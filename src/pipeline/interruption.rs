//! One notice being acted on.
//!
//! ```text
//! steps      what to do next: one pure sequence    work        executes the steps, owns the hook
//! decisions  one question each, for `steps`        completion  a hook: its heartbeat, its completion
//! policy     what the user decided                 heartbeat   keeps a hook alive
//! times      deadlines, hooks, beats: arithmetic   hook        calls to Auto Scaling
//! replaceable  whether a group can replace first  groups  calls about groups
//! waits      before evictions and completion    step        the vocabulary of the steps
//! group_lookup  where instances are in their groups
//! admission    within the maximum, or confirmed   draining  the nodes that are drained now
//! confirmation  AWS's word on a notice          waves       who has a place among the nodes of a label's value
//! shifts     the zones from which traffic is shifted away      link     between an interruption and its messages
//! node_search  the Node of an instance            late        whether a notice comes too late
//! node_work    the steps on a Node                launch      the end of a launch
//! ownership    whose the instance is              planning    keeps a change on its Node until it is near
//! settling     when a burst of cordons is over    out_of_service  the taint of an instance that is gone
//! hints        the nodes that are cordoned because they may go
//! shared_work  one drain for all notices of a Node
//! ```
//!
//! The interruption owns its hook and the hook's heartbeat. Its only end consumes both and waits until no beat can go out any more;
//! dropped by a panic or a cancelled future, it takes the heartbeat with it. So a heartbeat can't outlive its interruption.

mod admission;
mod completion;
mod confirmation;
mod decisions;
mod draining;
mod group_lookup;
mod groups;
mod heartbeat;
mod hints;
mod hook;
mod late;
mod launch;
mod link;
mod node_search;
mod node_work;
mod out_of_service;
mod ownership;
mod planning;
mod policy;
mod replaceable;
mod settling;
mod shared_work;
mod shifts;
mod step;
mod steps;
mod times;
mod waits;
mod waves;
mod work;

pub use confirmation::{Confirmations, Proof};
pub use decisions::{comes_back, ended_marks};
pub use draining::Draining;
pub use group_lookup::GroupLookup;
pub use groups::{Groups, read as read_group};
pub use hints::Hints;
pub use hook::{Completion, HookSearch, Hooks};
pub use link::MessageLink;
pub use policy::{
    Action, Actions, Admission, AtMost, ForLoadBalancers, Heartbeats, Holds, HookSource, OnFailed, OnUncordon, PerKind,
    Policy, ShiftedResources, Verify, WaitPolicy, Wave,
};
pub use replaceable::{Group, replaceable};
pub use settling::{MAX_SETTLE, Settling};
pub use shared_work::{Seat, Slots};
pub use shifts::{Shifts, shifts_of};
pub use step::{Finding, Present, Step, Target, Waits};
pub use steps::Sequence;
pub use times::{DEFAULT_DRAIN_TIMEOUT, HookRoom, HookTimes, MAX_MARGIN, WARNING_TIME, due_beat};
use waits::WaitLog;
pub use waits::{Attachments, LoadBalancers, MIN_DRAIN, Source, TargetGroup, TargetGroups, is_too_late, name_of};
pub use waves::Waves;
pub use work::Interrupter;

use crate::fact::{Fact, NoticeRef};
use crate::pipeline::drain::PodAddresses;
use crate::pipeline::event::Notice;
use crate::pipeline::node::Node;
use crate::runtime::task::Ending;
use parking_lot::Mutex;
use std::sync::Arc;

pub use crate::fact::NoticeOutcome;

impl Ending for NoticeOutcome {
    fn failed(&self) -> bool {
        self.is_failure()
    }
}

/// The notice that is acted on, and what the steps need to act.
#[derive(Clone)]
struct Case {
    interrupter: Arc<Interrupter>,
    notice: Arc<Notice>,
    message: Arc<str>,
    node: Option<Arc<Node>>,
    /// The addresses of the pods that the drain has evicted, for load balancers.
    drained_addresses: Arc<Mutex<PodAddresses>>,
}

impl Case {
    fn about(&self) -> NoticeRef<'_> {
        NoticeRef {
            kind: self.notice.kind(),
            instance: self.notice.instance.as_str(),
            node: self.node.as_ref().map(|node| &*node.name),
            message: &self.message,
        }
    }

    fn tell(&self, fact: &Fact<'_>) {
        self.interrupter.facts.emit(fact);
    }

    /// Settles what an earlier drain has reported of the Node, which is excluded now.
    fn forgo_drain(&self) {
        if let Some(node) = self.interrupter.index.get(&self.notice.instance).filter(|node| node.draining.is_some()) {
            self.tell(&Fact::DrainExcluded { on: node.named() });
        }
    }
}
