//! One finding of the doctor.

pub use crate::fact::CheckStatus as Status;

use super::readings::ReadError;

/// The subject of a check, in the order of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Area {
    /// The caller's credentials at AWS.
    Credentials,
    /// The queue.
    Queue,
    /// EventBridge's rules.
    Rules,
    /// Auto Scaling groups and their hooks.
    Groups,
    /// Calls to AWS.
    Calls,
    /// Permissions in the cluster.
    Permissions,
    /// Nodes, pods and budgets.
    Cluster,
    /// The clock.
    Clock,
}

impl Area {
    /// The area's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Credentials => "credentials",
            Self::Queue => "queue",
            Self::Rules => "rules",
            Self::Groups => "groups",
            Self::Calls => "calls",
            Self::Permissions => "permissions",
            Self::Cluster => "cluster",
            Self::Clock => "clock",
        }
    }

    const fn check(self, name: &'static str, status: Status, found: String, remedy: Option<String>) -> Check {
        Check { area: self, name, status, found, remedy, unreached: false }
    }

    /// Returns a check without a problem.
    #[must_use]
    pub fn ok(self, name: &'static str, found: impl Into<String>) -> Check {
        self.check(name, Status::Ok, found.into(), None)
    }

    /// Returns a check of something that works, but not in every case.
    #[must_use]
    pub fn warning(self, name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Check {
        self.check(name, Status::Warning, found.into(), Some(remedy.into()))
    }

    /// Returns a check of something that does not work.
    #[must_use]
    pub fn failure(self, name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Check {
        self.check(name, Status::Failure, found.into(), Some(remedy.into()))
    }

    /// Returns a check that could not be made.
    #[must_use]
    pub fn skipped(self, name: &'static str, why: impl Into<String>) -> Check {
        self.check(name, Status::Skipped, why.into(), None)
    }

    /// Returns the one check that replaces all checks of a side for which there is no client, by the error's text.
    #[must_use]
    pub fn unconnected(self, error: &str) -> Check {
        let (found, remedy) = error.rsplit_once("; ").unwrap_or((error, "See docs/doctor.md."));
        self.failure("settings", sentence(found), sentence(remedy))
    }

    /// Returns a skipped check of something that the service itself does not read; the remedy names the missing permission.
    #[must_use]
    pub fn unread(self, name: &'static str, error: &ReadError, permission: &str) -> Check {
        let remedy = error.denied().then(|| format!("To have it checked, allow {permission}."));
        self.check(name, Status::Skipped, error.message.clone(), remedy)
    }
}

/// Returns a part of an error's text as a sentence. The name of a variable keeps its lower case.
fn sentence(text: &str) -> String {
    let text = text.trim_end_matches('.');
    let is_variable = text.split(' ').next().is_some_and(|word| word.contains('_'));
    let mut letters = text.chars();
    match letters.next() {
        Some(first) if !is_variable => format!("{}{}.", first.to_uppercase(), letters.as_str()),
        _ => format!("{text}."),
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The area.
    pub area: Area,
    /// The check's name: stable, and one of few.
    pub name: &'static str,
    /// The result.
    pub status: Status,
    /// The finding.
    pub found: String,
    /// The remedy. Lines that begin with two spaces are for copying and never wrapped.
    pub remedy: Option<String>,
    /// Whether the only finding is that a server did not answer. The service reports that by itself.
    unreached: bool,
}

impl Check {
    /// Adds a remedy.
    #[must_use]
    pub fn remedied(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Marks the check as one whose server did not answer.
    #[must_use]
    pub const fn unreached(mut self) -> Self {
        self.unreached = true;
        self
    }

    /// Returns the status at the start of the service, which judges the set-up and not a server's availability.
    #[must_use]
    pub const fn status_at_start(&self) -> Status {
        if self.unreached { Status::Skipped } else { self.status }
    }
}

/// Returns the first names and the number of the others.
#[must_use]
pub fn few<T: AsRef<str>>(names: &[T]) -> String {
    /// Maximum number of names shown.
    const MAX_SHOWN: usize = 3;
    let shown: Vec<&str> = names.iter().take(MAX_SHOWN).map(AsRef::as_ref).collect();
    match names.len().saturating_sub(MAX_SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Returns a number with its noun in the singular or the plural.
#[must_use]
pub fn count(number: usize, singular: &str, plural: &str) -> String {
    format!("{number} {}", if number == 1 { singular } else { plural })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::connect::{BadProgram, BadVariable, ConnectError};
    use crate::clients::gate::Category;

    #[test]
    fn names_are_few_and_counted() {
        assert_eq!(few(&["a", "b", "c"]), "a, b, c");
        assert_eq!(few(&["a", "b", "c", "d", "e"]), "a, b, c and 2 more");
        assert_eq!((count(1, "node", "nodes"), count(2, "node", "nodes")), ("1 node".into(), "2 nodes".into()));
    }

    #[test]
    fn a_missing_client_is_a_finding() {
        let finding = |error: ConnectError| {
            let check = Area::Credentials.unconnected(&error.to_string());
            assert_eq!((check.name, check.status), ("settings", Status::Failure));
            (check.found, check.remedy.unwrap_or_default())
        };
        assert_eq!(
            finding(ConnectError::NoRegion),
            ("AWS's region is not known.".into(), "Set AWS_REGION to the region of the nodes and the queue.".into())
        );
        assert_eq!(
            finding(BadVariable::Proxy("https_proxy").into()),
            ("https_proxy names no proxy.".into(), "Write it as http://HOST:PORT.".into())
        );
        let program = BadProgram::Missing { program: "aws".into(), place: "on PATH" };
        assert_eq!(
            finding(program.into()),
            ("The kubeconfig's program `aws` is not on PATH.".into(), "Install it.".into())
        );
    }

    #[test]
    fn only_a_denied_read_asks_for_a_permission() {
        let error = |category| ReadError::new(category, "no");
        let denied = Area::Rules.unread("rules", &error(Category::Denied), "events:DescribeRule");
        assert_eq!(denied.remedy.as_deref(), Some("To have it checked, allow events:DescribeRule."));
        assert_eq!(Area::Rules.unread("rules", &error(Category::TimedOut), "x").remedy, None);
        assert!(error(Category::Denied).answered() && !error(Category::Throttled).answered());
    }
}
