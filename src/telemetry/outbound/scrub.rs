//! Takes secrets out of texts that others have written: answers may repeat the request.

use super::{Receiver, Secret};
use http::HeaderValue;
use http::uri::PathAndQuery;

/// Minimum length of a secret's part that is taken out, in bytes: shorter ones are words such as `v1`.
const MIN_PART: usize = 6;

/// Maximum length of a quoted text, in characters.
const MAX_QUOTE: usize = 200;

/// Secrets, and their parts.
#[derive(Clone)]
pub struct Scrubber {
    parts: Vec<String>,
}

impl Scrubber {
    /// A scrubber of the receiver's URL, of the headers' values, of `secrets`, and of the proxy's password.
    #[must_use]
    pub fn new<'a>(
        receiver: &'a Receiver,
        headers: impl Iterator<Item = &'a HeaderValue>,
        secrets: impl Iterator<Item = &'a Secret>,
        proxy: Option<&'a Secret>,
    ) -> Self {
        let uri = receiver.uri();
        let mut parts: Vec<&str> = Vec::new();
        parts.extend(uri.path_and_query().map(PathAndQuery::as_str));
        parts.extend(uri.path().split('/'));
        parts.extend(uri.query().into_iter().flat_map(|query| query.split(['&', '='])));
        for value in headers.filter_map(|value| value.to_str().ok()) {
            parts.push(value);
            parts.extend(value.split(' '));
        }
        parts.extend(secrets.map(Secret::reveal));
        let user = proxy.and_then(|proxy| proxy.reveal().rsplit_once('@'));
        parts.extend(user.into_iter().flat_map(|(user, _)| user.split(['/', ':'])));
        let mut parts: Vec<String> =
            parts.into_iter().filter(|part| part.len() >= MIN_PART).map(str::to_owned).collect();
        // Of two parts the longer one is taken out first.
        parts.sort_by_key(|part| std::cmp::Reverse(part.len()));
        parts.dedup();
        Self { parts }
    }

    /// Returns the begin of a text, without secrets and control characters, on one line.
    #[must_use]
    pub fn quote(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for part in &self.parts {
            text = text.replace(part, "***");
        }
        let words: Vec<String> =
            text.split_whitespace().map(|word| word.chars().filter(|c| !c.is_control()).collect()).collect();
        let text = words.join(" ");
        match text.char_indices().nth(MAX_QUOTE) {
            Some((at, _)) => format!("{}…", &text[..at]),
            None => text,
        }
    }
}

impl std::fmt::Debug for Scrubber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scrubber")
    }
}
