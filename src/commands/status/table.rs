//! A report as a table: what runs, what has ended, storms, replicas. Pure.
//!
//! Names come from the cluster, and are hostile: control characters would steer the terminal, so they are shown as `?`.

use crate::cli::text::{clean, wrapped};
use crate::fact::MIN_BLOCKED_TIME;
use crate::runtime::duration::Words;
use crate::telemetry::history::report::{Drain, ELSEWHERE, Interruption, MARKED, Report, State};
use jiff::{SignedDuration, Timestamp};
use std::fmt::Write;
use std::time::Duration;

/// Time for which ended interruptions are shown.
const RECENT: SignedDuration = SignedDuration::from_hours(1);

/// Number of ended interruptions that are shown, unless all are.
const MAX_ENDED: usize = 20;

/// Number of blocked drains that are shown in full.
const MAX_BLOCKED: usize = 3;

/// Width to which the last column is cut before others are.
const MIN_LAST: usize = 16;

/// How a table is shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// Number of columns of the terminal.
    pub width: usize,
    /// Whether words may have colours.
    pub colours: bool,
    /// Whether all ended interruptions are shown.
    pub all: bool,
}

/// Returns the report as text.
pub(super) fn of(report: &Report, form: Form) -> String {
    let mut text = headline(report, form.colours) + "\n";
    let now = report.time;
    text.push_str(&summary(report));
    let (ended, mut running): (Vec<_>, Vec<_>) = report.interruptions.iter().partition(|row| row.ended.is_some());
    let all = running.len();
    running.retain(|row| form.all || row.phase != MARKED);
    let over = all - running.len();
    running.sort_by_key(|row| (blocked(row, now).is_none(), deadline(row)));
    let rows = running.iter().map(|row| of_running(row, now));
    push(&mut text, "", ["NODE", "KIND", "LEFT", "PODS", "STATE", "WHY"], rows, form.width);
    if over > 0 {
        // Writing to a String can't fail.
        let _ = writeln!(text, "\n{over} on nodes that stay cordoned after their drains; --all shows them");
    }
    push_blocked(&mut text, &running, now, form.width);

    let is_shown =
        |row: &&&Interruption| form.all || row.ended.as_ref().is_some_and(|end| now.duration_since(end.at) <= RECENT);
    let recent = ended.iter().filter(is_shown);
    let number = recent.clone().count();
    let shown = recent.take(if form.all { usize::MAX } else { MAX_ENDED }).map(|row| of_ended(row, now));
    let title = if form.all { "ended" } else { "ended in the last hour" };
    push(&mut text, title, ["NODE", "KIND", "AGO", "TOOK", "OUTCOME", "REPORT"], shown, form.width);
    if !form.all && number > MAX_ENDED {
        // Writing to a String can't fail.
        let _ = writeln!(text, "and {} more; --all shows them", number - MAX_ENDED);
    }

    let storms = report.storms.iter().map(|storm| {
        let state = if storm.until.is_some() { "ended" } else { "running" };
        let failed = storm.failures.iter().map(|failure| format!("{} ({})", failure.node, failure.outcome));
        let mut failed = failed.collect::<Vec<_>>().join(", ");
        if storm.failures_more > 0 {
            let _ = write!(failed, " and {} more", storm.failures_more);
        }
        let number = |number: usize| number.to_string();
        let ago = ago(storm.since, now);
        [ago, state.to_owned(), number(storm.notices), number(storm.in_time), number(storm.failed), failed]
    });
    push(&mut text, "storms", ["AGO", "STATE", "NOTICES", "IN TIME", "FAILED", "FAILURES"], storms, form.width);

    let several = report.replicas.len() > 1;
    let replicas = report.replicas.iter().filter(|_| several).map(|replica| {
        let state = match (replica.ready, &replica.silent) {
            (_, Some(_)) => "silent",
            (Some(true), None) => "ready",
            _ => "not ready",
        };
        let queue = replica.queue.as_ref();
        let number = |number: Option<usize>| number.map(|number| number.to_string()).unwrap_or_default();
        let why = replica
            .silent
            .clone()
            .or_else(|| queue?.failing.as_ref().map(|category| format!("the queue can't be read ({category})")));
        [
            replica.name.clone(),
            state.to_owned(),
            replica.started.map(|at| ago(at, now)).unwrap_or_default(),
            number(replica.nodes),
            number(queue.map(|queue| queue.held)),
            why.unwrap_or_default(),
        ]
    });
    push(&mut text, "replicas", ["REPLICA", "STATE", "AGE", "NODES", "MESSAGES", "WHY"], replicas, form.width);
    text
}

