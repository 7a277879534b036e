//! Lifecycle actions: an Auto Scaling group launches or terminates an instance, and waits for a hook.
//!
//! The same fields come in an EventBridge event's `detail` and in a bare message. Both lead to the same identity, so that an action
//! announced in both ways is worked on once.

use super::wire::{At, Head, Text, detail, quote, root};
use super::{Detail, Hook, Identity, InstanceId, Malformed, Notice, NoticeTime, Parsed, WarmPool};
use jiff::Timestamp;
use serde::Deserialize;

const TERMINATING: &str = "autoscaling:EC2_INSTANCE_TERMINATING";
const WARM_POOL: &str = "WarmPool";
const REPLACE_ROOT_VOLUME: &str = "ReplaceRootVolume";
const LAUNCHING: &str = "autoscaling:EC2_INSTANCE_LAUNCHING";

/// A lifecycle action on the wire.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Action<'a> {
    #[serde(borrow)]
    lifecycle_transition: Text<'a>,
    #[serde(borrow)]
    lifecycle_action_token: Text<'a>,
    #[serde(borrow)]
    lifecycle_hook_name: Text<'a>,
    #[serde(borrow)]
    auto_scaling_group_name: Text<'a>,
    #[serde(borrow, rename = "EC2InstanceId")]
    instance: Text<'a>,
    #[serde(borrow)]
    origin: Text<'a>,
    #[serde(borrow)]
    destination: Text<'a>,
    /// Set by an instance refresh that replaces root volumes.
    #[serde(borrow)]
    action: Text<'a>,
    /// Set in bare messages only: an event has its time in its envelope.
    #[serde(borrow)]
    time: Text<'a>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Transition {
    Terminating,
    Launching,
}

/// `EC2 Instance-terminate Lifecycle Action`.
pub(super) fn terminate(body: &str, head: &Head<'_>) -> Result<Parsed, Malformed> {
    event(body, head, Transition::Terminating)
}

/// `EC2 Instance-launch Lifecycle Action`.
pub(super) fn launch(body: &str, head: &Head<'_>) -> Result<Parsed, Malformed> {
    event(body, head, Transition::Launching)
}

/// A lifecycle message without an event around it; `direct` when it came straight from the hook.
pub(super) fn bare(body: &str, direct: bool) -> Result<Parsed, Malformed> {
    let action: Action<'_> = root(body)?;
    let transition = action.transition("")?;
    let at = action.time.time(At("", "Time"))?;
    action.notice("", transition, at, direct)
}

fn event(body: &str, head: &Head<'_>, announced: Transition) -> Result<Parsed, Malformed> {
    let action: Action<'_> = detail(body)?;
    let transition = action.transition("detail.")?;
    if transition != announced {
        // Completing a launch as a termination, or the reverse, is worse than doing nothing.
        return Err(At("detail.", "LifecycleTransition").bad("contradicts the detail-type"));
    }
    action.notice("detail.", transition, head.at, false)
}

impl Action<'_> {
    fn transition(&self, within: &'static str) -> Result<Transition, Malformed> {
        let at = At(within, "LifecycleTransition");
        match self.lifecycle_transition.text(at)? {
            TERMINATING => Ok(Transition::Terminating),
            LAUNCHING => Ok(Transition::Launching),
            other => Err(at.bad(format!("{} is not a lifecycle transition", quote(other)))),
        }
    }

    fn notice(
        &self,
        within: &'static str,
        transition: Transition,
        at: Timestamp,
        direct: bool,
    ) -> Result<Parsed, Malformed> {
        let instance = self.instance.instance(At(within, "EC2InstanceId"))?;
        let at_token = At(within, "LifecycleActionToken");
        let token = self.lifecycle_action_token.name(at_token)?.to_owned();
        // The identities of other notices end like this: a forged hook must not match their marks.
        if token.contains('/') || InstanceId::new(&token).is_some() {
            return Err(at_token.bad(format!("{} is not a token", quote(&token))));
        }
        let hook = Hook {
            group: self.auto_scaling_group_name.name(At(within, "AutoScalingGroupName"))?.to_owned(),
            name: self.lifecycle_hook_name.name(At(within, "LifecycleHookName"))?.to_owned(),
            token: Some(token.clone()),
            // Values other than `EC2` and `AutoScalingGroup` come only from groups with a warm pool; older messages have none.
            pool: match (self.origin.get(), self.destination.get()) {
                (_, Some(WARM_POOL)) => Some(WarmPool::To),
                (Some(WARM_POOL), _) => Some(WarmPool::From),
                _ => None,
            },
            replaces_root_volume: self.action.get() == Some(REPLACE_ROOT_VOLUME),
            direct,
        };
        let identity = Identity::Hook { group: hook.group.clone(), hook: hook.name.clone(), token };
        let detail = match transition {
            Transition::Terminating => Detail::AsgTerminate(hook),
            Transition::Launching => Detail::AsgLaunch(hook),
        };
        Ok(Parsed::Notices(Notice::new(identity, instance, NoticeTime::Announced(at), detail).into()))
    }
}
