//! A target group, and how it was found.

use std::fmt;
use std::sync::Arc;

/// A target group and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetGroup {
    /// Its ARN.
    pub arn: Arc<str>,
    /// Its source.
    pub from: Source,
}

/// The source of a target group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A `TargetGroupBinding` of this namespace and name.
    Binding {
        /// Namespace of the binding, of its Service, and of the pods behind that.
        namespace: Box<str>,
        /// Name of the binding.
        name: Box<str>,
        /// Whether its targets are addresses of pods, not instances.
        pods: bool,
    },
    /// The tags of a Service's target group, which the cloud provider has set: the Service, as `NAMESPACE/NAME`.
    Service(Box<str>),
    /// The Auto Scaling group of this name.
    Group(Box<str>),
}

impl Source {
    /// Whether a controller of the cluster deregisters an instance from the target group, too, because the label excludes its Node.
    pub(super) const fn has_controller(&self) -> bool {
        !matches!(self, Self::Group(_))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Binding { namespace, name, .. } => write!(f, "TargetGroupBinding {namespace}/{name}"),
            Self::Service(name) => write!(f, "Service {name}"),
            Self::Group(name) => write!(f, "Auto Scaling group {name}"),
        }
    }
}

/// Returns the target group's name, as people know it; the whole ARN, if it has none.
#[must_use]
pub fn name_of(arn: &str) -> &str {
    arn.split('/').nth(1).unwrap_or(arn)
}
