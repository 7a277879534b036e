//! The filter of the log, which can be changed while the process runs: a night's question needs no restart.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use tracing_subscriber::filter::Targets;

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
    /// The log has gone: the process ends.
    #[error("the log can't be changed any more, because the process ends")]
    Gone,
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
        self.texts.lock().unwrap_or_else(PoisonError::into_inner).now.clone()
    }

    /// Changes the filter; an empty text means that of the settings. Returns the new one.
    ///
    /// # Errors
    /// When the text is not a filter. The old one stays.
    pub fn change(&self, text: &str) -> Result<String, BadFilter> {
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        let text = if text.is_empty() { &texts.first } else { text };
        let filter: Targets = text.parse().map_err(|error| BadFilter::Unreadable(text.to_owned(), error))?;
        texts.now = filter.to_string();
        if (self.apply)(filter) { Ok(texts.now.clone()) } else { Err(BadFilter::Gone) }
    }
}

impl fmt::Debug for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogFilter({})", self.now())
    }
}
