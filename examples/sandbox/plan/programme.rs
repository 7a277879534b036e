//! Describes the plan in words.

use super::{NEW, OTHER, Part, Plan};
use crate::paint::{Paint, Tone};
use crate::storm;
use ebbtide_sim::messages::Wrapping;

impl Part {
    /// Describes what will happen to the node.
    fn told(self) -> String {
        match self {
            Self::Terminated(Wrapping::Event) => "terminated by its Auto Scaling group (by way of EventBridge)".to_owned(),
            Self::Terminated(Wrapping::Sns) => "terminated by its group (by way of EventBridge and SNS)".to_owned(),
            Self::Terminated(Wrapping::Bare) => "terminated by its group (straight from the hook)".to_owned(),
            Self::HeldBack => format!(
                "terminated by its group (by way of EventBridge and SNS); a budget holds a pod back, and is lifted after {} s",
                storm::LIFTED.as_secs()
            ),
            Self::Stuck => {
                "terminated by its group (straight from the hook); nobody lifts the budget: this drain must fail, 17 s after its notice".to_owned()
            }
            Self::Doomed => format!(
                "spot interruption, read {} s before its end; nobody lifts the budget: the pod is deleted in time",
                storm::LEFT.as_secs()
            ),
            Self::Redelivered => "spot interruption; the warning comes twice".to_owned(),
            Self::Twofold => "spot interruption, and terminated by its group: two notices, one drain".to_owned(),
            Self::Spot => "spot interruption".to_owned(),
            Self::Rebalanced => "rebalance recommendation: cordoned, and its pods stay".to_owned(),
            Self::Stopping => "stopped by somebody".to_owned(),
            Self::Maintained => "scheduled maintenance: three instances in one Health event".to_owned(),
            Self::Reclaimed => "taken back by its capacity reservation".to_owned(),
            Self::Spared => "nothing: it must stay as it is".to_owned(),
        }
    }
}

impl Plan {
    /// Describes the cluster and what will happen to it.
    pub fn programme(&self, settings: &[&str], paint: Paint) -> String {
        let pods: usize =
            self.nodes.iter().map(|node| 1 + node.pods.len() + usize::from(node.part.budget().is_some())).sum();
        let mut lines = vec![
            paint.tone(Tone::Head, &format!("Ebbtide's sandbox: {} nodes, {pods} pods, one queue", self.nodes.len())),
            "Simulated on loopback ports: the API server, SQS, Auto Scaling, EC2. Real: the service, its clients, HTTP, the time.".to_owned(),
            format!("Settings: {}. It takes half a minute; Ctrl-C ends it in order.", settings.join(" ")),
            String::new(),
            paint.tone(Tone::Head, "What is going to happen"),
        ];
        let width = self.width();
        let mut line = |who: &str, what: &str| lines.push(format!("  {who:<width$}  {what}"));
        let mut told = self.told().chunk_by(|a, b| a.part == b.part);
        for nodes in &mut told {
            let [first, rest @ ..] = nodes else { continue };
            line(&first.name, &first.part.told());
            for node in rest {
                line(&node.name, "  \"");
            }
        }
        if let (true, Some(last)) = (self.is_large(), self.nodes.last()) {
            let others = self.nodes.len() - self.told().len();
            line(
                "…",
                &format!("and {others} more nodes, to {}, meet the same kinds of notice, undisturbed", last.name),
            );
        }
        line(OTHER.0, "another cluster's instance, whose hook must not be touched");
        line(NEW.0, "an instance that is launched; by default that is none of Ebbtide's business");
        line("queue", "a message that can't be read, and Auto Scaling's test message");
        lines.push(String::new());
        lines.push(paint.tone(Tone::Head, "What happens"));
        lines.join("\n")
    }

    /// Width of the column of names.
    pub fn width(&self) -> usize {
        let names = self.nodes.iter().map(|node| node.name.len());
        names.chain([OTHER.0.len(), NEW.0.len(), "ebbtide".len(), "sandbox".len()]).max().unwrap_or(0)
    }
}
