//! All findings, as text and as JSON.

use super::check::{Check, Status};
use crate::cli::text::{WIDTH, wrapped};
use serde_json::{Value, json};

/// Column of the remedy.
const INDENT: usize = 10;

/// Maximum width of the titles in their column.
const MAX_TITLE: usize = 28;

/// All findings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    checks: Vec<Check>,
}

impl Diagnosis {
    /// Returns a diagnosis with the findings in the order of the output.
    #[must_use]
    pub const fn new(checks: Vec<Check>) -> Self {
        Self { checks }
    }

    /// The findings.
    #[must_use]
    pub fn checks(&self) -> &[Check] {
        &self.checks
    }

    /// Returns the number of findings with this status.
    #[must_use]
    pub fn count(&self, status: Status) -> usize {
        self.checks.iter().filter(|check| check.status == status).count()
    }

    /// Whether there is a failure, or with `strict` a warning.
    #[must_use]
    pub fn failed(&self, strict: bool) -> bool {
        self.count(Status::Failure) > 0 || strict && self.count(Status::Warning) > 0
    }

    /// Returns the text: a line for each check, its remedy below, and a summary.
    #[must_use]
    pub fn text(&self) -> String {
        let title = |check: &Check| format!("{} {}", check.area.as_str(), check.name);
        let fits = |width: &usize| *width <= MAX_TITLE;
        let widest = self.checks.iter().map(|check| title(check).len()).filter(fits).max().unwrap_or_default();
        let found_at = INDENT + widest + 2;
        let mut text = String::new();
        for check in &self.checks {
            let mut lines = wrapped(&check.found, WIDTH.saturating_sub(found_at)).into_iter();
            let title = title(check);
            // A longer title has a line of its own.
            let first = if fits(&title.len()) { lines.next().unwrap_or_default() } else { String::new() };
            let head = format!("{:<INDENT$}{title:<widest$}  {first}", check.status.as_str());
            push_line(&mut text, head.trim_end());
            for line in lines {
                push_line(&mut text, &format!("{:found_at$}{line}", ""));
            }
            for line in check.remedy.iter().flat_map(|remedy| remedy.lines()) {
                // Lines for copying are not wrapped.
                let lines = if line.starts_with("  ") { vec![line.to_owned()] } else { wrapped(line, WIDTH - INDENT) };
                for line in lines {
                    push_line(&mut text, &format!("{:INDENT$}{line}", ""));
                }
            }
        }
        let counts = Status::ALL.map(|status| format!("{} {}", self.count(status), status.as_str()));
        text.push('\n');
        push_line(&mut text, &counts.join(", "));
        text
    }

    /// Returns the object that docs/doctor.md describes.
    #[must_use]
    pub fn object(&self) -> Value {
        let checks: Vec<_> = self
            .checks
            .iter()
            .map(|check| {
                json!({
                    "area": check.area.as_str(), "check": check.name, "status": check.status.as_str(),
                    "found": check.found, "remedy": check.remedy,
                })
            })
            .collect();
        let summary: serde_json::Map<_, _> =
            Status::ALL.iter().map(|status| (status.as_str().to_owned(), json!(self.count(*status)))).collect();
        json!({ "checks": checks, "summary": summary })
    }
}

fn push_line(text: &mut String, line: &str) {
    text.push_str(line.trim_end());
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Area;

    fn diagnosis() -> Diagnosis {
        Diagnosis::new(vec![
            Area::Credentials.ok("identity", "arn:aws:sts::123456789012:assumed-role/ebbtide/1"),
            Area::Queue.failure(
                "policy",
                "The queue has no policy: EventBridge can't send to it, and what it does not send nobody hears of here.",
                "Add this statement to the queue's policy; the console shows it under Access policy, which is where it can be edited:\n  {\"Effect\": \"Allow\"}",
            ),
            Area::Clock.skipped("skew", "The API server did not tell its time."),
        ])
    }

    #[test]
    fn text_is_aligned_and_wrapped() {
        assert_eq!(
            diagnosis().text(),
            "\
ok        credentials identity  arn:aws:sts::123456789012:assumed-role/ebbtide/1
failure   queue policy          The queue has no policy: EventBridge can't send to it, and what it
                                does not send nobody hears of here.
          Add this statement to the queue's policy; the console shows it under Access policy, which
          is where it can be edited:
            {\"Effect\": \"Allow\"}
skipped   clock skew            The API server did not tell its time.

1 ok, 0 warning, 1 failure, 1 skipped
"
        );
    }

    #[test]
    fn json_is_one_object() {
        let read = diagnosis().object();
        assert_eq!(read["checks"][0]["check"], "identity");
        assert_eq!(read["checks"][0]["remedy"], Value::Null);
        assert_eq!(read["checks"][1]["area"], "queue");
        assert_eq!(read["summary"], json!({ "ok": 1, "warning": 0, "failure": 1, "skipped": 1 }));
        assert!(diagnosis().failed(false));
    }
}
