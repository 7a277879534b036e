//! The target groups of an interrupted instance, and what would be done about them.

use super::reader::Reader;
use super::view::{PodView, TargetGroupView};
use crate::pipeline::event::Notice;
use crate::pipeline::interruption::{Policy, Source, TargetGroup, name_of};

/// The load balancers that no wait knows.
const UNKNOWN: &str = "classic load balancers are not waited for: set --complete-after if a Service has one";

/// Returns the target groups that would be looked at when the drain of these pods begins or ends, and remarks on those that could not be
/// found.
pub(super) async fn of(
    notice: &Notice,
    policy: &Policy,
    pods: &[PodView],
    reader: &Reader<'_>,
) -> (Vec<TargetGroupView>, Vec<String>) {
    let deregisters = policy.deregisters(notice);
    let awaited = policy.touched_hook(notice).is_some() && !policy.awaits_load_balancers().is_zero();
    if !deregisters && !awaited {
        return (Vec::new(), Vec::new());
    }
    let (groups, failures) = reader.target_groups(&notice.instance, notice.hook()).await;
    let view = |group: TargetGroup| {
        let of_pods = match &group.from {
            Source::Binding { namespace, pods: true, .. } => Some(namespace),
            Source::Binding { .. } | Source::Service(_) | Source::Group(_) => None,
        };
        // The addresses of pods are the controller's, and only waited for.
        let counts = of_pods.is_none_or(|namespace| awaited && pods.iter().any(|pod| pod.namespace == **namespace));
        let (name, from) = (name_of(&group.arn).to_owned(), group.from.to_string());
        counts.then(|| TargetGroupView { name, from, deregistered: deregisters && of_pods.is_none(), awaited })
    };
    let failures = failures.iter().map(|failure| format!("target groups could not be found: {failure}"));
    let classic = (awaited && policy.waits.complete_after.is_zero()).then(|| UNKNOWN.to_owned());
    (groups.into_iter().filter_map(view).collect(), failures.chain(classic).collect())
}