/// Returns a line on the replicas and the queue.
fn summary(report: &Report) -> String {
    let counted = |number: usize, noun: &str| format!("{number} {noun}{}", if number == 1 { "" } else { "s" });
    let queues = report.replicas.iter().filter_map(|replica| replica.queue.as_ref());
    let held = queues.clone().map(|queue| queue.held).sum();
    let oldest = queues.filter_map(|queue| queue.oldest_seconds).fold(0.0, f64::max);
    let oldest = match (held, Duration::try_from_secs_f64(oldest.floor())) {
        (1.., Ok(oldest)) if oldest > Duration::ZERO => {
            format!(", received {} after they were sent at most", Words(oldest))
        }
        _ => String::new(),
    };
    let nodes = report.replicas.iter().filter_map(|replica| replica.nodes).max().unwrap_or(0);
    let replicas = counted(report.replicas.len(), "replica");
    format!("{replicas}, {}; {} held{oldest}\n", counted(nodes, "node"), counted(held, "message"))
}

/// Appends what holds pods back, in full, and what to do.
fn push_blocked(text: &mut String, running: &[&Interruption], now: Timestamp, width: usize) {
    let held = running.iter().filter_map(|row| Some((row, blocked(row, now)?.blocked.first()?)));
    let number = held.clone().count();
    if number > 0 {
        text.push_str("\nblocked\n");
    }
    for (row, pod) in held.take(MAX_BLOCKED) {
        let sentence = format!("{}: {} is held back: {}", name(row), pod.pod, pod.by);
        for line in wrapped(&clean(&sentence), width)
            .into_iter()
            .chain(wrapped(&clean(&pod.advice), width.saturating_sub(2)).into_iter().map(|line| format!("  {line}")))
        {
            text.push_str(&line);
            text.push('\n');
        }
    }
    if number > MAX_BLOCKED {
        // Writing to a String can't fail.
        let _ = writeln!(text, "and {} more", number - MAX_BLOCKED);
    }
}

/// Returns the first line: is all well?
pub(super) fn headline(report: &Report, colours: bool) -> String {
    let (word, colour) = match report.health.state {
        State::Ok => ("ok", "32"),
        State::Working => ("working", "36"),
        State::Unready => ("not ready", "33"),
        State::Failed => ("failed", "31"),
        State::Blocked => ("blocked", "31"),
    };
    let text = clean(&report.health.text);
    let dry_run = if report.dry_run { " This is a dry run." } else { "" };
    if colours { format!("\x1b[1;{colour}m{word}\x1b[0m: {text}{dry_run}") } else { format!("{word}: {text}{dry_run}") }
}

