//! `ebbtide migrate`: from the values of aws-node-termination-handler's (NTH's) chart to those of ours.
//!
//! ```text
//! text ─▶ read ─▶ rows: one for each value of NTH's chart ─▶ write: our values, each with where it comes from
//!                  └▶ remarks: what could not be carried over, what differs, what is not needed
//! ```
//!
//! The [`rows`](rows()) are the one place that says what becomes of a value; `docs/migrating.md` shows them, and a test holds it to that. No
//! value of what is not carried over is ever told: some are secrets.

mod conversions;
mod daemonset;
mod deployment;
mod modes;
mod pods;
mod read;
mod rows;
mod write;

pub use rows::{Row, Section, rows};

use crate::cli::answer::Answer;
use crate::cli::input;
use crate::cli::input::Unread;
use conversions::{Asked, Became};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use write::Values;

/// What NTH does in queue mode without being asked, where our default is another: where it goes, what, and why.
const UNASKED: [(&str, &str, &str); 3] = [
    ("on.asg-launch", "ready", "NTH completes launch hooks; by default Ebbtide ignores them"),
    ("on.rebalance", "drain", "NTH drains in queue mode; Ebbtide's default is cordon"),
    ("settings.requireTag", "true", "NTH's default; false is Ebbtide's, and spares calls to EC2"),
];

/// What stands in front of our values.
const HEAD: &str = "\
# Values for Ebbtide's chart, by `ebbtide migrate` from values of aws-node-termination-handler.
# Behind each stands the value that it comes from. Settings without one keep Ebbtide's default.
";

/// What became of a values file.
#[derive(Debug)]
pub struct Migration {
    /// Our values, as YAML.
    pub values: String,
    /// What there is to say about it, for people.
    pub remarks: Vec<Remark>,
}

/// Something that its user should know.
#[derive(Debug, PartialEq, Eq)]
pub struct Remark {
    /// What it is about.
    pub matter: Matter,
    /// NTH's value.
    pub key: String,
    /// What became of it, and what can be done.
    pub what: String,
}

/// What a remark is about, in the order in which they are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Matter {
    /// Something must be done by hand before the values can be used.
    Missing,
    /// NTH's chart has no such value.
    Unknown,
    /// It was not carried over.
    Lost,
    /// It was carried over, and does not do the same.
    Differs,
    /// Ebbtide needs no such setting.
    Needless,
}

impl Migration {
    /// Whether everything was carried over as it was.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.remarks.iter().all(|remark| remark.matter == Matter::Needless)
    }
}

impl Matter {
    const fn title(self) -> &'static str {
        match self {
            Self::Missing => "To be done first",
            Self::Unknown => "Not values of NTH's chart",
            Self::Lost => "Not carried over",
            Self::Differs => "Carried over, but not the same",
            Self::Needless => "Not needed",
        }
    }
}

impl fmt::Display for Migration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = None;
        for Remark { matter, key, what } in &self.remarks {
            if before.replace(*matter) != Some(*matter) {
                writeln!(f, "{}:", matter.title())?;
            }
            writeln!(f, "  {key}: {what}")?;
        }
        Ok(())
    }
}

/// What becomes of the values in a file, or on standard input for `-` or nothing: our values, and the remarks. Its exit code is 0 if all
/// was carried over, 3 if not, 2 if the file is of no use.
#[must_use]
pub fn run(file: Option<&Path>) -> Answer {
    let read = input::text(file).map_err(|unread| unread_as(&unread));
    match read.and_then(|text| convert(&text)) {
        Ok(migration) => {
            let (remarks, code) = (migration.to_string(), if migration.is_whole() { 0 } else { 3 });
            Answer { said: migration.values, remarks, problems: String::new(), code }
        }
        Err(what) => Answer::wrong(&format!("{}: {what}", input::named(file))),
    }
}

fn unread_as(unread: &Unread) -> String {
    match unread {
        Unread::Nothing => "is a terminal; name a values file, or pipe one in".to_owned(),
        Unread::Unopened(error) => format!("can't be opened: {error}; give the path of a values file"),
        Unread::Broken(error) => format!("can't be read: {error}; give a values file, which is YAML"),
        Unread::TooLong => "is longer than 1 MiB, which no values file is".to_owned(),
        Unread::NoText(at) => format!("is no text: byte {at} is not UTF-8; give a values file, which is YAML"),
    }
}

