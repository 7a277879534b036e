//! The table `rows.yaml`: a row for each value of NTH's chart, and the values that keep NTH's behaviour.
#![allow(clippy::expect_used, reason = "the table is a part of the program: a wrong one fails every test of it")]

use super::Topic;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// The names of our chart's values, in their order.
    pub(super) order: Vec<String>,
    /// Names of NTH's values that other charts have, too.
    pub(super) shared: Vec<String>,
    /// Values of ours that keep a behaviour of NTH, because our default is another.
    pub(super) kept: Vec<Kept>,
    /// The sections of the README of NTH's chart.
    pub sections: Vec<Section>,
}

/// A value of ours that keeps a behaviour of NTH.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kept {
    /// The mode that has the behaviour; both if it is missing.
    pub mode: Option<Mode>,
    /// The name of our value.
    pub ours: String,
    /// The value.
    pub value: Value,
    /// The reason, for the user.
    pub why: String,
}

/// A section of the table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    /// What the section's values are for.
    pub name: String,
    /// The mode that alone reads them.
    pub(super) mode: Option<Mode>,
    /// The rows.
    pub rows: Vec<Row>,
}

/// A value of NTH's chart.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The value's name, with dots.
    pub nth: String,
    /// The default of NTH's chart.
    #[serde(default)]
    pub default: Value,
    /// The names of our values that replace it; empty if there are none.
    #[serde(default)]
    pub ours: Vec<String>,
    /// The mode of its section.
    #[serde(skip)]
    pub(super) mode: Option<Mode>,
    /// Values that give this its effect: one of them must have an effect.
    #[serde(default, rename = "if")]
    pub(super) only_with: Vec<String>,
    /// Values that take the effect from this.
    #[serde(default)]
    pub(super) unless: Vec<String>,
    /// In IMDS mode the value is of the agents alone, unless NTH's DaemonSet has one of its own.
    #[serde(default)]
    pub(super) agents: bool,
    pub(super) how: How,
    #[serde(default)]
    pub(super) cases: Vec<Case>,
    /// The difference, or the reason why no value of ours replaces it.
    #[serde(default)]
    pub remark: String,
}

/// A mode of NTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mode {
    /// A Deployment that reads a queue.
    Queue,
    /// A DaemonSet that reads the instances' metadata.
    Imds,
}

/// A case in which a value is lost, needless or different. It applies if all that it names holds.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Case {
    /// NTH is in this mode.
    pub mode: Option<Mode>,
    /// The switch is on, or off.
    pub is: Option<bool>,
    /// The text contains this, or the map has this name.
    pub has: Option<String>,
    /// The number is this or more.
    pub from: Option<i64>,
    /// The number is this or less.
    pub to: Option<i64>,
    /// The number is that of this value, which is positive, or more.
    pub from_value: Option<String>,
    /// This value has an effect.
    pub on: Option<String>,
    /// A pod selector in the value selects other pods of Ebbtide's than it did of NTH's.
    #[serde(default)]
    pub foreign_selectors: bool,
    /// The value is not the URL of a queue.
    #[serde(default)]
    pub not_a_queue: bool,
    pub topic: Topic,
    /// The remark; that of the row if it is missing.
    pub text: Option<String>,
}

/// The converter of a value.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum How {
    /// The value is lost, unless it is empty.
    Lost,
    /// Ebbtide does not need the value.
    Needless,
    /// A text.
    Text,
    /// A text for which empty is a value, too.
    TextOrEmpty,
    /// One of these words, with ours for it.
    Word(BTreeMap<String, String>),
    /// A switch: the values of ours if it is on, and if it is off.
    Switch {
        #[serde(default)]
        on: Vec<Value>,
        #[serde(default)]
        off: Vec<Value>,
    },
    /// A number that is not negative, with its name for refusals.
    Number(String),
    /// Seconds, which become a duration; none if they are not positive.
    Seconds,
    /// A map of texts.
    Texts,
    /// A map.
    Map,
    /// A list of maps.
    ListOfMaps,
    /// A list of maps with a name, or of names, as older charts of NTH take them.
    Named,
    /// Labels of pods.
    Labels,
    /// Annotations of pods.
    Annotations,
    /// An affinity of pods.
    Affinity,
    /// Tolerations of pods.
    Tolerations,
    /// Requests and limits of pods.
    Resources,
    /// A disruption budget.
    Budget,
    /// Environment variables.
    Env(Env),
    /// The switch that cordons without a drain.
    Cordon,
    /// The switch that taints nodes.
    Taint,
    /// A receiver of notifications: the Secret to make of its URL, or the name of its Secret.
    Webhook(Option<String>),
    /// Headers for the receiver.
    WebhookHeaders,
    /// The proxy before the receiver.
    WebhookProxy,
    /// The address of the instance's metadata.
    MetadataUrl,
}

/// Rules for environment variables. Those that no rule names are left out with a remark.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Env {
    /// Prefixes of those that are copied.
    pub ours: Vec<String>,
    /// Those with such a prefix that are not copied.
    pub except: Vec<String>,
    /// Those that are left out without a remark.
    pub needless: Vec<String>,
}

impl Env {
    /// Whether a variable is copied.
    pub fn takes(&self, name: &str) -> bool {
        self.ours.iter().any(|prefix| name.starts_with(prefix)) && !self.except.iter().any(|known| known == name)
    }
}

impl Table {
    /// Returns every row.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.sections.iter().flat_map(|section| &section.rows)
    }
}

/// Returns the table.
#[must_use]
pub fn table() -> &'static Table {
    static TABLE: LazyLock<Table> = LazyLock::new(|| {
        let mut table: Table = serde_saphyr::from_str(include_str!("rows.yaml")).expect("rows.yaml must be a table");
        for section in &mut table.sections {
            section.rows.iter_mut().for_each(|row| row.mode = section.mode);
        }
        table
    });
    &TABLE
}
