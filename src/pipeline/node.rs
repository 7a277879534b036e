//! Which Node is it, is it ours, and what do we leave on it.
//!
//! ```text
//! index  every Node of this cluster by instance id, from one watch
//! owner  whose is an instance that has no Node: EC2 is asked, many at a time
//! mark   cordon, taints, labels and annotation, in one patch; and how they are taken back
//! undo   takes them back when they are over
//! ```

mod index;
pub mod label;
pub mod mark;
mod marker;
mod owner;
pub mod release;
mod undo;
mod wire;

pub use index::Index;
pub use marker::{Marked, Marker};
pub use owner::{Asked, Fate, ManagedTag, Owner};
pub use undo::Undo;
pub use wire::{Node, NodeApi, TrimmedNode, node_api};

use crate::pipeline::event::{Detail, Notice};

/// Whose an instance is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// This cluster's.
    Ours,
    /// Another's. Its message is none of our business.
    Foreign,
}

/// What decides ownership without EC2, where that can be decided.
///
/// A Node in this cluster, or a hook that notified this queue itself, makes an instance ours (`known` says that it has either);
/// with `require_tag` only the tag does.
#[must_use]
pub fn owned_without_asking(known: bool, notice: &Notice, require_tag: bool) -> Option<Ownership> {
    let direct = match &notice.detail {
        Detail::AsgTerminate(hook) | Detail::AsgLaunch(hook) => hook.direct,
        _ => false,
    };
    (!require_tag && (known || direct)).then_some(Ownership::Ours)
}

/// What EC2's answer says about ownership, when it had to be asked. `has_node` says that the instance has a Node here: one that is
/// terminated is ours only to tidy up after.
#[must_use]
pub fn owned_by_fate(fate: Fate, has_node: bool) -> Ownership {
    match fate {
        Fate::Known { tagged: true, .. } => Ownership::Ours,
        Fate::Terminated { tagged: true } if has_node => Ownership::Ours,
        _ => Ownership::Foreign,
    }
}
