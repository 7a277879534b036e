//! Prints the results in numbers.

use crate::check::leaked;
use crate::paint::{Paint, Tone};
use crate::plan::Plan;
use crate::storm::at_rest;
use crate::tally::Tally;
use crate::without_queue::Scene;
use ebbtide::fact::{NoticeKind, TaskKind};
use ebbtide::runtime::Tasks;
use ebbtide_sim::World;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Outcomes in the order of the table's columns. Other outcomes follow.
const OUTCOMES: [&str; 6] = ["drained", "cordoned", "blocked", "joined", "not-ours", "ignored"];

/// Calls to the API server for undisturbed drains.
#[derive(Debug, Default)]
pub struct Undisturbed {
    /// Number of drains.
    pub nodes: usize,
    /// Number of patches of their nodes.
    pub patches: usize,
    /// Number of lists of their pods.
    pub lists: usize,
    /// Number of evictions requested.
    pub evictions: usize,
    /// Number of pods to evict.
    pub pods: usize,
}

impl Undisturbed {
    /// Counts the calls.
    pub fn of(plan: &Plan, world: &World) -> Self {
        let members: Vec<_> = plan.nodes.iter().filter(|node| node.part.is_undisturbed()).collect();
        let names: HashSet<&str> = members.iter().map(|node| node.name.as_str()).collect();
        let evicted = world.kube.evictions().into_iter();
        let homes: HashMap<String, String> =
            evicted.map(|pod| (format!("{}/{}", pod.namespace, pod.name), pod.node)).collect();
        let mut counted =
            Self { nodes: members.len(), pods: members.iter().map(|node| node.pods.len()).sum(), ..Self::default() };
        for call in world.calls.all() {
            match call.operation.as_str() {
                "patch nodes" => counted.patches += usize::from(names.contains(&*call.subject)),
                "list pods" => counted.lists += usize::from(names.contains(&*call.subject)),
                "create pods/eviction" => {
                    let home = homes.get(&call.subject);
                    counted.evictions += usize::from(home.is_some_and(|home| names.contains(&**home)));
                }
                _ => {}
            }
        }
        counted
    }
}

/// Returns the whole summary.
pub fn of(
    plan: &Plan,
    world: &World,
    tally: &Tally,
    tasks: &Tasks,
    sent: usize,
    scene: &Scene,
    paint: Paint,
) -> String {
    let head = |text: &str| paint.tone(Tone::Head, text);
    let mut lines = vec![String::new(), head("Results"), String::new()];
    let notices: usize = notices(tally, &mut lines, paint);
    lines.push(String::new());

    let mut line = |what: &str, text: String| lines.push(format!("  {}  {text}", head(&format!("{what:<16}"))));
    let drains = tally.drains();
    line("Drains", listed(drains.iter().map(|(outcome, count)| (*count, *outcome)).collect()).join(", "));
    let evictions = world.kube.evictions().len();
    let daemons = plan.nodes.iter().filter(|node| node.part.drain().is_some()).count();
    line("Pods", format!("{evictions} evicted, {daemons} of the DaemonSet left alone"));
    let waits = tally.waits();
    let waits: Vec<_> = waits.iter().map(|((wait, outcome), count)| format!("{count} {wait} {outcome}")).collect();
    line("Waits", waits.join(", "));
    line(
        "Heartbeats",
        format!(
            "{} sent, {} leaked, {} tasks left",
            world.calls.count("RecordLifecycleActionHeartbeat"),
            leaked(world),
            tasks.alive(TaskKind::Heartbeat)
        ),
    );
    let mut aws: BTreeMap<String, usize> = BTreeMap::new();
    for call in world.calls.all().into_iter().filter(|call| call.service != "kube") {
        *aws.entry(call.operation).or_default() += 1;
    }
    let all: usize = aws.values().sum();
    let aws = listed(aws.iter().map(|(operation, count)| (*count, operation.as_str())).collect());
    line("Calls to AWS", format!("{} for each notice:", per(all, notices)));
    for some in aws.chunks(3) {
        line("", some.join(", "));
    }
    let Undisturbed { nodes, patches, lists, evictions, pods } = Undisturbed::of(plan, world);
    line(
        "Calls to the API",
        format!(
            "for an undisturbed drain {} patch, {} lists, {} evictions for {} pods",
            per(patches, nodes),
            per(lists, nodes),
            per(evictions, nodes),
            per(pods, nodes)
        ),
    );
    let left = world.aws.sqs.visible() + world.aws.sqs.in_flight();
    line("Messages", format!("{sent} sent, {} deleted, {left} left", world.aws.sqs.deleted().len()));
    let works: Vec<_> = TaskKind::ALL.into_iter().filter(|kind| kind.transient()).collect();
    let rest = if at_rest(tasks) { "every gauge is back at 0" } else { "some tasks are still live" };
    let started: u64 = works.iter().map(|kind| tasks.started(*kind)).sum();
    line("Tasks", format!("{started} started; {rest}"));
    let (replicas, calls) = (scene.replicas.len(), scene.world.calls.all().len());
    let to_aws = scene.calls_to_aws().len();
    let drains = scene.tally.drains();
    let drains = listed(drains.iter().map(|(outcome, count)| (*count, *outcome)).collect()).join(", ");
    let calls = format!("{to_aws} calls to AWS and {} to the API", calls - to_aws);
    line("Without a queue", format!("{drains}; {replicas} replicas made {calls}"));
    lines.push(String::new());
    lines.join("\n")
}

/// Adds the table of notices by kind and outcome to `lines`. Returns the number of notices.
fn notices(tally: &Tally, lines: &mut Vec<String>, paint: Paint) -> usize {
    let notices = tally.notices();
    let mut outcomes: Vec<&str> = OUTCOMES.to_vec();
    outcomes.extend(notices.keys().map(|(_, outcome)| *outcome).filter(|outcome| !OUTCOMES.contains(outcome)));
    outcomes.dedup();
    let titles: String = outcomes.iter().map(|outcome| format!("{outcome:>10}")).collect();
    lines.push(paint.tone(Tone::Head, &format!("  {:<20}{titles}", "Notices")));
    for kind in NoticeKind::ALL {
        let mut row = format!("  {:<20}", kind.as_str());
        for outcome in &outcomes {
            let count =
                notices.iter().find(|((of, so), _)| *of == kind.as_str() && so == outcome).map(|(_, count)| *count);
            row += &match count {
                Some(count) if *outcome == "blocked" => paint.tone(Tone::Bad, &format!("{count:>10}")),
                Some(count) => format!("{count:>10}"),
                None => paint.tone(Tone::Faint, &format!("{:>10}", "·")),
            };
        }
        lines.push(row);
    }
    notices.values().sum()
}

/// Formats counts, the highest first.
fn listed(mut all: Vec<(usize, &str)>) -> Vec<String> {
    all.sort_by(|a, b| b.cmp(a));
    all.into_iter().map(|(count, what)| format!("{count} {what}")).collect()
}

fn per(count: usize, of: usize) -> String {
    #[allow(clippy::cast_precision_loss, reason = "counts of a sandbox are small")]
    let ratio = count as f64 / of.max(1) as f64;
    format!("{ratio:.1}")
}
