//! Documents that match the code: flags, metrics, alerts, warnings, and the settings of aws-node-termination-handler.

use crate::golden;
use clap::CommandFactory;
use ebbtide::cli::Cli;
use ebbtide::commands::migrate::{Row, Section, convert, table};
use ebbtide::telemetry::Metrics;
use std::collections::{BTreeMap, BTreeSet};

const OPERATING: &str = include_str!("../../../docs/operating.md");
const LOGS: &str = include_str!("../../../docs/logs.md");

/// Returns the words in backticks in the first column of a document's tables, up to the first space or brace.
fn first_column(document: &str) -> BTreeSet<String> {
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split(['`', ' ', '{', '=']).next()).map(str::to_owned).collect()
}

#[test]
fn every_flag_of_simulate_and_of_send_is_described() {
    let page = include_str!("../../../docs/simulate.md");
    let (simulate, rest) = page.split_once("### As JSON").expect("the page must describe JSON");
    let (_, send) = rest.split_once("## Send").expect("the page must describe send");
    let cli = Cli::complete();
    let run = cli.find_subcommand("run").expect("there must be a run");
    for (name, section) in [("simulate", simulate), ("send", send)] {
        let command = cli.find_subcommand(name).expect("there must be such a command");
        // The flags of the service are on a page of their own.
        let shared = |id: &clap::Id| {
            name == "simulate" && id != "help-all" && run.get_arguments().any(|flag| flag.get_id() == id)
        };
        let own = command.get_arguments().filter(|flag| flag.get_id() != "help" && !shared(flag.get_id()));
        let flags: BTreeSet<String> = own
            .map(|flag| {
                flag.get_long().map_or_else(|| flag.get_id().as_str().to_uppercase(), |long| format!("--{long}"))
            })
            .collect();
        assert_eq!(first_column(section), flags, "{name}");
        let takes_all =
            run.get_arguments().all(|flag| command.get_arguments().any(|own| own.get_id() == flag.get_id()));
        assert_eq!(takes_all, name == "simulate", "simulate takes the flags of the service");
    }
}

#[test]
fn every_metric_is_described() {
    let row = |(name, kind, labels): (String, &str, Vec<String>)| {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        format!("| `{name}` | {kind} | {} |", labels.join(", ")).replace("|  |", "| |")
    };
    let metrics: BTreeSet<String> = Metrics::new().described().into_iter().map(row).collect();
    assert!(metrics.len() > 20, "{metrics:?}");
    let lines = include_str!("../../../docs/metrics.md").lines().filter(|line| line.starts_with("| `ebbtide_"));
    let rows = lines.map(|line| line.splitn(5, '|').take(4).collect::<Vec<_>>().join("|") + "|");
    assert_eq!(rows.collect::<BTreeSet<_>>(), metrics);
}

#[test]
fn every_alert_has_its_runbook() {
    let alerts = include_str!("../../../deploy/helm/ebbtide/files/alerts.yaml");
    let names: BTreeSet<&str> =
        alerts.lines().filter_map(|line| line.trim_start().strip_prefix("- alert: ")).map(str::trim).collect();
    assert!(names.len() > 10, "{names:?}");
    let (_, runbook) = OPERATING.split_once("\n## Alerts\n").expect("the page must have the alerts");
    let (runbook, _) = runbook.split_once("\n## ").expect("something follows");
    let sections = runbook.split("\n### ").skip(1).filter_map(|section| section.split_once('\n'));
    let sections: BTreeMap<&str, &str> = sections.collect();
    assert_eq!(sections.keys().copied().collect::<BTreeSet<_>>(), names);
    for (heading, section) in sections {
        let parts = section.lines().filter_map(|line| Some(line.strip_prefix("- **")?.split_once("**")?.0));
        assert_eq!(parts.collect::<Vec<_>>(), ["Impact", "Look", "Do", "If nothing is done", "Undo"], "{heading}");
    }
}

