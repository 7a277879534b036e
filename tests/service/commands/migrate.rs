//! `ebbtide migrate`: the conversion of each input in `tests/fixtures/migrate/cases.txt`, a golden file.
//!
//! An input stands under its kind. `== file` is a whole file. `== queue` and `== imds` are values for that mode; below them is what they add
//! to the values and remarks of the mode: `+` a line, `-` a line that is no longer there, and remarks, each with its topic.

use crate::golden;
use ebbtide::commands::migrate::{Migration, convert};
use std::fs;
use std::path::Path;

const CASES: &str = "tests/fixtures/migrate/cases.txt";

/// The shortest values for queue mode.
const QUEUE: &str =
    "enableSqsTerminationDraining: true\nqueueURL: https://sqs.eu-west-1.amazonaws.com/123456789012/nth\n";

/// The shortest for IMDS mode: NTH's defaults.
const IMDS: &str = "{}";

/// Each case is its kind and its input; the rest is written.
#[test]
fn every_input_becomes_what_it_did() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(CASES);
    let file = fs::read_to_string(file).expect("the cases must be readable");
    let cases: String = file.split("== ").skip(1).map(with_output).collect();
    assert!(cases.len() > 30_000, "the cases are there");
    golden::file(CASES, &cases);
}

/// Returns a case with the output that its input has.
fn with_output(case: &str) -> String {
    let (input, _) = case.split_once("-- becomes\n").expect("an input must end with this line");
    let (kind, given) = input.split_once('\n').expect("the kind must have a line");
    let output = match kind {
        "file" => whole(given),
        "queue" => added(QUEUE, &format!("{QUEUE}{given}")),
        "imds" => added(IMDS, given),
        other => panic!("{other} is no kind of input"),
    };
    for secret in ["hidden", "a-secret"] {
        assert!(!output.contains(secret), "the output of {input} has a secret: {output}");
    }
    format!("== {input}-- becomes\n{output}\n")
}

/// Returns the values and the remarks of a file, or its error.
fn whole(given: &str) -> String {
    match convert(given) {
        Ok(migration) => format!("{}-- remarks\n{migration}", migration.values),
        Err(error) => format!("{error}\n"),
    }
}

/// Returns the lines and the remarks that a file adds to those of another, or takes away.
fn added(file: &str, other: &str) -> String {
    let convert = |text: &str| convert(text).expect("the values must be valid");
    let (before, after) = (convert(file), convert(other));
    let remarks = |of: &Migration| -> Vec<String> {
        of.remarks.iter().map(|remark| format!("{:?} {}: {}", remark.topic, remark.key, remark.text)).collect()
    };
    let lines = |of: &Migration| -> Vec<String> { of.values.lines().map(|line| format!(" {line}")).collect() };
    let only = |sign: &str, lines: Vec<String>, without: &[String]| -> String {
        lines.iter().filter(|line| !without.contains(line)).map(|line| format!("{sign}{line}\n")).collect()
    };
    [
        only("-", lines(&before), &lines(&after)),
        only("+", lines(&after), &lines(&before)),
        only("- ", remarks(&before), &remarks(&after)),
        only("", remarks(&after), &remarks(&before)),
    ]
    .concat()
}
