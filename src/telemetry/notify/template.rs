//! The user's own body: a minijinja template that makes JSON, with bounds for its time and its output.
//!
//! Values are escaped as the inside of a JSON string, because names and messages are hostile input: none can end the string that it is
//! in. What the template makes is checked to be JSON before it is sent.

use super::notification::Notification;
use super::sample;
use crate::fact::NotificationPhase;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, UndefinedBehavior, Value};
use serde::de::IgnoredAny;
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

/// Maximum length of a body, in bytes. No receiver of messages takes more.
const MAX_OUTPUT: usize = 64 * 1024;

/// Maximum length of a template, in bytes.
const MAX_SOURCE: usize = 64 * 1024;

/// Maximum number of steps of a template, and of 64-byte pieces that it makes: some milliseconds, and 6 MB.
const FUEL: u64 = 100_000;

/// The template's name in errors.
const NAME: &str = "template";

/// A template that has made JSON of a sample of every phase.
#[derive(Clone)]
pub struct Template(Arc<Environment<'static>>);

/// The reason why a template can't be used.
#[derive(Debug, thiserror::Error)]
pub enum BadTemplate {
    /// The template is too long.
    #[error("has more than {MAX_SOURCE} bytes; no message is that long")]
    TooLong,
    /// The template is none.
    #[error("is no template of minijinja: {0}")]
    Syntax(RenderError),
    /// A sample fails.
    #[error("fails with a sample of the phase {phase}{}: {error}", if *.storm { " about a storm" } else { "" })]
    Sample {
        /// The sample's phase.
        phase: NotificationPhase,
        /// Whether the sample is about a storm.
        storm: bool,
        /// The reason.
        error: RenderError,
    },
}

/// The reason why a template makes no body. It has no values of the notification.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The template itself fails.
    #[error("{0}")]
    Fails(String),
    /// The output is too long.
    #[error("its output has more than {MAX_OUTPUT} bytes")]
    TooLong,
    /// The output is no JSON.
    #[error("its output is not JSON: {0}; put quotes around {{{{ VALUE }}}}, or write {{{{ VALUE|tojson }}}}")]
    NotJson(String),
}

impl Template {
    /// Compiles a template, and makes a body of a sample of every phase with it.
    ///
    /// # Errors
    /// Why it can't be used.
    pub fn compile(source: String) -> Result<Self, BadTemplate> {
        if source.len() > MAX_SOURCE {
            return Err(BadTemplate::TooLong);
        }
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_fuel(Some(FUEL));
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_formatter(write_escaped);
        environment.add_template_owned(NAME, source).map_err(|error| BadTemplate::Syntax(RenderError::of(&error)))?;
        let template = Self(Arc::new(environment));
        for notification in sample::all() {
            let (phase, storm) = (notification.phase, notification.storm.is_some());
            template.render(&notification, str::to_owned).map_err(|error| BadTemplate::Sample {
                phase,
                storm,
                error,
            })?;
        }
        Ok(template)
    }

    /// Makes the body. `escape` is applied to all texts before.
    pub(super) fn render(
        &self,
        notification: &Notification,
        escape: fn(&str) -> String,
    ) -> Result<Vec<u8>, RenderError> {
        let mut fields = serde_json::to_value(notification).map_err(|error| RenderError::Fails(error.to_string()))?;
        escape_all(&mut fields, escape);
        let template = self.0.get_template(NAME).map_err(|error| RenderError::of(&error))?;
        let mut out = BoundedBuffer::default();
        let made = template.render_captured_to(Value::from(Serde(&fields)), &mut out).map(drop);
        if out.is_full {
            return Err(RenderError::TooLong);
        }
        made.map_err(|error| RenderError::of(&error))?;
        match serde_json::from_slice::<IgnoredAny>(&out.bytes) {
            Ok(_) => Ok(out.bytes),
            Err(error) => Err(RenderError::NotJson(error.to_string())),
        }
    }
}

impl RenderError {
    /// Keeps what the template's author needs: the kind of the error, and its line. The detail may quote values.
    fn of(error: &Error) -> Self {
        let line = error.line().map(|line| format!(" in line {line}")).unwrap_or_default();
        let detail = match error.kind() {
            // These name what the template has written.
            ErrorKind::SyntaxError | ErrorKind::UnknownFilter | ErrorKind::UnknownTest | ErrorKind::UnknownFunction => {
                error.detail().map(|detail| format!(": {detail}")).unwrap_or_default()
            }
            ErrorKind::UndefinedError => ": a field that notifications don't have".to_owned(),
            _ => String::new(),
        };
        Self::Fails(format!("{}{line}{detail}", error.kind()))
    }
}

/// Writes a value as the inside of a JSON string. What is marked as safe, such as JSON by `tojson`, is written as it is.
fn write_escaped(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    if value.is_none() {
        return Ok(());
    }
    if value.is_undefined() {
        return minijinja::escape_formatter(out, state, value);
    }
    let text = value.to_string();
    if value.is_safe() {
        return out.write_str(&text).map_err(Error::from);
    }
    let quoted = serde_json::to_string(&text).map_err(|_| Error::from(ErrorKind::BadSerialization))?;
    let inside = quoted.get(1..quoted.len() - 1).unwrap_or_default();
    out.write_str(inside).map_err(Error::from)
}

fn escape_all(value: &mut serde_json::Value, escape: fn(&str) -> String) {
    match value {
        serde_json::Value::String(text) => *text = escape(text),
        serde_json::Value::Array(list) => list.iter_mut().for_each(|value| escape_all(value, escape)),
        serde_json::Value::Object(map) => map.values_mut().for_each(|value| escape_all(value, escape)),
        _ => {}
    }
}

/// An output that refuses to grow beyond its maximum.
#[derive(Default)]
struct BoundedBuffer {
    bytes: Vec<u8>,
    is_full: bool,
}

impl Write for BoundedBuffer {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + part.len() > MAX_OUTPUT {
            self.is_full = true;
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        self.bytes.extend_from_slice(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A template may contain a secret.
        f.write_str("Template")
    }
}

#[cfg(test)]
mod tests;
