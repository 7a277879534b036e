//! The caller's identity at AWS. Pure.

use super::check::{Area, Check};
use super::readings::{CallerIdentity, ReadError, Reading};
use crate::clients::gate::{Category, SigningFailure};
use crate::pipeline::queue::QueueUrl;

const REMEDY: &str = "Give this process credentials: in a pod by EKS Pod Identity or by an IRSA role on its service account, elsewhere \
                      by AWS_PROFILE; if its session has expired, sign in again, such as by aws sso login. Without credentials the SDK can't sign its calls.";

/// Judges the identity.
#[must_use]
pub fn judge(identity: &Reading<CallerIdentity>, queue_url: &str) -> Vec<Check> {
    let area = Area::Credentials;
    let identity = match identity {
        Ok(identity) => identity,
        Err(error) if unusable(error) => {
            let found = if error.unsigned == Some(SigningFailure::NoneFound) {
                "There are no AWS credentials."
            } else {
                &error.message
            };
            return vec![area.failure("identity", found, REMEDY)];
        }
        Err(error) => {
            let remedy = "STS could not be asked for the caller's identity. If the network does not let this pod reach STS, add a VPC \
                          endpoint for it. IRSA needs STS, EKS Pod Identity does not.";
            return vec![area.warning("identity", &error.message, remedy).unreached()];
        }
    };
    let mut checks = vec![area.ok("identity", &identity.arn)];
    if let Some(owner) = QueueUrl::parse(queue_url).and_then(|url| url.account)
        && owner != identity.account
    {
        checks.push(area.warning(
            "account",
            format!("The queue is in account {owner}, and our credentials are of account {}.", identity.account),
            "If that is intended, the queue's policy must also allow our role to receive and delete. Otherwise correct --queue-url.",
        ));
    }
    checks
}

/// Whether there are no credentials, or AWS rejects them: then every other call fails as well. Valid credentials may always ask STS for
/// their identity.
#[must_use]
pub fn unusable(error: &ReadError) -> bool {
    error.answered() || error.category == Category::Expired || error.unsigned.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Status;

    #[test]
    fn who_we_are_and_whose_the_queue_is() {
        let identity =
            Ok(CallerIdentity { account: "123456789012".into(), arn: "arn:aws:sts::123456789012:role".into() });
        let own = judge(&identity, "https://sqs.eu-west-1.amazonaws.com/123456789012/ebbtide");
        assert_eq!(own.iter().map(|check| check.status).collect::<Vec<_>>(), [Status::Ok]);
        let other = judge(&identity, "https://sqs.eu-west-1.amazonaws.com/210987654321/ebbtide");
        assert_eq!((other[1].name, other[1].status), ("account", Status::Warning));
        assert_eq!(judge(&identity, "http://localhost:5000/queue").len(), 1, "no account in it");
    }

    #[test]
    fn no_credentials_are_a_failure_and_no_answer_is_none() {
        let none = Some(SigningFailure::NoneFound);
        let failed = Some(SigningFailure::SourceFailed);
        for (category, unsigned, message, status, at_start) in [
            (Category::Expired, None, "ExpiredToken", Status::Failure, Status::Failure),
            (Category::Unreachable, none, "no AWS credentials", Status::Failure, Status::Failure),
            (Category::Unreachable, failed, "no AWS credentials: AWS_PROFILE is …", Status::Failure, Status::Failure),
            (Category::Unreachable, None, "connection refused", Status::Warning, Status::Skipped),
            (Category::TimedOut, None, "no answer within 3 s", Status::Warning, Status::Skipped),
        ] {
            let error = Err(ReadError { unsigned, ..ReadError::new(category, message) });
            let checks = judge(&error, "");
            assert_eq!((checks[0].status, checks[0].status_at_start()), (status, at_start), "{message}");
            assert_eq!(checks[0].found == message, unsigned != none, "{message}");
        }
    }
}
