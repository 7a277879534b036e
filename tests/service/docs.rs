//! The documents stay true: every flag and every metric is described, and nothing is that does not exist.

use clap::CommandFactory;
use ebbtide::cli::Cli;
use ebbtide::fact::Facts;
use ebbtide::fact::metrics::Metrics;
use ebbtide::task::Tasks;
use std::collections::BTreeSet;

/// What stands in backticks in the first column of a document's tables, up to the first space or brace.
fn first_column(document: &str) -> BTreeSet<String> {
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split(['`', ' ', '{', '=']).next()).map(str::to_owned).collect()
}

#[test]
fn every_flag_is_described() {
    let cli = Cli::command();
    let run = cli.find_subcommand("run").expect("there must be a run");
    let flags: BTreeSet<String> = run
        .get_arguments()
        .filter_map(|flag| Some(format!("--{}", flag.get_long()?)))
        .filter(|f| f != "--help")
        .collect();
    let described =
        first_column(include_str!("../../docs/settings.md")).into_iter().filter(|name| name.starts_with("--"));
    assert_eq!(described.collect::<BTreeSet<_>>(), flags);
    for flag in run.get_arguments().filter(|flag| flag.get_id() != "help") {
        let variable = flag.get_env().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let expected = flag.get_id().as_str().to_uppercase();
        assert_eq!(variable, format!("EBBTIDE_{expected}"), "every flag has its variable");
        assert!(include_str!("../../docs/settings.md").contains(&variable), "{variable}");
    }
}

#[test]
fn every_metric_is_described() {
    let metrics = Metrics::new();
    let names: BTreeSet<String> = metrics.names().into_iter().filter(|name| name.starts_with("ebbtide_")).collect();
    assert!(names.len() > 20, "{names:?}");
    let described: BTreeSet<String> = first_column(include_str!("../../docs/metrics.md"))
        .into_iter()
        .filter(|name| name.starts_with("ebbtide_"))
        .collect();
    assert_eq!(described, names);
}

#[tokio::test]
async fn metrics_are_what_prometheus_reads() {
    let metrics = Metrics::new();
    let text = metrics.render(&Tasks::new(Facts::to(Vec::new())));
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (_, value) = line.rsplit_once(' ').expect("a sample must have a value");
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
    for wanted in ["ebbtide_tasks{kind=\"heartbeat\"} 0", "ebbtide_runtime_workers ", "process_resident_memory_bytes "]
    {
        assert!(text.contains(wanted), "{wanted} is missing");
    }
}
