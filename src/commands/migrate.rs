//! `ebbtide migrate`: converts values of aws-node-termination-handler's (NTH's) chart to values of ours.
//!
//! ```text
//! text ─▶ read ─▶ values: the rows of the table, one for each value of NTH's chart ─▶ write: our values, each with its origin
//!                  └▶ remarks: lost, different and needless values
//! ```
//!
//! The [`table`](table()) in `rows.yaml` defines every conversion; `docs/migrating-values.md` shows it. Remarks never show a lost value: it
//! may be a secret.

mod cases;
mod converters;
mod form;
mod helm_set;
mod manifest;
mod pods;
mod read;
mod selectors;
mod table;
mod value;
mod workload;
mod write;

pub use read::ValuesError;
pub use table::{Row, Section, Table, table};

use crate::cli::answer::Answer;
use crate::cli::flags::migrate::Migrate;
use crate::cli::input;
use crate::cli::input::InputError;
use crate::cli::text::nearest;
use form::Found;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use table::Mode;
use value::{Conversion, NthValue, is_empty, switch};
use write::Values;

/// What is new about the queue's policy.
const SENDERS: &str = "a queue of Ebbtide's templates refuses senders that its policy does not name: name SNS topics in TopicArns, and roles and users \
                       that send, such as a role of your own with which hooks notify it, in SenderArns. NTH's queue continues to accept messages \
                       from all that have sqs:SendMessage by IAM, until you add the statement that `ebbtide doctor` prints; name those senders in it";

/// The remark on lifecycle hooks in IMDS mode.
const HOOKS: &str = "is not true: NTH's IMDS mode, which Ebbtide's agent replaces. Instance metadata don't name lifecycle hooks: set \
                     settings.nodeHook to the name of yours, which needs AWS permissions; or settings.drainTimeout.asgTerminate to less than \
                     its timeout, for which each instance then waits";

/// Values of the charts before 0.27.6.
const OLDER: [&str; 10] = [
    "assumeAsgTagPropagation",
    "gracePeriod",
    "linuxAnnotations",
    "linuxUpdateStrategy",
    "nodeSelectorTermsArch",
    "nodeSelectorTermsOs",
    "probesServerEndpoint",
    "probesServerPort",
    "windowsAnnotations",
    "windowsUpdateStrategy",
];

/// The remark on where NTH's pods run in IMDS mode: on the nodes that Ebbtide drains.
const PLACED: &str = "is of NTH's DaemonSet, and so of the agents alone: the two pods of the service should not run on the nodes that they drain";

/// The first lines of our values.
const HEAD: &str = "\
# Values for Ebbtide's chart, by `ebbtide migrate` from values of aws-node-termination-handler.
# Each comment names the value of origin. Settings that are not here keep Ebbtide's default.
";

/// The line below them for a parent chart.
const NESTED: &str = "\
# For a parent chart with Ebbtide's chart as `ebbtide`. For Ebbtide's chart alone: sed -n 's/^  //p'
";

/// The remark on the values of a parent chart.
const PARENT: &str = "has NTH's values, so Ebbtide's are under `ebbtide`: add Ebbtide's chart to the parent chart by that name. It runs in the \
                      parent's namespace, which the role's trust policy must name";

/// The remark on the `ServiceAccount` of a parent chart.
const ACCOUNT: &str = "would be that of both charts, in one namespace: one would overwrite the other's, and NTH would lose its token. Ebbtide's is \
                       named ebbtide: add it to the role's trust policy or associations";

/// The result of a conversion of a values file.
#[derive(Debug)]
pub struct Migration {
    /// Our values, as YAML.
    pub values: String,
    /// The remarks, for people.
    pub remarks: Vec<Remark>,
}

/// A remark on one of NTH's values.
#[derive(Debug, PartialEq, Eq)]
pub struct Remark {
    /// The topic.
    pub topic: Topic,
    /// The name of NTH's value.
    pub key: String,
    /// The text.
    pub text: String,
}

/// The topic of a remark, in the order of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Topic {
    /// The user must do something before the values can be used.
    Missing,
    /// NTH's chart has no such value.
    Unknown,
    /// The value was not carried over.
    Lost,
    /// The value was carried over and does not do the same.
    Differs,
    /// Ebbtide needs no such value.
    Needless,
    /// The value was carried over, and Ebbtide's templates add something to what it names.
    New,
}

