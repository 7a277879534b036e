//! STS: the identity of the caller.

use super::ACCOUNT;
use super::query::{Form, answer_wrapped, refuse_wrapped};
use super::refusal::{Refusal, Words};
use crate::fault::{Disconnected, Edge};
use bytes::Bytes;

const WORDS: Words = Words {
    throttled_status: 400,
    throttled: "Throttling",
    denied: "InvalidClientTokenId",
    expired: (403, "ExpiredToken"),
    invalid: "ValidationError",
    internal: "InternalFailure",
    unavailable: "ServiceUnavailable",
};

#[derive(Clone, Debug)]
pub(super) struct Sts {
    edge: Edge,
}

impl Sts {
    pub fn new(edge: Edge) -> Self {
        Self { edge }
    }

    pub async fn serve(&self, form: &Form) -> Result<http::Response<Bytes>, Disconnected> {
        let operation = form.get("Action").unwrap_or_default();
        let refuse = |fault| Refusal::planned(fault, &WORDS).map(|refusal| refuse_wrapped(&refusal));
        let serve = async {
            if operation != "GetCallerIdentity" {
                return refuse_wrapped(&Refusal::new("InvalidAction", format!("Could not find operation {operation}")));
            }
            answer_wrapped(operation, |xml| {
                xml.text("Arn", &format!("arn:aws:sts::{ACCOUNT}:assumed-role/ebbtide/sim"));
                xml.text("UserId", "AROASIM:sim");
                xml.text("Account", ACCOUNT);
            })
        };
        self.edge.pass("sts", operation, "", refuse, serve).await
    }
}
