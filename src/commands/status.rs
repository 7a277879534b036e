//! `ebbtide status`: what the replicas are doing, in a terminal.

mod read;
mod table;

use crate::cli::answer::Answer;
use crate::cli::flags::status::Status;
use crate::cli::text::clean;
use crate::commands::cluster::chosen;
use crate::telemetry::history::report::{Report, State};
use read::Source;
use std::io::{IsTerminal, Write, stdout};
use std::time::Duration;
use table::Form;
use tokio::time::{MissedTickBehavior, interval};

/// Interval of `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Exit code if something is blocked, or has failed in the last hour, or a replica does not answer.
const TROUBLE: u8 = 3;

/// Shows the status once, or until Ctrl-C.
pub async fn status(mut flags: Status) -> Answer {
    let cluster = chosen(std::mem::take(&mut flags.cluster));
    let source = match Source::of(&flags, &cluster).await {
        Ok(source) => source,
        Err(error) if error.is_wrong_input() => return Answer::wrong(&error),
        Err(error) => return Answer::failed(&error),
    };
    if flags.watch {
        return watch(&source, flags.all).await;
    }
    match source.read().await {
        Ok(report) => answer(&report, &flags),
        Err(error) => Answer::failed(&error),
    }
}

fn answer(report: &Report, flags: &Status) -> Answer {
    let output = flags.output.of(report, || table::of(report, form(flags.all)));
    Answer { code: code(report), ..Answer::well(output) }
}

/// Shows the status again and again: on a terminal in place, elsewhere a line for each change of its first line.
async fn watch(source: &Source, all: bool) -> Answer {
    let in_place = stdout().is_terminal();
    let mut ticks = interval(WATCH_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = String::new();
    loop {
        let read = tokio::select! {
            _ = tokio::signal::ctrl_c() => return Answer::default(),
            read = async { ticks.tick().await; source.read().await } => read,
        };
        let text = match (read, in_place) {
            (Ok(report), true) => first_lines(table::of(&report, form(all)), height()),
            (Ok(report), false) => table::headline(&report, false) + "\n",
            // A replica may be restarting.
            (Err(error), _) => format!("{}\n", clean(&error.to_string())),
        };
        if !in_place && text == last {
            continue;
        }
        // Homes the cursor, and clears what an older picture has left: no flicker.
        let shown = if in_place { format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n")) } else { text.clone() };
        let mut out = stdout();
        if let Err(error) = out.write_all(shown.as_bytes()).and_then(|()| out.flush()) {
            return Answer::failed(&format!("the output can't be written: {error}"));
        }
        last = text;
    }
}

fn code(report: &Report) -> u8 {
    match report.health.state {
        State::Blocked | State::Failed => TROUBLE,
        // A silent replica may have any problem.
        _ if report.health.basis.silent > 0 => TROUBLE,
        State::Ok | State::Working | State::Unready => 0,
    }
}

#[allow(clippy::disallowed_methods, reason = "NO_COLOR is a convention of all programs, not a setting of Ebbtide")]
fn form(all: bool) -> Form {
    let is_terminal = stdout().is_terminal();
    // Output into a pipe is searched: nothing is cut.
    let width = terminal_size::terminal_size().filter(|_| is_terminal);
    let width = width.map_or(usize::MAX, |(width, _)| usize::from(width.0));
    let colours = is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    Form { width, colours, all }
}

/// Number of lines of the terminal.
fn height() -> usize {
    terminal_size::terminal_size().map_or(usize::MAX, |(_, height)| usize::from(height.0))
}

/// Returns as many lines as fit: what is above the first line of the terminal can't be overwritten.
fn first_lines(text: String, height: usize) -> String {
    let lines = text.lines().count();
    if lines < height {
        return text;
    }
    let shown = height.saturating_sub(2);
    let first: String = text.split_inclusive('\n').take(shown).collect();
    format!("{first}… and {} more lines", lines - shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_shows_what_fits() {
        assert_eq!(first_lines("a\nb\n".to_owned(), 3), "a\nb\n");
        assert_eq!(first_lines("a\nb\nc\n".to_owned(), 3), "a\n… and 2 more lines");
        assert_eq!(first_lines("a\n".to_owned(), 0), "… and 1 more lines");
    }
}