#[test]
fn the_runbook_searches_the_log_for_lines_that_there_are() {
    let searched: Vec<&str> = OPERATING
        .split("`logs \"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .flat_map(|words| words.split('|'))
        .collect();
    assert!(searched.len() > 10, "{searched:?}");
    let log = include_str!("../../../src/telemetry/rows.rs");
    let unknown: Vec<_> = searched.iter().filter(|words| !log.contains(**words)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn every_warning_is_explained() {
    let mut lines = BTreeSet::new();
    // A long call has a line for each argument.
    let words: Vec<&str> = include_str!("../../../src/telemetry/rows.rs").split_whitespace().collect();
    let source = words.join(" ").replace("!( ", "!(");
    for (level, begin) in ["warn!(", "about!(warn,", "on!(warn,", "error!(", "about!(error,", "on!(error,"]
        .into_iter()
        .flat_map(|call| source.match_indices(call).map(move |(at, _)| (call, at + call.len())))
    {
        let level = if level.contains("warn") { "WARN" } else { "ERROR" };
        lines.insert((last_literal(&source[begin..]), level.to_owned()));
    }
    assert!(lines.len() > 20, "{lines:?}");
    let rows = LOGS.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let explained = rows.filter_map(|(text, rest)| Some((text.to_owned(), rest.split_once(' ')?.0.to_owned())));
    assert_eq!(explained.collect::<BTreeSet<_>>(), lines);
}

/// Returns the last string literal of a call, of which `source` is the text after its opening parenthesis.
fn last_literal(source: &str) -> String {
    let (mut depth, mut literal, mut inside) = (1, String::new(), false);
    for char in source.chars() {
        match char {
            '"' => {
                inside = !inside;
                if inside {
                    literal.clear();
                }
            }
            _ if inside => literal.push(char),
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    literal
}

/// Returns the part of a document between a heading and the next one.
fn below<'a>(document: &'a str, heading: &str) -> &'a str {
    let (_, rest) = document.split_once(&format!("\n{heading}\n")).expect("the heading must be there");
    rest.split("\n#").next().unwrap_or_default()
}

const MIGRATING: &str = include_str!("../../../docs/migrating.md");
const MIGRATING_VALUES: &str = include_str!("../../../docs/migrating-values.md");

/// Returns the table of these values. Those with the same replacement and the same remark share a row.
fn table_of(rows: &[Row]) -> String {
    fn is_same(one: &Row, other: &Row) -> bool {
        (&one.ours, &one.remark) == (&other.ours, &other.remark)
    }
    let code = |names: Vec<&String>| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let firsts = rows.iter().enumerate().filter(|(n, row)| !rows[..*n].iter().any(|before| is_same(before, row)));
    firsts
        .map(|(n, first)| {
            let nth = code(rows[n..].iter().filter(|row| is_same(row, first)).map(|row| &row.nth).collect());
            let ours = if first.ours.is_empty() { "none".to_owned() } else { code(first.ours.iter().collect()) };
            format!("| {nth} | {ours} | {} |\n", first.remark).replace("|  |", "| |")
        })
        .collect()
}

/// The document describes each value in the same words as `ebbtide migrate`.
#[test]
fn every_row_of_migrate_is_described() {
    let section = |Section { name, rows, .. }: &Section| {
        format!("### For {name}\n\n| NTH | Ebbtide | |\n| --- | --- | --- |\n{}\n", table_of(rows))
    };
    let text: String = table().sections.iter().map(section).collect();
    golden::part("docs/migrating-values.md", "values of NTH's chart", &text);
}

/// The values that keep NTH's defaults, which `ebbtide migrate` writes without being told.
#[test]
fn every_default_of_nth_that_is_kept_is_named_first() {
    let values = convert("enableSqsTerminationDraining: true").expect("the values must be valid").values;
    let mut parent = String::new();
    let mut kept = BTreeSet::new();
    for line in values.lines().filter(|line| !line.starts_with('#')) {
        let (key, value) = line.split_once(':').expect("a line must have a key");
        if key.starts_with(' ') {
            let value = value.split('#').next().unwrap_or_default();
            kept.insert(format!("`{parent}.{}: {}`", key.trim(), value.trim()));
        } else {
            parent = key.trim_matches('"').to_owned();
        }
    }
    assert!(kept.len() > 3, "{values}");
    let table = below(MIGRATING, "## Behaviour changes to check");
    let rows = table.lines().filter_map(|line| line.strip_suffix(" |")?.rsplit("| ").next());
    assert_eq!(rows.filter(|cell| cell.contains(": ")).map(str::to_owned).collect::<BTreeSet<_>>(), kept);
}

#[test]
fn every_flag_and_metric_of_nth_is_mapped() {
    let names = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let flags = first_column(below(MIGRATING_VALUES, "## Flags"));
    assert_eq!(flags, names(include_str!("../../fixtures/nth/flags.txt")));
    assert_eq!(flags.len(), 57);
    let metrics = below(MIGRATING_VALUES, "## Metrics");
    assert_eq!(first_column(metrics), names(include_str!("../../fixtures/nth/metrics.txt")));
    let ours: BTreeSet<&str> = metrics.split('`').filter(|word| word.starts_with("ebbtide_")).collect();
    let known: Vec<String> = Metrics::new().described().into_iter().map(|(name, ..)| name).collect();
    let unknown: Vec<_> = ours.iter().filter(|name| !known.iter().any(|known| known == *name)).collect();
    assert!(ours.len() > 5 && unknown.is_empty(), "{unknown:?}");
}

/// Our flags that the document names exist.
#[test]
fn every_mapped_setting_exists() {
    let cli = Cli::command();
    let run = cli.find_subcommand("run").expect("there must be a run");
    let flags: BTreeSet<String> =
        run.get_arguments().filter_map(|flag| Some(format!("--{}", flag.get_long()?))).collect();
    let agent = cli.find_subcommand("agent").expect("there must be an agent");
    let of_agent = agent.get_arguments().filter_map(|flag| Some(format!("--{}", flag.get_long()?)));
    let known: BTreeSet<String> = flags.iter().cloned().chain(of_agent).collect();
    let table = below(MIGRATING_VALUES, "## Flags");
    let words = table.split('`').filter(|word| word.starts_with("--") && !word.contains("---"));
    let named: BTreeSet<String> = words.filter_map(|word| word.split(' ').next()).map(str::to_owned).collect();
    assert!(named.len() > 15 && named.is_subset(&known), "{:?}", named.difference(&known));
}
