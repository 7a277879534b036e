//! The words of lifecycle hooks.

use std::fmt;

labels! {
    /// A hook that was not completed.
    HookFailure {
        /// It is left to its own timeout.
        Left => "left",
        /// The completion failed, and is retried.
        Retried => "retried",
        /// The completion failed for good.
        Failed => "failed",
        /// The Node reports its termination, but its instance waits at no hook of the configured name.
        NotFound => "not-found",
    }
}

/// Why an instance waits at no lifecycle hook of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookLack {
    /// No Auto Scaling group of the region has it.
    NoGroup,
    /// Its group of this name has no such hook.
    NoHook {
        /// The group.
        group: String,
        /// The terminating hooks that it has.
        others: Vec<String>,
    },
    /// Its group of this name has no such hook, but this one, which the settings leave to others.
    LeftToOthers {
        /// The group.
        group: String,
        /// The hook.
        hook: String,
    },
    /// Its group of this name has it wait at another hook.
    Elsewhere(String),
    /// The right to see where it is, is missing.
    Unseen,
    /// Its group shows it in this state, in which it waits no more.
    Over(String),
}

impl HookLack {
    /// Whether this is expected, so that no user has to act.
    #[must_use]
    pub const fn is_usual(&self) -> bool {
        matches!(self, Self::Over(_) | Self::LeftToOthers { .. })
    }
}

impl fmt::Display for HookLack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoGroup => f.write_str("the instance is in no Auto Scaling group of this region"),
            Self::NoHook { group, others } if others.is_empty() => write!(f, "group {group} has no terminating hook"),
            Self::NoHook { group, others } => {
                write!(f, "group {group} has no hook of this name, but {}", others.join(", "))
            }
            Self::LeftToOthers { group, hook } => write!(f, "others complete the hook {hook} of group {group}"),
            Self::Elsewhere(group) => write!(f, "the instance waits at another hook of group {group}, or at none"),
            Self::Unseen => f.write_str("Auto Scaling does not let us see where the instance is"),
            Self::Over(state) => write!(f, "Auto Scaling shows the instance as {state}"),
        }
    }
}
