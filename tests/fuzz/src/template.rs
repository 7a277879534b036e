//! Templates of notifications: one that compiles has made JSON of every sample, one that does not says why on one line.

use ebbtide::telemetry::notify::Template;

/// Compiles a template.
pub fn check(text: &str) {
    if let Err(error) = Template::compile(text.to_owned()) {
        let said = error.to_string();
        assert!(!said.is_empty() && said.len() <= 2 * text.len() + 400, "{said}");
    }
}
