//! Who we are at AWS. Pure.

use super::check::{Area, Check, Failed, Read};
use crate::clients::gate::{Category, NO_CREDENTIALS};
use crate::pipeline::queue::Place;

/// What STS says of us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The account.
    pub account: String,
    /// The role's session, or the user.
    pub arn: String,
}

const GIVE: &str = "Give this process credentials: in a pod by EKS Pod Identity or an IRSA role on its service account, elsewhere \
                    by AWS_PROFILE, aws sso login or aws login. Without any of them the SDK has none to sign with.";

/// What is found of them.
#[must_use]
pub fn judge(identity: &Read<Identity>, queue_url: &str) -> Vec<Check> {
    let area = Area::Credentials;
    let identity = match identity {
        Ok(identity) => identity,
        Err(failed) if useless(failed) => {
            let none = unsigned(failed) && !failed.what.contains(&format!("{NO_CREDENTIALS}:"));
            let found = if none { "There are no AWS credentials." } else { &failed.what };
            return vec![area.failure("identity", found, GIVE)];
        }
        Err(failed) => {
            let remedy = "Who we are could not be asked. If the network lets nothing of this pod reach STS, a VPC endpoint for it \
                          helps; IRSA can't do without, EKS Pod Identity can.";
            return vec![area.warning("identity", &failed.what, remedy).unreached()];
        }
    };
    let mut checks = vec![area.ok("identity", &identity.arn)];
    if let Some(owner) = Place::of(queue_url).and_then(|place| place.account)
        && owner != identity.account
    {
        checks.push(area.warning(
            "account",
            format!("The queue is account {owner}'s, and we are in {}.", identity.account),
            "If that is meant, the queue's policy must also let our role receive and delete; else correct --queue-url.",
        ));
    }
    checks
}

/// Whether there are no credentials, or AWS does not take them: then every other call fails as well. Whoever has credentials may ask
/// who they are.
#[must_use]
pub fn useless(failed: &Failed) -> bool {
    failed.answered() || unsigned(failed)
}

fn unsigned(failed: &Failed) -> bool {
    failed.category == Category::Unreachable && failed.what.contains(NO_CREDENTIALS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Status;

    #[test]
    fn who_we_are_and_whose_the_queue_is() {
        let identity = Ok(Identity { account: "123456789012".into(), arn: "arn:aws:sts::123456789012:role".into() });
        let own = judge(&identity, "https://sqs.eu-west-1.amazonaws.com/123456789012/ebbtide");
        assert_eq!(own.iter().map(|check| check.status).collect::<Vec<_>>(), [Status::Ok]);
        let other = judge(&identity, "https://sqs.eu-west-1.amazonaws.com/210987654321/ebbtide");
        assert_eq!((other[1].name, other[1].status), ("account", Status::Warning));
        assert_eq!(judge(&identity, "http://localhost:5000/queue").len(), 1, "no account in it");
    }

    #[test]
    fn no_credentials_are_a_failure_and_no_answer_is_none() {
        for (category, what, status, at_start) in [
            (Category::Denied, "ExpiredToken", Status::Failure, Status::Failure),
            (Category::Unreachable, "sts:GetCallerIdentity: no AWS credentials", Status::Failure, Status::Failure),
            (Category::Unreachable, "no AWS credentials: AWS_PROFILE is …", Status::Failure, Status::Failure),
            (Category::Unreachable, "connection refused", Status::Warning, Status::Skipped),
            (Category::TimedOut, "no answer within 3 s", Status::Warning, Status::Skipped),
        ] {
            let failed = Err(Failed { category, what: what.to_owned() });
            let checks = judge(&failed, "");
            assert_eq!((checks[0].status, checks[0].status_at_start()), (status, at_start), "{what}");
        }
    }
}
