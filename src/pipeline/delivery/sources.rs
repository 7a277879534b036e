//! The sources of notices besides messages: what Nodes report and keep, and what EC2 lists.

use super::ec2::Ec2;
use super::nodes::Nodes;
use super::offers::{Offers, Source};
use super::plans::Plans;
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
