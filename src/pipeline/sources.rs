//! The sources of notices. Messages have a door of their own, with their receipts; what Nodes report and keep, and what EC2 lists, is offered
//! to one loop. All join the same interruptions.
//!
//! ```text
//! messages       takes a message to its end      interruptions  those that run, one for each notice
//! offers         the loop: offer → brake → turn  outcome_cache  outcomes of those that have ended
//! work           the work on an offer            hooks          finds the hook of a termination without a message
//! nodes          what Nodes report, in turns     repairs        holds back repairs
//! plans          the changes that Nodes keep     refusals       Nodes and annotations that are ignored
//! ec2            what EC2 lists
//! ```

mod ec2;
mod hooks;
mod interruptions;
mod messages;
mod nodes;
mod offers;
mod outcome_cache;
mod plans;
mod refusals;
mod repairs;
mod work;

pub use ec2::Ec2;
pub use interruptions::Interruptions;
pub use messages::{Deliverer, MAX_NOTICES, Unclaimed, verdict};
pub use nodes::Nodes;
pub use offers::Offers;
pub use outcome_cache::OutcomeCache;
pub use refusals::NodeRefusals;
pub use repairs::RepairBrake;

use offers::Source;
use plans::Plans;

use crate::fact::NoticeKind;
use crate::leases::election::Election;
use futures_util::future::OptionFuture;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// The sources of notices besides messages.
pub struct Sources {
    /// Works on what they offer.
    pub offers: Offers,
    /// What EC2 lists, if it is polled.
    pub ec2: Option<Ec2>,
    /// What Nodes report, if they are a source.
    pub nodes: Option<Nodes>,
    /// The election of the replica that works on what Nodes report; without one, this replica does.
    pub election: Option<Election>,
}

impl Sources {
    /// Works on what the sources offer, until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let Self { offers, ec2, nodes, mut election } = self;
        let plans = Plans(Arc::clone(&offers.interrupter));
        let mut sources: Vec<(_, &dyn Source)> = vec![(NoticeKind::StatusCheck, &plans)];
        sources.extend(ec2.iter().map(|ec2| (NoticeKind::StatusCheck, ec2 as &dyn Source)));
        sources.extend(nodes.iter().map(|nodes| (NoticeKind::NodeCondition, nodes as &dyn Source)));
        tokio::select! {
            biased;
            () = offers.work_on_all(&sources, &stop) => {}
            Some(()) = OptionFuture::from(ec2.as_ref().map(Ec2::poll)) => {}
            Some(()) = OptionFuture::from(nodes.as_ref().map(|nodes| nodes.keep_turn(election.as_mut()))) => {}
        }
        if let Some(election) = election {
            // A failure does not matter: the turn expires by itself.
            let _ = election.give_back().await;
        }
    }
}