/// Our values for these of NTH.
///
/// # Errors
/// Why the text is of no use, and what to give instead.
pub fn convert(text: &str) -> Result<Migration, String> {
    let given = read::values(text)?;
    let nth = Value::Object(given);
    let queue = conversions::switch(&nth["enableSqsTerminationDraining"]) == Some(true);
    let (mut values, mut remarks) = (Values::default(), Vec::new());
    for row in rows() {
        let value = row.key.split('.').fold(&nth, |value, part| &value[part]);
        // Helm, too, takes null for nothing said; and what NTH does anyway was not asked for.
        let asked = Asked { nth: &nth, queue, row, value };
        if !value.is_null() && !asked.is_default() {
            carry(&asked, &mut values, &mut remarks);
        }
    }
    if queue {
        for (path, what, why) in UNASKED {
            values.put(path, if what == "true" { json!(true) } else { json!(what) }, why);
        }
    } else {
        let what = "it is not true, so these values are for NTH's IMDS mode, a DaemonSet. Ebbtide reads a queue: make one, and the \
                    EventBridge rules that fill it, and set queueUrl";
        remarks.push(remark(Matter::Missing, "enableSqsTerminationDraining", what));
    }
    if !values.has("queueUrl") {
        values.put("queueUrl", json!(""), "must be set");
        if queue {
            remarks.push(remark(Matter::Missing, "queueURL", "is not set; set queueUrl to the URL of the queue"));
        }
    }
    unknown(&nth, &mut remarks);
    remarks.sort_by_key(|remark| remark.matter);
    Ok(Migration { values: format!("{HEAD}{values}"), remarks })
}

fn carry(asked: &Asked<'_>, values: &mut Values, remarks: &mut Vec<Remark>) {
    let Row { key, why, how, .. } = asked.row;
    let (set, remarked) = match how(asked) {
        Became::Set(set) => (set, None),
        Became::Nothing => return,
        Became::Differs(set, what) => (set, Some((Matter::Differs, what))),
        Became::Lost(what) => (Vec::new(), Some((Matter::Lost, what))),
        Became::Needless => (Vec::new(), Some((Matter::Needless, (*why).to_owned()))),
    };
    for (path, value) in set {
        values.put(&path, value, key);
    }
    remarks.extend(remarked.map(|(matter, what)| remark(matter, key, &what)));
}

/// Names that NTH's chart does not have, each with the one that may be meant.
fn unknown(nth: &Value, remarks: &mut Vec<Remark>) {
    let known: BTreeSet<&str> = rows().map(|row| row.key).collect();
    let groups: BTreeSet<&str> = known.iter().filter_map(|key| key.split_once('.')).map(|(group, _)| group).collect();
    let names = nth.as_object().into_iter().flatten().flat_map(|(name, value)| {
        let inside = value.as_object().filter(|_| groups.contains(name.as_str()));
        inside.map_or_else(|| vec![name.clone()], |inside| inside.keys().map(|key| format!("{name}.{key}")).collect())
    });
    for name in names.filter(|name| !known.contains(name.as_str())) {
        // Helm's own, for charts in charts.
        if name == "global" {
            continue;
        }
        let what = if name == "aws-node-termination-handler" {
            "these are values of a chart around NTH's; give what stands below this name as a file of its own".to_owned()
        } else if groups.contains(name.as_str()) {
            "must have values of its own below it, and was left out".to_owned()
        } else {
            let near = known.iter().map(|key| (strsim::jaro_winkler(&name.to_lowercase(), &key.to_lowercase()), key));
            match near.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(likeness, _)| *likeness > 0.9) {
                Some((_, key)) => format!("is unknown, and was left out; is {key} meant?"),
                None => "is unknown, and was left out: a typing error, or newer than this table".to_owned(),
            }
        };
        remarks.push(remark(Matter::Unknown, &name, &what));
    }
}

fn remark(matter: Matter, key: &str, what: &str) -> Remark {
    Remark { matter, key: key.to_owned(), what: what.to_owned() }
}

#[cfg(test)]
mod tests;