fn of_running(row: &Interruption, now: Timestamp) -> [String; 6] {
    let left = match deadline(row) {
        Some(at) if at > now => words(at.duration_since(now)),
        Some(_) => "over".to_owned(),
        None => String::new(),
    };
    let (gone, pods) = row.drains.iter().fold((0, 0), |(gone, pods), drain| (gone + drain.gone, pods + drain.pods));
    let pods = if row.drains.is_empty() { String::new() } else { format!("{gone}/{pods}") };
    let blocked = blocked(row, now);
    let is_blocked = blocked.is_some() || row.is_recorded() && row.problem.is_some();
    let state = if is_blocked { "blocked" } else { &row.phase };
    let more = |drain: &Drain| match drain.blocked.len() - 1 + drain.blocked_more {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let held = blocked.and_then(|drain| {
        Some(format!("{}: {}{}", drain.blocked.first()?.pod, drain.blocked.first()?.by, more(drain)))
    });
    let waits = || {
        let waits: Vec<_> = row.waits.iter().map(|wait| format!("{}: {}", wait.wait, wait.reason)).collect();
        Some(waits.join("; ")).filter(|waits| !waits.is_empty())
    };
    let recorded = || match &*row.phase {
        ELSEWHERE => Some("another replica acts on it, or did".to_owned()),
        MARKED => Some("acted on earlier; its node stays cordoned".to_owned()),
        _ => None,
    };
    let why = held.or_else(|| row.problem.clone()).or_else(waits).or_else(recorded).unwrap_or_default();
    [name(row), row.kind.clone(), left, pods, state.to_owned(), why]
}

fn of_ended(row: &Interruption, now: Timestamp) -> [String; 6] {
    let Some(end) = &row.ended else { return Default::default() };
    let took = words(end.at.duration_since(row.since));
    let report = [&end.report, &end.waited].map(String::as_str).into_iter().filter(|text| !text.is_empty());
    let report = report.collect::<Vec<_>>().join("; ");
    [name(row), row.kind.clone(), ago(end.at, now), took, end.outcome.clone(), report]
}

fn name(row: &Interruption) -> String {
    row.node.as_ref().unwrap_or(&row.instance).clone()
}

/// Returns the drain that has been held back for some seconds, if one has: most budgets allow an eviction soon.
fn blocked(row: &Interruption, now: Timestamp) -> Option<&Drain> {
    let is_old =
        |since: Timestamp| Duration::try_from(now.duration_since(since)).is_ok_and(|held| held >= MIN_BLOCKED_TIME);
    row.drains.iter().find(|drain| drain.blocked.iter().any(|pod| is_old(pod.since)))
}

/// Returns the deadline: that of the drain, which may have moved, or else that of the notice.
fn deadline(row: &Interruption) -> Option<Timestamp> {
    let running = row.drains.iter().filter(|drain| drain.outcome.is_none());
    running.map(|drain| drain.deadline).min().or(row.deadline)
}

fn ago(at: Timestamp, now: Timestamp) -> String {
    words(now.duration_since(at))
}

/// Returns a duration in whole seconds; from an hour on in whole minutes.
fn words(duration: SignedDuration) -> String {
    let seconds = u64::try_from(duration.as_secs()).unwrap_or(0);
    let shown = if seconds >= 3600 { seconds / 60 * 60 } else { seconds };
    Words(Duration::from_secs(shown)).to_string()
}

/// Appends a title and a table, if it has rows. Each column is as wide as its widest cell, as far as the line has room.
fn push<const N: usize>(
    text: &mut String,
    title: &str,
    heads: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
    width: usize,
) {
    let rows: Vec<[String; N]> = rows.map(|row| row.map(|cell| clean(&cell))).collect();
    if rows.is_empty() {
        return;
    }
    text.push('\n');
    if !title.is_empty() {
        text.push_str(title);
        text.push('\n');
    }
    let heads = heads.map(str::to_owned);
    let all = || std::iter::once(&heads).chain(&rows);
    let widest = |column: usize| all().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let mut widths: [usize; N] = std::array::from_fn(widest);
    // The last column gives way first, then the widest.
    let mut over = (widths.iter().sum::<usize>() + 2 * (N - 1)).saturating_sub(width);
    while over > 0 {
        let last = widths[N - 1];
        let place = (0..N).max_by_key(|place| widths[*place]).filter(|_| last <= MIN_LAST).unwrap_or(N - 1);
        if widths[place] <= 1 {
            break;
        }
        widths[place] -= 1;
        over -= 1;
    }
    for row in all() {
        let cells = row.iter().zip(widths).map(|(cell, width)| {
            let cut: String = if cell.chars().count() > width {
                cell.chars().take(width.saturating_sub(1)).chain(['…']).collect()
            } else {
                cell.clone()
            };
            format!("{cut:<width$}")
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
}

#[cfg(test)]
mod tests;
