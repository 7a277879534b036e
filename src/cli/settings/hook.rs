//! The group and the hook of a lifecycle action that a command makes.

use super::SettingsError;
use crate::pipeline::event::NoticeKind;

/// Returns group and hook; `None` if they are to be found by the instance.
///
/// # Errors
/// When one of the two is missing, or the kind has no hook.
pub fn lifecycle_hook(
    kind: NoticeKind,
    group: Option<String>,
    hook: Option<String>,
) -> Result<Option<(String, String)>, SettingsError> {
    let has_hook = matches!(kind, NoticeKind::AsgTerminate | NoticeKind::AsgLaunch);
    let (flag, what) = match (group, hook) {
        (None, None) => return Ok(None),
        (Some(group), Some(hook)) if has_hook => return Ok(Some((group, hook))),
        (Some(_), None) if has_hook => ("--hook", "is missing, but --group is set; set both, or neither".to_owned()),
        (None, Some(_)) if has_hook => ("--group", "is missing, but --hook is set; set both, or neither".to_owned()),
        (group, _) => {
            let flag = if group.is_some() { "--group" } else { "--hook" };
            (flag, format!("is only for asg-terminate and asg-launch, and --kind is {kind}; remove it"))
        }
    };
    Err(SettingsError::of(flag, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_and_hook_go_together_and_with_a_lifecycle_action() {
        let of = |kind, group: Option<&str>, hook: Option<&str>| {
            lifecycle_hook(kind, group.map(str::to_owned), hook.map(str::to_owned)).map_err(|error| error.to_string())
        };
        for kind in [NoticeKind::AsgTerminate, NoticeKind::AsgLaunch] {
            assert_eq!(of(kind, None, None), Ok(None));
            assert_eq!(of(kind, Some("g"), Some("h")), Ok(Some(("g".to_owned(), "h".to_owned()))));
            assert_eq!(
                [of(kind, Some("g"), None), of(kind, None, Some("h"))].map(Result::unwrap_err),
                [
                    "--hook: is missing, but --group is set; set both, or neither",
                    "--group: is missing, but --hook is set; set both, or neither"
                ]
            );
        }
        assert_eq!(of(NoticeKind::Spot, None, None), Ok(None));
        for (group, hook, flag) in
            [(Some("g"), None, "--group"), (None, Some("h"), "--hook"), (Some("g"), Some("h"), "--group")]
        {
            let problem = of(NoticeKind::Spot, group, hook).unwrap_err();
            assert_eq!(
                problem,
                format!("{flag}: is only for asg-terminate and asg-launch, and --kind is spot; remove it")
            );
        }
    }
}
