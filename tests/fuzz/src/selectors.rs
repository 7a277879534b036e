//! Label selectors and taints: what is read can be written and read again, and an error names what it is about.

use ebbtide::pipeline::{selector, taint};
use kube::core::SelectorExt;
use std::collections::BTreeMap;

/// Reads a selector of pods or Nodes, and a taint.
pub fn check(text: &str) {
    match selector(text) {
        Ok(read) => {
            let written = read.to_string();
            assert_eq!(selector(&written).as_ref(), Ok(&read), "{written:?}");
            // Each term by itself, without and with the label that it names.
            for term in text.split(',') {
                let mut labels = BTreeMap::new();
                if let Ok(alone) = selector(term) {
                    let without = alone.matches(&labels);
                    let key = term.trim().trim_start_matches('!').trim();
                    let end = key.find(|c: char| c.is_whitespace() || "=!(".contains(c)).unwrap_or(key.len());
                    labels.insert(key[..end].to_owned(), "fuzz-other".to_owned());
                    let with = alone.matches(&labels);
                    let negative = term.contains('!')
                        || term.split_once('(').is_some_and(|(head, _)| head.trim_end().ends_with("notin"));
                    assert_eq!(without, negative, "{term:?} without the label");
                    assert!(with || without || term.contains(['=', '(']), "{term:?}");
                }
            }
        }
        Err(error) => named(&error.to_string(), text),
    }
    match taint(text) {
        Ok(read) => {
            let value = read.value.as_deref().map(|value| format!("={value}")).unwrap_or_default();
            assert_eq!(taint(&format!("{}{value}:{}", read.key, read.effect)), Ok(read), "{text:?}");
        }
        Err(error) => named(&error.to_string(), text),
    }
}

/// Checks that an error quotes a part of the text, and is not much longer.
fn named(error: &str, text: &str) {
    let quoted = error.strip_prefix('"').and_then(|rest| {
        rest.char_indices()
            .map(|(end, _)| &rest[..end])
            .find(|part| rest[part.len()..].starts_with("\" ") && text.contains(*part))
    });
    assert!(quoted.is_some(), "{error:?} does not name a part of {text:?}");
    assert!(error.len() <= text.len() + 120, "{error}");
}
