//! The sources of notices besides messages: what Nodes keep, and what EC2 lists.

use super::ec2::{Ec2, PollSettings};
use super::offers::{Offers, Source};
use super::plans::Plans;
use crate::fact::NoticeKind;
use futures_util::future::OptionFuture;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// The sources of notices besides messages.
pub struct Sources {
    /// Works on what they offer.
    pub offers: Arc<Offers>,
    /// The polls of EC2, if the settings ask for them.
    pub polling: Option<PollSettings>,
}

impl Sources {
    /// Works on what the sources offer, until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let Self { offers, polling } = self;
        let interrupter = || Arc::clone(&offers.interrupter);
        let plans = Plans { interrupter: interrupter(), stop: stop.clone() };
        let ec2 = polling.map(|polling| Ec2 {
            polling,
            interrupter: interrupter(),
            brake: Arc::clone(&offers.brake),
            stop: stop.clone(),
            answers: Default::default(),
        });
        let mut sources: Vec<(_, &dyn Source)> = vec![(NoticeKind::StatusCheck, &plans)];
        sources.extend(ec2.iter().map(|ec2| (NoticeKind::StatusCheck, ec2 as &dyn Source)));
        let polls = OptionFuture::from(ec2.as_ref().map(Ec2::poll));
        tokio::select! {
            biased;
            () = offers.work_on_all(&sources, &stop) => {}
            Some(()) = polls => {}
        }
    }
}
