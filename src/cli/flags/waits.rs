//! The flags of what is waited for before evictions, and between a drain and the hook's completion.

use super::values::{MAX_DRAIN, at_most, text, up_to, value, zero_up_to};
use crate::pipeline::interruption::{AtMost, ForLoadBalancers};
use clap::Args;
use std::time::Duration;

/// Waits.
#[derive(Args, Debug)]
pub struct Waits {
    /// Evict this long after the notice's time, at most 48h and at the latest halfway to the deadline, but cordon at once; once per kind
    #[arg(
        long,
        env = "EBBTIDE_DELAY",
        value_parser = text,
        value_name = "KIND=DURATION",
        value_delimiter = ',',
        help_heading = "Drain",
    )]
    pub delay: Vec<String>,

    /// For the action `replace`: nodes of one Auto Scaling group that are replaced at the same time, a number or a share of its desired capacity,
    /// at least one [default: `10%`]
    #[arg(
        long,
        env = "EBBTIDE_MAX_REPLACEMENTS",
        value_parser = value(at_most),
        value_name = "N|P%",
        help_heading = "Drain",
    )]
    pub max_replacements: Option<AtMost>,

    /// Nodes with the same value of a label whose pods are evicted at the same time, a number or a share of them, at least one, such as
    /// `topology.kubernetes.io/zone=1`; once per label. Only drains that have time wait [default: no limit]
    ///
    /// Not `spot`, `capacity-reservation` and `state-change`; without a queue, `asg-terminate` only with `--node-hook` or its `--drain-timeout`.
    #[arg(
        long,
        env = "EBBTIDE_WAVE",
        value_parser = text,
        value_name = "LABEL=N|P%",
        value_delimiter = ',',
        help_heading = "Drain",
    )]
    pub wave: Vec<String>,

    /// While traffic of one of these resources is shifted away from a zone, drains in other zones that have time wait: ARNs of EKS clusters or
    /// load balancers, or `any`
    ///
    /// Needs the events of `aws.arc-zonal-shift` on the queue, and Nodes with the label `topology.k8s.aws/zone-id`. A shift counts for 6 hours after
    /// its last event.
    #[arg(
        long,
        env = "EBBTIDE_ZONAL_SHIFT",
        value_parser = text,
        value_name = "ARN|any",
        value_delimiter = ',',
        help_heading = "Drain",
    )]
    pub zonal_shift: Vec<String>,

    /// Wait for your own controllers, for all kinds or for one: `before-drain`, at most half of the time; `before-completion`, of lifecycle
    /// hooks, until the deadline; `both` or `none`
    ///
    /// The Node carries the annotation `ebbtide/hold`, with the point's name, until your controller sets `ebbtide/release` to that name.
    #[arg(
        long,
        env = "EBBTIDE_HOLD",
        value_parser = text,
        value_name = "[KIND=]POINT",
        value_delimiter = ',',
        help_heading = "Drain",
    )]
    pub hold: Vec<String>,

    /// Delay of a hook's completion after a drain, at most 48h, for load balancers that `--wait-for-load-balancers` does not know [default: at once]
    #[arg(
        long,
        env = "EBBTIDE_COMPLETE_AFTER",
        value_parser = value(up_to(MAX_DRAIN)),
        value_name = "DURATION",
        help_heading = "Lifecycle hooks",
    )]
    pub complete_after: Option<Duration>,

    /// Maximum wait between a drain and its hook's completion for the volumes of the drained pods to be detached, at most 48h; `0s`: none
    #[arg(
        long,
        env = "EBBTIDE_WAIT_FOR_VOLUMES",
        value_parser = value(zero_up_to(MAX_DRAIN)),
        value_name = "DURATION",
        default_value = "60s",
        help_heading = "Lifecycle hooks"
    )]
    pub wait_for_volumes: Duration,

    /// Target groups (ALB, NLB) of an interrupted instance: `wait` completes its hook when none lists it any more; `deregister` also removes it
    /// from them when its drain starts; `off`
    ///
    /// Found by the bindings of the AWS Load Balancer Controller and by the instance's Auto Scaling group. All but `off` also exclude the node from
    /// load balancers. The wait is 6 minutes at most, and ends at the deadline.
    #[arg(
        long,
        env = "EBBTIDE_WAIT_FOR_LOAD_BALANCERS",
        value_enum,
        value_name = "WHAT",
        default_value = "off",
        help_heading = "Lifecycle hooks"
    )]
    pub wait_for_load_balancers: ForLoadBalancers,
}
