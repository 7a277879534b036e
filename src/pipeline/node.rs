//! The Node of an instance: how Ebbtide finds it, decides whether it is ours, marks it and releases it.
//!
//! ```text
//! index     every Node of this cluster by instance ID, from one watch
//! owner     the owner of an instance without a Node, from EC2, many instances a call
//! mark      cordon, taints, labels and annotation of a notice, as one patch
//! names     names of annotations and labels
//! marker    writes and removes marks
//! listing   scheduled changes, Capacity Blocks and status checks, from EC2
//! confirmation  how a message confirms an agent notice
//! shift     a zonal shift, as Nodes record it
//! hold      annotations that report a wait for a user or another controller, and that end it
//! handled   how a Node shows that a notice without a message needs nothing more
//! label     labels that select Nodes
//! wave      how far a Node is in its wave
//! wire      the fields of a Node that are read
//! pool      the pool of capacity of a Node's instance
//! node_pool the pools of Nodes that have settings of their own
//! record    what is recorded on a Node: notices, planned changes, what to undo
//! patch     the form of patches
//! plan      writes a planned change on its Node
//! release   which marks are due for removal, and the patch that removes them
//! agent_notices  notices that the agent writes on its Node
//! condition, conditions  the conditions of Nodes for which there are rules, and their notices
//! brake     whether too many nodes are unhealthy to drain them
//! hinted    how many nodes are cordoned for hints, and how many may be
//! releaser  the task that removes marks when they are due
//! remnants  what is left on a Node once nothing of Ebbtide runs
//! restarts  restarts before the start of a change
//! replacement  notes on a Node that its group replaces, and on the new one
//! reboot    the note of the reboot of a Node's instance
//! work_sign  signs that another tool works on a Node
//! ```

pub mod agent_notices;
mod brake;
mod condition;
mod conditions;
pub mod confirmation;
pub mod handled;
mod hinted;
pub mod hold;
mod index;
pub mod label;
mod listing;
pub mod mark;
mod marker;
mod names;
mod node_pool;
mod owner;
mod patch;
pub mod plan;
mod pool;
pub mod reboot;
pub mod record;
pub mod release;
mod releaser;
pub mod remnants;
pub mod replacement;
mod restarts;
pub mod shift;
pub mod wave;
mod wire;
mod work_sign;

pub use agent_notices::{AGENT_REPEAT, AgentNotice};
pub use brake::{Brake, Share};
pub use condition::ConditionRule;
pub use hinted::{FullOfHints, HintedNodes};
pub use index::Index;
pub use listing::{Listing, passing_checks};
pub use marker::{CordonOutcome, Marker};
pub use names::{IGNORE_ANNOTATION, TEST_ANNOTATION, is_from_node};
pub use node_pool::{NodePool, NodeScope, PerPool};
pub use owner::{
    ClusterNames, DESCRIBE_INSTANCES, InstanceRecord, MAX_ASKED, ManagedTag, Membership, OwnerLookup, by_id,
    clusters_in, describe, instances_in, subject_of,
};
pub use releaser::NodeReleaser;
pub use restarts::Restarts;
pub use wire::{Node, NodeApi, TrimmedNode, node_api};
pub use work_sign::WorkSign;

use crate::pipeline::event::{Detail, Notice};
use jiff::Timestamp;

/// The owner of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// The instance belongs to this cluster.
    Ours,
    /// The instance belongs to another cluster. Ebbtide does not act on its notices.
    Foreign,
    /// Nothing proves whether the instance, launched at this time, is ours: it carries a tag that other clusters may use, too.
    Unproven {
        /// The time of its launch, if EC2 reports it.
        launched: Option<Timestamp>,
    },
}

/// Returns the ownership of an instance if it can be decided without EC2.
///
/// A Node in this cluster (`has_node`) makes an instance ours. With `require_tag` only the managed tag does.
#[must_use]
pub fn owned_without_asking(has_node: bool, require_tag: bool) -> Option<Ownership> {
    (!require_tag && has_node).then_some(Ownership::Ours)
}

/// Returns the ownership by EC2's record. A terminated instance is ours only if it still has a Node here, which needs tidying up; or if it
/// is in this cluster and its group waits at a hook, as it does for an instance that a user or another controller terminates. A hook that
/// notified this queue itself (`direct`) settles a doubt; it never makes an unmanaged instance ours, because an attacker with access to
/// the queue can write such a message.
#[must_use]
pub fn owned_by_record(record: InstanceRecord, has_node: bool, direct: bool, notice: &Notice) -> Ownership {
    let is_at_hook = matches!(notice.detail, Detail::AsgTerminate(_));
    match record {
        InstanceRecord::Known { membership: Membership::ThisCluster, .. } => Ownership::Ours,
        InstanceRecord::Terminated { membership: Membership::ThisCluster } if has_node || is_at_hook => Ownership::Ours,
        InstanceRecord::Known { membership: Membership::Unproven { .. }, .. }
        | InstanceRecord::Terminated { membership: Membership::Unproven { .. } }
            if has_node || direct =>
        {
            Ownership::Ours
        }
        InstanceRecord::Known { membership: Membership::Unproven { launched }, .. } => Ownership::Unproven { launched },
        _ => Ownership::Foreign,
    }
}