impl Migration {
    /// Whether everything was carried over without a difference.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.remarks.iter().all(|remark| matches!(remark.topic, Topic::Needless | Topic::New))
    }
}

impl Topic {
    const fn title(self) -> &'static str {
        match self {
            Self::Missing => "To be done first",
            Self::Unknown => "Not values of NTH's chart",
            Self::Lost => "Not carried over",
            Self::Differs => "Carried over, but not the same",
            Self::Needless => "Not needed",
            Self::New => "New",
        }
    }
}

impl fmt::Display for Migration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = None;
        for Remark { topic, key, text } in &self.remarks {
            if before.replace(*topic) != Some(*topic) {
                writeln!(f, "{}:", topic.title())?;
            }
            writeln!(f, "  {key}: {text}")?;
        }
        Ok(())
    }
}

/// The reason why there is no migration.
#[derive(Debug, thiserror::Error)]
enum MigrateError {
    /// The file can't be read.
    #[error("{}", input_error(.0))]
    Input(InputError),
    /// The text is not a values file.
    #[error(transparent)]
    Values(#[from] ValuesError),
}

fn input_error(error: &InputError) -> String {
    match error {
        InputError::Terminal => "is a terminal; name a values file, or pipe one in".to_owned(),
        InputError::Open(error) => format!("can't be opened: {error}; give the path of a values file"),
        InputError::Read(error) => format!("can't be read: {error}; give a values file, which is YAML"),
        InputError::TooLong => "is longer than 1 MiB, which no values file is".to_owned(),
        InputError::NotUtf8(at) => format!("is not text: byte {at} is not UTF-8; give a values file, which is YAML"),
    }
}

/// Converts the values in a file, or on standard input for `-` or no name. The exit code is 0, or 2 if the file is not a values file; with
/// `--strict` 3 if a value was lost or differs.
#[must_use]
pub fn run(Migrate { values, output_file, strict }: &Migrate) -> Answer {
    let file = values.as_deref();
    let text = input::text(file).map_err(MigrateError::Input);
    let migration = match text.and_then(|text| Ok(convert(&text)?)) {
        Ok(migration) => migration,
        Err(error) => return Answer::wrong(&format!("{}: {error}", input::named(file))),
    };
    let code = if *strict && !migration.is_whole() { 3 } else { 0 };
    let remarks = migration.to_string();
    let Some(output) = output_file else {
        return Answer { output: migration.values, remarks, problems: String::new(), code };
    };
    // A file that a user has edited is not overwritten.
    let written = File::create_new(output).and_then(|mut file| {
        // A part of the values would keep the next try from its place.
        file.write_all(migration.values.as_bytes()).inspect_err(|_| drop(fs::remove_file(output)))
    });
    match written {
        Ok(()) => Answer { remarks, code, ..Answer::default() },
        Err(error) => Answer::failed(&format!(
            "{} can't be written: {error}; give --output-file another name, or remove the file",
            output.display()
        )),
    }
}

/// Converts NTH's values to ours.
///
/// # Errors
/// The reason why the text is not a values file.
pub fn convert(text: &str) -> Result<Migration, ValuesError> {
    let documents = read::values(text)?;
    if documents.is_empty() {
        return Err(ValuesError::Empty);
    }
    let Found { values: mut nth, parent, mut remarks, .. } = Found::of(documents)?;
    let mut values = Values::default();
    if let Some(parent) = &parent {
        remarks.push(remark(Topic::New, parent, PARENT));
        nest(&mut nth, &mut values, &mut remarks);
    }
    let is_queue = switch(&nth["enableSqsTerminationDraining"]) == Some(true);
    let mode = if is_queue { Mode::Queue } else { Mode::Imds };
    for row in table().rows() {
        let value = NthValue::new(&nth, mode, row);
        let Conversion { settings, remark } = if row.agents && mode == Mode::Imds {
            if !is_empty(value.value) {
                remarks.push(remark(Topic::New, &row.nth, PLACED));
            }
            of_agents(&value)
        } else {
            value.convert()
        };
        for (path, value) in settings {
            values.put(&path, value, &row.nth);
        }
        remarks.extend(remark.map(|(topic, text)| Remark { topic, key: row.nth.clone(), text }));
    }
    for kept in table().kept.iter().filter(|kept| kept.mode.is_none_or(|of| of == mode)) {
        values.put(&kept.ours, kept.value.clone(), &kept.why);
    }
    match mode {
        Mode::Queue => {
            if values.put("queueUrl", json!(""), "must be set") {
                let text = "is not set; set queueUrl to the URL of the queue";
                remarks.push(remark(Topic::Missing, "queueURL", text));
            }
            remarks.push(remark(Topic::New, "queueURL", SENDERS));
        }
        Mode::Imds => {
            let drains = switch(&nth["enableASGLifecycleDraining"]).unwrap_or(true);
            if drains && switch(&nth["cordonOnly"]) != Some(true) {
                remarks.push(remark(Topic::Differs, "enableSqsTerminationDraining", HOOKS));
            }
        }
    }
    unknown(&nth, &mut remarks);
    remarks.sort_by_key(|remark| remark.topic);
    let nested = if values.is_nested { NESTED } else { "" };
    Ok(Migration { values: format!("{HEAD}{nested}{values}"), remarks })
}

/// Puts our values under the name of our chart, with the names of objects that they have without a parent chart, and its switch for NTH.
fn nest(nth: &mut Value, values: &mut Values, remarks: &mut Vec<Remark>) {
    values.is_nested = true;
    values.put(
        "fullnameOverride",
        json!("ebbtide"),
        "the name in Ebbtide's documents; by default it begins with the release's",
    );
    if let Some(on) = switch(&nth["enabled"]) {
        values.put("enabled", json!(on), "enabled");
        nth["enabled"] = Value::Null;
    }
    if !is_empty(&nth["serviceAccount"]["name"]) {
        values.put("serviceAccount.name", json!("ebbtide"), "in place of NTH's, which is in the same namespace");
        nth["serviceAccount"]["name"] = Value::Null;
        remarks.push(remark(Topic::Missing, "serviceAccount.name", ACCOUNT));
    }
}

/// Converts a value about where pods run to the agents': by NTH's value for both modes, unless its DaemonSet has one of its own.
fn of_agents(nth: &NthValue<'_>) -> Conversion {
    let own = pods::linux(&nth.row.nth);
    let is_used = !is_empty(nth.value) && is_empty(&nth.all[&own]);
    match table().rows().find(|row| row.nth == own && is_used) {
        Some(row) => row.how.convert(&NthValue { row, ..*nth }),
        None => Conversion::default(),
    }
}

/// Reports names that NTH's chart does not have, each with the most similar name of the chart.
fn unknown(nth: &Value, remarks: &mut Vec<Remark>) {
    let known: Vec<&str> = table().rows().map(|row| &*row.nth).collect();
    let groups: BTreeSet<&str> = known.iter().filter_map(|key| key.split_once('.')).map(|(group, _)| group).collect();
    let given = || nth.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    for (name, _) in given().filter(|(name, _)| name.contains('.')) {
        remarks.push(remark(Topic::Unknown, name, "is one name with a dot, which is left out; write a map in a map"));
    }
    let names = given().filter(|(name, _)| !name.contains('.')).flat_map(|(name, value)| {
        let inside = value.as_object().filter(|_| groups.contains(name.as_str()));
        inside.map_or_else(|| vec![name.clone()], |inside| inside.keys().map(|key| format!("{name}.{key}")).collect())
    });
    for name in names.filter(|name| !known.contains(&name.as_str())) {
        // Helm itself defines this name, for subcharts.
        if name == "global" {
            continue;
        }
        let text = if groups.contains(name.as_str()) {
            "must be a map, and is left out".to_owned()
        } else {
            // The name of ours for the same, or else a typing error.
            let same = table().rows().find(|row| row.ours.contains(&name)).map(|row| &*row.nth);
            match same.or_else(|| nearest(&name, &known)) {
                _ if OLDER.contains(&&*name) => {
                    "is of an older chart, is no longer read by NTH, and is left out".to_owned()
                }
                Some(key) => format!("is unknown and left out; did you mean {key}?"),
                None => "is unknown and left out: a typing error, or newer than NTH's chart 0.27.6".to_owned(),
            }
        };
        remarks.push(remark(Topic::Unknown, &name, &text));
    }
}

fn remark(topic: Topic, key: &str, text: &str) -> Remark {
    Remark { topic, key: key.to_owned(), text: text.to_owned() }
}

#[cfg(test)]
mod tests;
