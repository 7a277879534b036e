//! What is derived from the flags of `ebbtide run`: the tables of docs/settings.md, and the flags as data for the chart's schema and tests.

use crate::golden;
use clap::{Arg, ArgAction, CommandFactory};
use ebbtide::cli::{Cli, PoolFlag};
use ebbtide::fact::{Action, NoticeKind};
use serde_json::{Value, json};

const PAGE: &str = include_str!("../../../docs/settings.md");

/// One flag, as its declaration describes it.
struct Flag {
    name: String,
    heading: String,
    /// What it means, in Markdown: a sentence, then the details.
    meaning: String,
    /// The default in words, where the declaration has some.
    default: Option<String>,
    arg: Arg,
}

impl Flag {
    fn of(arg: &Arg) -> Self {
        let text = |help: Option<&clap::builder::StyledStr>| help.map(ToString::to_string).unwrap_or_default();
        let (short, long) = (text(arg.get_help()), text(arg.get_long_help()));
        let details = long.split_once("\n\n").map(|(_, details)| format!(" {}", details.replace("\n\n", " ")));
        let (sentence, default) = match short.trim_end_matches(']').split_once(" [default: ") {
            Some((sentence, default)) => (sentence, Some(default.to_owned())),
            None => (short.as_str(), None),
        };
        Self {
            name: arg.get_long().expect("each has a long name").to_owned(),
            heading: arg.get_help_heading().unwrap_or_default().to_owned(),
            meaning: format!("{sentence}.{}", details.unwrap_or_default()),
            default,
            arg: arg.clone(),
        }
    }

    fn is_switch(&self) -> bool {
        matches!(self.arg.get_action(), ArgAction::SetTrue)
            || self.defaults().first().is_some_and(|value| ["true", "false"].contains(&value.as_str()))
    }

    fn defaults(&self) -> Vec<String> {
        self.arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect()
    }

    fn default(&self) -> String {
        let given: Vec<String> = self.defaults().iter().map(|value| format!("`{value}`")).collect();
        match &self.default {
            Some(words) => words.clone(),
            None if self.is_switch() && given != ["`true`"] => "`false`".to_owned(),
            None if given.is_empty() => "none".to_owned(),
            None => given.join(", "),
        }
    }

    /// Its name among the chart's values.
    fn value(&self) -> Option<String> {
        let name = self.name.as_str();
        Some(match name {
            "queue-url" => "queueUrl".to_owned(),
            "on" => "actions".to_owned(),
            "pool" => "pools".to_owned(),
            "otlp-endpoint" => "traces.endpoint".to_owned(),
            "otlp-header" => "traces.secretKeys.headers".to_owned(),
            "notify" => "notifications.phases".to_owned(),
            "notify-url" => "notifications.secretKeys.url".to_owned(),
            "notify-header" => "notifications.secretKeys.headers".to_owned(),
            "notify-secret" => "notifications.secretKeys.signingKey".to_owned(),
            "notify-routing-key" => "notifications.secretKeys.routingKey".to_owned(),
            "admin-address" => "admin.address".to_owned(),
            "status-address" => "status.enabled".to_owned(),
            "status-peers" => "status.shared".to_owned(),
            // The chart sets them itself.
            "pod-name" | "pod-namespace" => return None,
            _ => match name.strip_prefix("notify-") {
                Some(name) => format!("notifications.{}", camel_case(name)),
                None => format!("settings.{}", camel_case(name)),
            },
        })
    }

    fn row(&self) -> String {
        let flag = format!("`--{}`", self.name);
        // The page may link the name to where the flag is explained.
        let flag = if PAGE.contains(&format!("\n[{flag}]: ")) { format!("[{flag}]") } else { flag };
        let value = self.value().map_or("set by the chart".to_owned(), |value| format!("`{value}`"));
        format!("| {value} | {flag} | {} | {} |", self.default(), self.meaning).replace("|P%", "\\|P%")
    }

    fn data(&self) -> Value {
        let values = self.arg.get_possible_values();
        let choices: Vec<&str> =
            values.iter().filter(|value| !value.is_hide_set()).map(clap::builder::PossibleValue::get_name).collect();
        json!({
            "flag": self.name,
            "value": self.value(),
            "form": if self.is_switch() { "switch" } else { self.arg.get_value_names().expect("it takes a value")[0].as_str() },
            "list": matches!(self.arg.get_action(), ArgAction::Append),
            "pooled": PoolFlag::POOLED.contains(&self.name.as_str()),
            "choices": if self.is_switch() { Vec::new() } else { choices },
            "default": self.default(),
        })
    }
}

fn camel_case(name: &str) -> String {
    let mut words = name.split('-');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |all, word| all + &word[..1].to_uppercase() + &word[1..])
}

fn flags() -> Vec<Flag> {
    let cli = Cli::command();
    let run = cli.find_subcommand("run").expect("there must be a run");
    run.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_id() != "help").map(Flag::of).collect()
}

/// Each table has the flags of one heading of the help, in the help's order.
#[test]
fn the_tables_of_the_settings_are_those_of_the_command_line() {
    let flags = flags();
    let mut headings: Vec<&str> = flags.iter().map(|flag| flag.heading.as_str()).collect();
    headings.sort_unstable();
    headings.dedup();
    for heading in headings {
        let mut shown: Vec<&Flag> = flags.iter().filter(|flag| flag.heading == heading).collect();
        // Values at the top of the chart first.
        shown.sort_by_key(|flag| flag.value().is_none_or(|value| value.starts_with("settings.")));
        let rows: Vec<String> = shown.into_iter().map(Flag::row).collect();
        let table =
            format!("| in the chart | flag | default | meaning |\n| --- | --- | --- | --- |\n{}", rows.join("\n"));
        golden::part("docs/settings.md", heading, &table);
    }
    for flag in &flags {
        let variable = flag.arg.get_env().map(|name| name.to_string_lossy().into_owned());
        let expected = format!("EBBTIDE_{}", flag.name.to_uppercase().replace('-', "_"));
        assert_eq!(variable, Some(expected), "the page says how variables are called");
        assert!(!flag.heading.is_empty(), "{}", flag.name);
    }
}

/// The chart's schema and its tests are made from this file, by tests/deploy.
#[test]
fn the_flags_as_data_are_those_of_the_command_line() {
    let kinds: Vec<Value> = NoticeKind::ALL
        .into_iter()
        .map(|kind| {
            let actions: Vec<&str> = kind.actions().iter().copied().map(Action::as_str).collect();
            json!({"kind": kind.as_str(), "actions": actions})
        })
        .collect();
    let data = json!({"kinds": kinds, "flags": flags().iter().map(Flag::data).collect::<Vec<_>>()});
    let text = serde_json::to_string_pretty(&data).expect("it must be JSON");
    golden::file("tests/deploy/flags.json", &format!("{text}\n"));
}
