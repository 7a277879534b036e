//! Validation of the limits of what a writer to the queue can cause.

use super::Sources;
use super::problems::Problems;
use crate::cli::flags;
use crate::pipeline::interruption::{Action, Actions, Admission, DrainLimit, Verify};
use std::collections::BTreeMap;

impl Problems {
    /// Reads the limits of what a writer to the queue can cause.
    pub(super) fn admission(
        &mut self,
        flags: &flags::Admission,
        (actions, sources): (Actions, Sources),
        health_issues: &BTreeMap<String, Action>,
    ) -> Admission {
        let flag = "--max-draining";
        let drains = actions.with_faults(health_issues).any(Action::drains);
        let has_limit = flags.max_draining.is_some_and(|limit| limit != DrainLimit::None);
        self.idle(flag, has_limit && !drains, "--on KIND=drain");
        let verify = flags.verify;
        self.idle("--verify", verify == Verify::Always && !drains, "--on KIND=drain");
        let limit = match flags.max_draining {
            Some(limit) => limit,
            // Without AWS's word it would limit nothing.
            None if sources.queue && verify == Verify::Unusual => DrainLimit::Shaping,
            None => DrainLimit::None,
        };
        Admission { limit, verify, asks_aws: sources.ask_aws() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command, Settings};
    use crate::pipeline::event::NoticeKind;
    use crate::pipeline::interruption::AtMost;

    fn read(flags: &[&str]) -> Result<Admission, String> {
        let all = ["ebbtide", "run", "--queue-url", "https://sqs.eu-central-1.amazonaws.com/1/q"];
        let Command::Run(run) = Cli::of(all.iter().chain(flags)).unwrap().command else { panic!("it must be run") };
        Settings::from_flags(run).map(|settings| settings.policy().admission).map_err(|problems| problems.to_string())
    }

    #[test]
    fn a_queue_has_a_limit_that_shapes_unless_one_is_set() {
        let limit = |flags: &[&str]| {
            let admission = read(flags).unwrap();
            (admission.limit, admission.verify)
        };
        assert_eq!(limit(&[]), (DrainLimit::Shaping, Verify::Unusual));
        assert_eq!(limit(&["--max-draining="]), (DrainLimit::Shaping, Verify::Unusual));
        assert_eq!(limit(&["--max-draining", "none"]), (DrainLimit::None, Verify::Unusual));
        assert_eq!(limit(&["--max-draining", "20%"]).0, DrainLimit::Strict(AtMost::Percent(20)));
        let never = limit(&["--max-draining", "7", "--verify", "never"]);
        assert_eq!(never, (DrainLimit::Strict(AtMost::Number(7)), Verify::Never));
        assert_eq!(limit(&["--verify", "never"]), (DrainLimit::None, Verify::Never));
        assert_eq!(limit(&["--verify", "always"]), (DrainLimit::None, Verify::Always));
    }

    #[test]
    fn a_limit_that_limits_nothing_is_refused() {
        for limit in ["0", "0%", "101%", "many", "-1", "1.5"] {
            let problem = read(&[&format!("--max-draining={limit}")]).unwrap_err();
            assert!(problem.starts_with(&format!("--max-draining: \"{limit}\" is no number of nodes")), "{problem}");
        }
        let nothing =
            NoticeKind::ALL.into_iter().filter(|kind| !kind.is_repair()).map(|kind| format!("--on={kind}=report"));
        let mut flags: Vec<_> = nothing.chain(["--max-draining=7".to_owned()]).collect();
        let given = |flags: &[String]| read(&flags.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(given(&flags).unwrap_err().contains("--on KIND=drain"));
        flags.push("--health-issue=AWS_EC2_INSTANCE_STORE_DRIVE_PERFORMANCE_DEGRADED=drain".into());
        assert_eq!(given(&flags).unwrap().limit, DrainLimit::Strict(AtMost::Number(7)));
    }
}
