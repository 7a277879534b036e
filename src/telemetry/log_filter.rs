//! The filter of the log, which can be changed while the process runs: a night's question needs no restart.

use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use tracing_subscriber::filter::{LevelFilter, Targets};

/// The filter of the log. Clones share it.
#[derive(Clone)]
pub struct LogFilter {
    apply: Arc<dyn Fn(Targets) -> bool + Send + Sync>,
    texts: Arc<Mutex<Texts>>,
}

struct Texts {
    /// The filter of the settings.
    first: String,
    now: String,
}

/// The reason why a filter was not changed.
#[derive(Debug, thiserror::Error)]
pub enum BadFilter {
    /// It can't be read.
    #[error("\"{0}\" is not a filter: {1}; write info, or info,ebbtide=debug")]
    Unreadable(String, tracing_subscriber::filter::ParseError),
    /// It would hide Ebbtide's own log.
    #[error(
        "\"{0}\" sets no level for Ebbtide, which would log nothing; begin with off, error, warn, info, debug or trace, as in info,kube=debug"
    )]
    NoLevel(String),
    /// The log has gone: the process ends.
    #[error("the log can't be changed any more, because the process ends")]
    Gone,
}

/// Reads a filter. A mistyped level would be a module's name, and hide everything.
///
/// # Errors
/// When the text is not a filter, or has no level for Ebbtide.
pub fn parse(text: &str) -> Result<Targets, BadFilter> {
    let filter: Targets = text.parse().map_err(|error| BadFilter::Unreadable(text.to_owned(), error))?;
    let is_known = |part: &str| match part.split_once('=') {
        None => part.parse::<LevelFilter>().is_ok(),
        Some(_) => true,
    };
    let is_ours = |part: &str| !part.contains('=') || part.starts_with("ebbtide");
    let mut parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let all_known = parts.clone().all(is_known);
    if all_known && parts.any(is_ours) { Ok(filter) } else { Err(BadFilter::NoLevel(text.to_owned())) }
}

impl LogFilter {
    /// The filter of the settings, and what puts another one in its place; it returns false if it can't.
    pub fn new(first: &Targets, apply: impl Fn(Targets) -> bool + Send + Sync + 'static) -> Self {
        let first = first.to_string();
        Self { apply: Arc::new(apply), texts: Arc::new(Mutex::new(Texts { now: first.clone(), first })) }
    }

    /// Returns the filter.
    #[must_use]
    pub fn now(&self) -> String {
        self.texts.lock().now.clone()
    }

    /// Changes the filter; an empty text means that of the settings. Returns the new one.
    ///
    /// # Errors
    /// When the text is not a filter. The old one stays.
    pub fn change(&self, text: &str) -> Result<String, BadFilter> {
        let mut texts = self.texts.lock();
        let text = if text.is_empty() { &texts.first } else { text };
        let filter = parse(text)?;
        texts.now = filter.to_string();
        if (self.apply)(filter) { Ok(texts.now.clone()) } else { Err(BadFilter::Gone) }
    }
}

impl fmt::Debug for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogFilter({})", self.now())
    }
}
