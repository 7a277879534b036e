//! The flags of what is waited for before evictions, and between a drain and the hook's completion.

use super::values::{MAX_DRAIN, at_most, text, up_to, value, zero_up_to};
use crate::pipeline::interruption::{AtMost, ForLoadBalancers};
use clap::Args;
use clap::builder::BoolishValueParser;
use std::time::Duration;

/// Waits.
#[derive(Args, Clone, Debug)]
pub struct Waits {
    /// Time from a notice to the first eviction, at most 48h and at most half of the time to the deadline; once per kind. The cordon is
    /// immediate
    #[arg(
        long,
        env = "EBBTIDE_DELAY",
        value_parser = text,
        value_name = "KIND=DURATION",
        value_delimiter = ',',
        help_heading = "Drain",
    )]
    pub delay: Vec<String>,

    /// Have an unhealthy node's group terminate it after the drain if it can't launch another first, with `replace` for `node-condition` or
    /// `status-check`
    #[arg(
        long,
        env = "EBBTIDE_TERMINATE_FIRST",
        value_parser = BoolishValueParser::new(),
        help_heading = "Drain"
    )]
    pub terminate_first: bool,

    /// For the actions `replace` and `reboot`: maximum number of nodes of one Auto Scaling group that are replaced at the same time, a number
    /// or a share of its desired capacity, at least one [default: `10%`]
    #[arg(
        long,
        env = "EBBTIDE_MAX_REPLACEMENTS",
        value_parser = value(at_most),
        value_name = "N|P%",
        help_heading = "Drain",
    )]
    pub max_replacements: Option<AtMost>,

    /// Maximum number of nodes with the same value of a label whose pods are evicted at the same time, a number or a share of them, at least
    /// one, such as `topology.kubernetes.io/zone=1`; once per label. Only drains that have time wait [default: no limit]
    ///
    /// `spot`, `capacity-reservation` and `state-change` don't wait; without a queue, `asg-terminate` waits only with `--node-hook` or its
    /// `--drain-timeout`.
    #[arg(
        long,
        env = "EBBTIDE_WAVE",
        value_parser = text,
        value_name = "LABEL=N|P%",
        value_delimiter = ',',
        help_heading = "Drain",
    )]
    pub wave: Vec<String>,

    /// ARNs of EKS clusters or load balancers, or `any`: while traffic of one of them is shifted away from a zone, drains in other zones wait if
    /// they have time
    ///
    /// Needs the events of `aws.arc-zonal-shift` on the queue, and Nodes with the label `topology.k8s.aws/zone-id`. A shift counts for 6 hours
    /// after its last event.
    #[arg(
        long,
        env = "EBBTIDE_ZONAL_SHIFT",
        value_parser = text,
        value_name = "ARN|any",
        value_delimiter = ',',
        help_heading = "Drain",
    )]
    pub zonal_shift: Vec<String>,

    /// Points at which drains wait for your own controllers, for all kinds or for one: `before-drain`, at most half of the time;
    /// `before-completion`, of lifecycle hooks, until the deadline; `both` or `none`
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

    /// Delay between the end of a drain and the completion of its hook, at most 48h, for load balancers that `--wait-for-load-balancers` does
    /// not support: classic ones [default: at once]
    #[arg(
        long,
        env = "EBBTIDE_COMPLETE_AFTER",
        value_parser = value(up_to(MAX_DRAIN)),
        value_name = "DURATION",
        help_heading = "Lifecycle hooks",
    )]
    pub complete_after: Option<Duration>,

    /// Maximum time, at most 48h, for which a hook is kept after its drain until the volumes of the drained pods are detached; `0s`: none
    #[arg(
        long,
        env = "EBBTIDE_WAIT_FOR_VOLUMES",
        value_parser = value(zero_up_to(MAX_DRAIN)),
        value_name = "DURATION",
        default_value = "60s",
        help_heading = "Lifecycle hooks"
    )]
    pub wait_for_volumes: Duration,

    /// What to do about the target groups (ALB, NLB) of an interrupted instance: `wait` completes its hook when none lists the instance any
    /// more; `deregister` also removes the instance from them when its drain starts; `off`
    ///
    /// Found by the bindings of the AWS Load Balancer Controller, by the tags of the cloud provider's Services, and by the instance's Auto
    /// Scaling group. All but `off` also exclude the node from load balancers. The wait is 6 minutes at most, and ends at the deadline.
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
