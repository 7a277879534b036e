//! One notice being acted on.
//!
//! ```text
//! known          what is known about the notice         steps           the next step, from what is known: pure
//! step           the types of the steps                 work            executes the steps, owns the hook
//! policy         the user's decisions                   decisions       answers single questions for `steps`
//! times          deadlines, hooks, beats: arithmetic    late            whether a notice is late
//! completion     a hook: its heartbeat, its completion  hook            the machine of a hook, and its calls
//! ownership      the owner of an instance               node_search     the Node of an instance
//! confirmation   AWS's confirmation of a notice         admission       within the maximum, or confirmed
//! limits         the limits of what messages cause      draining        the nodes being drained
//! hints          the nodes cordoned because of hints    groups          calls to Auto Scaling about groups
//! planning       keeps a change on its Node             retry           another try, while a change is ahead
//! node_work      the steps on a Node                    settling        the end of a burst of cordons
//! shared_work    one drain for all notices of a Node    shared_drain    a notice's part in it
//! drain_part     the machine of that part               launch          the end of a launch
//! waits          before evictions and completion        waves           places among the nodes of a label's value
//! shifts         the zones with shifted traffic         link            between an interruption and its messages
//! group_lookup   the groups and states of instances     replaceable     whether a group can replace first
//! remedy         what ends a repair, after the drain    reboots         calls to EC2 that reboot instances
//! out_of_service the taint of an instance that is gone
//! ```
//!
//! The interruption owns its hook and the hook's heartbeat. Its only end consumes both and waits until no more beats can be sent. If it is
//! dropped by a panic or a cancelled future, the heartbeat is dropped too, so a heartbeat can't outlive its interruption.

mod admission;
mod completion;
mod confirmation;
mod decisions;
mod drain_part;
mod draining;
mod group_lookup;
mod groups;
mod hints;
mod hook;
mod known;
mod late;
mod launch;
mod limits;
mod link;
mod node_search;
mod node_work;
mod out_of_service;
mod ownership;
mod planning;
mod policy;
mod reboots;
mod remedy;
mod replaceable;
mod retry;
mod settling;
mod shared_drain;
mod shared_work;
mod shifts;
mod step;
mod steps;
mod times;
mod waits;
mod waves;
mod work;

pub use confirmation::{Confirmations, Proof};
pub use decisions::out_of_service_mark;
pub use draining::DrainingNodes;
pub use group_lookup::GroupLookup;
pub use groups::{Groups, read as read_group};
pub use hints::Hints;
pub use hook::{Completion, HookEffect, HookEvent, HookMachine, HookReply, HookSearch, Hooks, Trust};
pub use known::{Known, KnownHook, Owner, Progress};
pub use limits::{Admission, AtMost, DrainLimit, Patience, Verify};
pub use link::MessageLink;
pub use policy::{
    Action, Actions, ForLoadBalancers, Heartbeats, Holds, HookSource, OnFailed, OnUncordon, PerKind, Policy,
    ShiftedResources, WaitPolicy, Wave,
};
pub use reboots::Reboots;
pub use remedy::{remedy, wait_of};
pub use replaceable::{Group, replaceable};
pub use settling::{NoticeBurst, QUIET_TIME};
pub use shared_work::{Seat, Slots};
pub use shifts::{Shifts, shifts_of};
pub use step::{AwaitedNode, HookEnding, QuietTime, Step, Target, Waits};
pub use steps::Steps;
pub use times::{DEFAULT_DRAIN_TIMEOUT, HookRoom, HookTerms, HookTimes, MAX_MARGIN, WARNING_TIME, due_beat};
use waits::WaitLog;
pub use waits::{
    Attachments, LoadBalancers, MIN_DRAIN, Source, TargetGroup, TargetGroups, WatchShare, is_too_late, name_of,
};
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

/// The notice that is worked on, and the parts that its steps need.
#[derive(Clone)]
struct Case {
    interrupter: Arc<Interrupter>,
    /// The user's decisions: those of the Node's pool when the work started, or when the Node registered.
    policy: Arc<Policy>,
    notice: Arc<Notice>,
    message: Arc<str>,
    node: Option<Arc<Node>>,
    /// Addresses of the pods that the drain has evicted, for load balancers.
    drained_addresses: Arc<Mutex<PodAddresses>>,
}

impl Case {
    fn about(&self) -> NoticeRef<'_> {
        self.notice.about(self.node.as_ref().map(|node| &*node.name), &self.message)
    }

    fn emit(&self, fact: &Fact<'_>) {
        self.interrupter.facts.emit(fact);
    }

    /// Settles an earlier drain's report on the Node, which is excluded now.
    fn forgo_drain(&self) {
        if let Some(node) = self.interrupter.index.get(&self.notice.instance).filter(|node| node.draining.is_some()) {
            self.emit(&Fact::DrainExcluded { on: node.named() });
        }
    }
}
