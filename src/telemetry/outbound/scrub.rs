//! Takes secrets out of texts that others have written: answers may repeat the request.

use super::{Receiver, Secret};
use http::HeaderValue;
use http::uri::PathAndQuery;

/// Minimum length of a secret's part that is taken out, in bytes: shorter ones are words such as `v1`.
const MIN_PART: usize = 6;

/// Minimum length of a whole secret that is taken out, in bytes: shorter ones protect nothing.
const MIN_WHOLE: usize = 4;

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
        let user = proxy.and_then(|proxy| proxy.reveal().rsplit_once('@'));
        parts.extend(user.into_iter().flat_map(|(user, _)| user.split(['/', ':'])));
        // As receivers may quote them: what is percent-encoded, decoded, too.
        let parts = parts.into_iter().flat_map(|part| [part.to_owned(), decoded(part)]);
        let values = headers.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        let (words, values): (Vec<Vec<String>>, Vec<String>) =
            values.map(|value| (value.split(' ').map(str::to_owned).collect(), value)).unzip();
        let parts = parts.chain(words.into_iter().flatten()).filter(|part| part.len() >= MIN_PART);
        let whole = values.into_iter().chain(secrets.map(|secret| secret.reveal().to_owned()));
        let parts = parts.chain(whole.filter(|secret| secret.len() >= MIN_WHOLE)).map(|part| on_one_line(&part));
        let mut parts: Vec<String> = parts.filter(|part| part.len() >= MIN_WHOLE).collect();
        // Of two parts the longer one is taken out first.
        parts.sort_by_key(|part| std::cmp::Reverse(part.len()));
        parts.dedup();
        Self { parts }
    }

    /// Returns the start of a text, without secrets and control characters, on one line.
    #[must_use]
    pub fn quote(&self, text: &str) -> String {
        // First laid out, because a secret with other spaces, or with control characters within, is still the secret.
        let mut text = on_one_line(text);
        for part in &self.parts {
            text = text.replace(part, "***");
        }
        match text.char_indices().nth(MAX_QUOTE) {
            Some((at, _)) => format!("{}…", &text[..at]),
            None => text,
        }
    }
}

/// Returns a text with a space for all space between words, and without control characters.
fn on_one_line(text: &str) -> String {
    let words = text.split_whitespace().map(|word| word.chars().filter(|c| !c.is_control()).collect::<String>());
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Returns a text without percent-encoding.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, others @ ..] = rest {
        let code = match rest {
            [b'%', high, low, ..] => {
                std::str::from_utf8(&[*high, *low]).ok().and_then(|code| u8::from_str_radix(code, 16).ok())
            }
            _ => None,
        };
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &rest[3..] } else { others };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl std::fmt::Debug for Scrubber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scrubber")
    }
}

#[cfg(test)]
mod tests {
    use super::super::header;
    use super::*;

    fn quoted(url: &str, headers: &[&str], text: &str) -> String {
        let secret = |text: &str| {
            let Ok(secret) = text.parse::<Secret>();
            secret
        };
        let headers: Vec<_> = headers.iter().map(|text| header(&secret(text)).unwrap().1).collect();
        Scrubber::new(&Receiver::parse(&secret(url)).unwrap(), headers.iter(), [].into_iter(), None).quote(text)
    }

    #[test]
    fn no_form_of_a_secret_is_quoted() {
        let sig = "https://hooks.example/x?sig=Ab12%2FCd34%2BEf56%3D";
        for text in ["bad sig Ab12/Cd34+Ef56=", "bad sig Ab12%2FCd34%2BEf56%3D"] {
            assert_eq!(quoted(sig, &[], text), "bad sig ***");
        }
        let plain = "https://hooks.example/x";
        assert_eq!(quoted(plain, &["x-pin=pw123"], "wrong x-pin: pw123"), "wrong x-pin: ***");
        assert_eq!(quoted(plain, &["x-token=gehëim-s3cret"], "wrong token gehëim-s3cret"), "wrong token ***");
        assert_eq!(quoted(plain, &["authorization=Bearer t0kens"], "t0kens is wrong"), "*** is wrong");
        assert_eq!(decoded("%zz%4"), "%zz%4");
        for text in ["wrong pin: pw 12 34", "wrong pin: pw  12\n34", "wrong pin: p\u{1}w 12 \u{7f} 34"] {
            assert_eq!(quoted(plain, &["x-pin=pw 12 34"], text), "wrong pin: ***");
        }
    }
}
