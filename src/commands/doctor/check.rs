//! One finding, as a value.

pub use crate::fact::CheckStatus as Status;

use crate::clients::connect::ConnectError;
use crate::clients::gate::{AwsError, Category, KubeError};

/// What a check is about, in the order in which they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Area {
    /// Who we are at AWS.
    Credentials,
    /// The queue.
    Queue,
    /// EventBridge's rules.
    Rules,
    /// Auto Scaling groups and their hooks.
    Groups,
    /// Calls to AWS.
    Calls,
    /// What we may do in the cluster.
    Permissions,
    /// Nodes, pods and budgets.
    Cluster,
    /// Whose clock is right.
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

    /// It is as it should be.
    #[must_use]
    pub fn ok(self, name: &'static str, found: impl Into<String>) -> Check {
        self.check(name, Status::Ok, found.into(), None)
    }

    /// It works, but not in every case.
    #[must_use]
    pub fn warning(self, name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Check {
        self.check(name, Status::Warning, found.into(), Some(remedy.into()))
    }

    /// It does not work.
    #[must_use]
    pub fn failure(self, name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Check {
        self.check(name, Status::Failure, found.into(), Some(remedy.into()))
    }

    /// It could not be found out.
    #[must_use]
    pub fn skipped(self, name: &'static str, why: impl Into<String>) -> Check {
        self.check(name, Status::Skipped, why.into(), None)
    }

    /// There is no way to where it would be found out: what is said in the place of all that this costs.
    #[must_use]
    pub fn unconnected(self, error: &ConnectError) -> Check {
        let text = error.to_string();
        let (found, remedy) = text.rsplit_once("; ").unwrap_or((&text, "See docs/doctor.md."));
        self.failure("settings", sentence(found), sentence(remedy))
    }

    /// It could not be read, and is no part of the service's own work: what to grant, if that is what it takes.
    #[must_use]
    pub fn unread(self, name: &'static str, failed: &Failed, grant: &str) -> Check {
        let remedy = failed.denied().then(|| format!("To have it checked, allow {grant}."));
        self.check(name, Status::Skipped, failed.what.clone(), remedy)
    }
}

/// A sentence of an error's, which may begin with the name of a variable.
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
    /// What it is about.
    pub area: Area,
    /// Its name; stable, and one of few.
    pub name: &'static str,
    /// How it ended.
    pub status: Status,
    /// What was found.
    pub found: String,
    /// What to do. Lines that begin with two spaces are to be copied as they are.
    pub remedy: Option<String>,
    /// Whether all that was found is that nobody answered: the service tells that by itself.
    unreached: bool,
}

impl Check {
    /// The same, where nobody answered.
    #[must_use]
    pub const fn unreached(mut self) -> Self {
        self.unreached = true;
        self
    }

    /// How it counts at the start of the service, which is about the set-up and not about the moment.
    #[must_use]
    pub const fn status_at_start(&self) -> Status {
        if self.unreached { Status::Skipped } else { self.status }
    }
}

/// Why something could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Its class.
    pub category: Category,
    /// One sentence.
    pub what: String,
}

/// What was read, or why not.
pub type Read<T> = Result<T, Failed>;

impl Failed {
    /// Whether permissions are what it takes.
    #[must_use]
    pub fn denied(&self) -> bool {
        self.category == Category::Denied
    }

    /// Whether the other side has answered the question, be it by refusing what was asked for.
    #[must_use]
    pub fn answered(&self) -> bool {
        !matches!(
            self.category,
            Category::Throttled | Category::Unavailable | Category::TimedOut | Category::Unreachable
        )
    }
}

impl From<AwsError> for Failed {
    fn from(error: AwsError) -> Self {
        Self { category: error.category, what: error.to_string() }
    }
}

impl From<KubeError> for Failed {
    fn from(error: KubeError) -> Self {
        Self { category: error.category, what: error.to_string() }
    }
}

/// A few names, and how many more there are.
#[must_use]
pub fn few<T: AsRef<str>>(names: &[T]) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<&str> = names.iter().take(SHOWN).map(AsRef::as_ref).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// So many of something, with its plural.
#[must_use]
pub fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::connect::{BadProgram, BadVariable};

    #[test]
    fn names_are_few_and_counted() {
        assert_eq!(few(&["a", "b", "c"]), "a, b, c");
        assert_eq!(few(&["a", "b", "c", "d", "e"]), "a, b, c and 2 more");
        assert_eq!((count(1, "node", "nodes"), count(2, "node", "nodes")), ("1 node".into(), "2 nodes".into()));
    }

    #[test]
    fn what_keeps_us_from_asking_is_a_finding() {
        let said = |error: ConnectError| {
            let check = Area::Credentials.unconnected(&error);
            assert_eq!((check.name, check.status), ("settings", Status::Failure));
            (check.found, check.remedy.unwrap_or_default())
        };
        assert_eq!(
            said(ConnectError::NoRegion),
            ("AWS's region is not known.".into(), "Set AWS_REGION to the queue's region.".into())
        );
        assert_eq!(
            said(BadVariable::Proxy("https_proxy").into()),
            ("https_proxy names no proxy.".into(), "Write it as http://HOST:PORT.".into())
        );
        let program = BadProgram::Missing { program: "aws".into(), place: "on PATH" };
        assert_eq!(
            said(program.into()),
            ("The kubeconfig's program `aws` is not on PATH.".into(), "Install it.".into())
        );
    }

    #[test]
    fn only_what_was_denied_asks_for_a_grant() {
        let failed = |category| Failed { category, what: "no".to_owned() };
        let denied = Area::Rules.unread("rules", &failed(Category::Denied), "events:DescribeRule");
        assert_eq!(denied.remedy.as_deref(), Some("To have it checked, allow events:DescribeRule."));
        assert_eq!(Area::Rules.unread("rules", &failed(Category::TimedOut), "x").remedy, None);
        assert!(failed(Category::Denied).answered() && !failed(Category::Throttled).answered());
    }
}
