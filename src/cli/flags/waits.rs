//! The flags of what is waited for before evictions, and between a drain and the hook's completion.

use crate::pipeline::interruption::ForLoadBalancers;
use clap::Args;

/// Waits.
#[derive(Args, Debug)]
pub struct Waits {
    /// Evict this long after the notice's time, but cordon at once; once per kind
    #[arg(long, env = "EBBTIDE_DELAY", value_name = "KIND=DURATION", value_delimiter = ',', help_heading = "Drain")]
    pub delay: Vec<String>,

    /// For the action replace: maximum number of nodes of one Auto Scaling group that are replaced at the same time, or their share of its
    /// desired capacity, at least one [default: 10%]
    #[arg(long, env = "EBBTIDE_MAX_REPLACEMENTS", value_name = "N|P%", help_heading = "Drain")]
    pub max_replacements: Option<String>,

    /// Maximum number of nodes with the same value of this label whose pods are evicted at the same time, or their share of the nodes with
    /// that value, at least one; once per label. Only drains that have time wait: not spot, capacity-reservation and
    /// state-change; without a queue, asg-terminate only with --node-hook or its --drain-timeout
    #[arg(long, env = "EBBTIDE_WAVE", value_name = "LABEL=N|P%", value_delimiter = ',', help_heading = "Drain")]
    pub wave: Vec<String>,

    /// While traffic of one of these resources is shifted away from a zone, drains in other zones that have time wait: the ARN of an EKS
    /// cluster or of a load balancer, or any
    ///
    /// Needs the events of aws.arc-zonal-shift on the queue, and Nodes with the label topology.k8s.aws/zone-id. A shift counts for 6 hours
    /// after its last event.
    #[arg(long, env = "EBBTIDE_ZONAL_SHIFT", value_name = "ARN|any", value_delimiter = ',', help_heading = "Drain")]
    pub zonal_shift: Vec<String>,

    /// Wait for your own controllers, for all kinds or for one: before-drain, at most half of the time; before-completion, until the
    /// deadline; both or none
    ///
    /// The Node carries the annotation ebbtide/hold, with the point's name, until your controller sets ebbtide/release to that name.
    #[arg(long, env = "EBBTIDE_HOLD", value_name = "[KIND=]POINT", value_delimiter = ',', help_heading = "Drain")]
    pub hold: Vec<String>,

    /// Delay a hook's completion after the drain, for load balancers that still send traffic
    #[arg(long, env = "EBBTIDE_COMPLETE_AFTER", value_name = "DURATION", help_heading = "Lifecycle hooks")]
    pub complete_after: Option<String>,

    /// Maximum wait between the drain and a hook's completion for the volumes of the drained pods to be detached; 0s: none
    #[arg(
        long,
        env = "EBBTIDE_WAIT_FOR_VOLUMES",
        value_name = "DURATION",
        default_value = "60s",
        help_heading = "Lifecycle hooks"
    )]
    pub wait_for_volumes: String,

    /// What to do for target groups (ALB, NLB) of an interrupted instance
    ///
    /// Found by the bindings of the AWS Load Balancer Controller and by the instance's Auto Scaling group. All but off also exclude the
    /// node from load balancers.
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
