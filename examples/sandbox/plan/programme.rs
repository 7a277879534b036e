//! Describes the plan in words.

use super::{NEW, OTHER, Part, Plan, QUEUELESS};
use crate::paint::{Paint, Tone};
use crate::storm;
use ebbtide_sim::messages::Wrapping;

impl Part {
    /// Describes what will happen to the node.
    fn description(self) -> String {
        match self {
            Self::Terminated(Wrapping::Event) => "terminated by its Auto Scaling group (through EventBridge)".to_owned(),
            Self::Terminated(Wrapping::Sns) => "terminated by its group (through EventBridge and SNS)".to_owned(),
            Self::Terminated(Wrapping::Bare) => "terminated by its group (directly from the hook)".to_owned(),
            Self::HeldBack => format!(
                "terminated by its group (through EventBridge and SNS); a budget blocks a pod, and is opened after {} s",
                storm::OPENED.as_secs()
            ),
            Self::Stuck => {
                "terminated by its group (directly from the hook); the budget stays closed: this drain must fail, 17 s after its notice".to_owned()
            }
            Self::Doomed => format!(
                "spot interruption, read {} s before its end; the budget stays closed: the pod is deleted in time",
                storm::LEFT.as_secs()
            ),
            Self::Redelivered => "spot interruption; the warning arrives twice".to_owned(),
            Self::Twofold => "spot interruption, and terminated by its group: two notices, one drain".to_owned(),
            Self::Spot => "spot interruption".to_owned(),
            Self::Rebalanced => "rebalance recommendation: cordoned, its pods stay".to_owned(),
            Self::Attached => format!(
                "terminated by its group; a volume is detached {} s after its pod's end, and the hook waits",
                super::DETACHED.as_secs()
            ),
            Self::Balanced => format!(
                "terminated by its group; it is deregistered from its target group, whose connections end after {} s",
                super::DRAINING.as_secs()
            ),
            Self::Stopping => format!(
                "stopped by a user; held until a controller releases it, {} s later",
                storm::RELEASED.as_secs()
            ),
            Self::Maintained => "scheduled maintenance: three instances in one Health event".to_owned(),
            Self::Reclaimed => "reclaimed by its capacity reservation".to_owned(),
            Self::Announced => "spot interruption, announced by Ebbtide's agent on the Node: no message comes".to_owned(),
            Self::Spared => "no notice: must stay unchanged".to_owned(),
        }
    }
}

impl Plan {
    /// Describes the cluster and what will happen to it.
    pub fn programme(&self, settings: &[&str], paint: Paint) -> String {
        let pods: usize = self.nodes.iter().map(|node| 1 + node.pods.len() + node.part.special_pods()).sum();
        let mut lines = vec![
            paint.tone(Tone::Head, &format!("Ebbtide's sandbox: {} nodes, {pods} pods, one queue", self.nodes.len())),
            "Simulated on loopback ports: the API server, SQS, Auto Scaling, EC2, load balancers. Real: the service, its clients, HTTP, the time.".to_owned(),
            format!("Settings: {}. It takes half a minute; Ctrl-C stops it gracefully.", settings.join(" ")),
            String::new(),
            paint.tone(Tone::Head, "Plan"),
        ];
        let width = self.width();
        let mut line = |who: &str, what: &str| lines.push(format!("  {who:<width$}  {what}"));
        let mut shown = self.shown().chunk_by(|a, b| a.part == b.part);
        for nodes in &mut shown {
            let [first, rest @ ..] = nodes else { continue };
            line(&first.name, &first.part.description());
            for node in rest {
                line(&node.name, "  \"");
            }
        }
        if let (true, Some(last)) = (self.is_large(), self.nodes.last()) {
            let others = self.nodes.len() - self.shown().len();
            line(
                "…",
                &format!("and {others} more nodes, to {}, get the same kinds of notices, undisturbed", last.name),
            );
        }
        line(OTHER.0, "another cluster's instance, whose hook must not be touched");
        line(NEW.0, "a launched instance, which Ebbtide ignores by default");
        line("queue", "a message that can't be read, and Auto Scaling's test message");
        line(QUEUELESS.0, "after the storm, without a queue: spot interruption, announced on the Node to two replicas");
        lines.push(String::new());
        lines.push(paint.tone(Tone::Head, "Progress"));
        lines.join("\n")
    }

    /// Width of the column of names.
    pub fn width(&self) -> usize {
        let names = self.nodes.iter().map(|node| node.name.len());
        let others = [OTHER.0, NEW.0, QUEUELESS.0, "ebbtide", "sandbox"].map(str::len);
        names.chain(others).max().unwrap_or(0)
    }
}
