//! The format of a command's answer.

use super::yaml;
use clap::ValueEnum;
use serde::Serialize;

/// The format of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    #[value(alias = "text")]
    Table,
    /// One JSON object.
    Json,
    /// The same, as YAML.
    Yaml,
}

impl Output {
    /// Returns the answer: `table`, or the report, which has no maps with other keys than text.
    #[must_use]
    pub fn of(self, report: &impl Serialize, table: impl FnOnce() -> String) -> String {
        match self {
            Self::Table => table(),
            Self::Json => serde_json::to_string_pretty(report).unwrap_or_default() + "\n",
            Self::Yaml => yaml::to_yaml(report),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_report_in_each_format() {
        let report = json!({ "state": "ok", "nodes": [{ "name": "n-1", "pods": [] }], "why": null, "note": "yes" });
        let of = |output: Output| output.of(&report, || "a table\n".to_owned());
        assert_eq!(of(Output::Table), "a table\n");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&of(Output::Json)).unwrap(), report);
        assert_eq!(of(Output::Yaml), "nodes:\n  - name: n-1\n    pods: []\nnote: \"yes\"\nstate: ok\nwhy: null\n");
        assert_eq!(serde_saphyr::from_str::<serde_json::Value>(&of(Output::Yaml)).unwrap(), report);
    }
}
