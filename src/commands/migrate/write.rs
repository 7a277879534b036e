//! Writing our values as YAML: a map of maps in our chart's order, each value with a comment.

use super::table::table;
use crate::cli::yaml::{to_yaml, to_yaml_line};
use serde_json::Value;
use std::fmt;

/// Our values.
#[derive(Debug, Default)]
pub(super) struct Values {
    entries: Vec<(String, Entry)>,
    /// They are those of a parent chart, under the name of ours.
    pub is_nested: bool,
}

#[derive(Debug)]
enum Entry {
    Value(Value, String),
    Map(Vec<(String, Entry)>),
}

impl Values {
    /// Sets a value, unless it is set already. Returns whether it was not.
    pub fn put(&mut self, path: &str, value: Value, comment: &str) -> bool {
        let (mut level, mut path) = (&mut self.entries, path);
        while let Some((part, below)) = path.split_once('.') {
            let place = level.iter().position(|(name, _)| name == part).unwrap_or_else(|| {
                level.push((part.to_owned(), Entry::Map(Vec::new())));
                level.len() - 1
            });
            let Entry::Map(next) = &mut level[place].1 else { return false };
            (level, path) = (next, below);
        }
        let new = level.iter().all(|(name, _)| name != path);
        if new {
            level.push((path.to_owned(), Entry::Value(value, comment.to_owned())));
        }
        new
    }
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = |name: &str| table().order.iter().position(|known| known == name);
        let mut sorted: Vec<_> = self.entries.iter().collect();
        sorted.sort_by_key(|(name, _)| place(name));
        if self.is_nested {
            writeln!(f, "ebbtide:")?;
        }
        sorted.into_iter().try_for_each(|(name, entry)| entry.write(f, name, usize::from(self.is_nested)))
    }
}

impl Entry {
    fn write(&self, f: &mut fmt::Formatter<'_>, name: &str, depth: usize) -> fmt::Result {
        let indent = "  ".repeat(depth);
        match self {
            Self::Map(entries) => {
                writeln!(f, "{indent}{name}:")?;
                entries.iter().try_for_each(|(name, entry)| entry.write(f, name, depth + 1))
            }
            Self::Value(value, comment) => {
                if let Some(line) = to_yaml_line(value) {
                    return writeln!(f, "{indent}{name}: {line}  # {comment}");
                }
                writeln!(f, "{indent}{name}:  # {comment}")?;
                to_yaml(value).lines().try_for_each(|line| writeln!(f, "{indent}  {line}"))
            }
        }
    }
}
