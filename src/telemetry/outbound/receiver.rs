//! A receiver. Its URL and its headers are secrets: with them an attacker could write to the user's channel.

use http::{HeaderName, HeaderValue, Uri};
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// A text that no log line, no error and no debug output shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Returns the text.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl FromStr for Secret {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The receiver's URL. Shown is its host only.
#[derive(Clone, PartialEq, Eq)]
pub struct Receiver {
    uri: Uri,
    host: String,
}

/// The reason why a text is no receiver's URL. The text is not repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadReceiver {
    /// The text is no URL of HTTP.
    #[error("is not a URL; write it as https://HOST/PATH")]
    NoUrl,
    /// The URL has a user or a password.
    #[error("has a user or a password; take them out, and send them as the header Authorization")]
    Credentials,
}

impl Receiver {
    /// Reads a URL.
    ///
    /// # Errors
    /// Why it is none.
    pub fn parse(url: &Secret) -> Result<Self, BadReceiver> {
        let uri: Uri = url.reveal().trim().parse().map_err(|_| BadReceiver::NoUrl)?;
        let authority = uri.authority().ok_or(BadReceiver::NoUrl)?;
        if authority.as_str().contains('@') {
            return Err(BadReceiver::Credentials);
        }
        // The parser ignores a port that is none.
        let named = authority.as_str();
        let behind = named.rsplit(']').next().unwrap_or_default();
        let has_wrong_port = behind.contains(':') && authority.port_u16().is_none();
        if !matches!(uri.scheme_str(), Some("http" | "https")) || authority.host().is_empty() || has_wrong_port {
            return Err(BadReceiver::NoUrl);
        }
        let host = named.to_owned();
        Ok(Self { uri, host })
    }

    /// Returns the URL, for the request.
    #[must_use]
    pub const fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Returns the host and the port, if the URL names one.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Receiver({})", self.host)
    }
}

/// The reason why a text is no header. Its value is not repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHeader {
    /// There is no `=`.
    #[error("a header without a value; write NAME=VALUE, with =, not a colon")]
    NoValue,
    /// The name is none.
    #[error("a header's name has characters that HTTP does not allow; write NAME=VALUE")]
    Name,
    /// The value has forbidden characters.
    #[error("the value of {0} has characters that HTTP does not allow, such as a line break; remove them")]
    Value(HeaderName),
    /// The header is ours.
    #[error("{0} is set by the request itself; remove it")]
    Ours(HeaderName),
}

/// Headers that the request, its format or its signature sets.
const OURS: [&str; 5] = ["connection", "content-length", "ebbtide-signature", "host", "transfer-encoding"];

/// Reads `NAME=VALUE`. The value is marked as sensitive, so that debug output hides it.
///
/// # Errors
/// Why it is no header.
pub fn header(text: &Secret) -> Result<(HeaderName, HeaderValue), BadHeader> {
    let (name, value) = text.reveal().split_once('=').ok_or(BadHeader::NoValue)?;
    let name: HeaderName = name.trim().parse().map_err(|_| BadHeader::Name)?;
    if OURS.contains(&name.as_str()) {
        return Err(BadHeader::Ours(name));
    }
    let mut value: HeaderValue = value.trim().parse().map_err(|_| BadHeader::Value(name.clone()))?;
    value.set_sensitive(true);
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> Secret {
        let Ok(secret) = text.parse();
        secret
    }

    #[test]
    fn a_receiver_shows_its_host_only() {
        let receiver = Receiver::parse(&secret("https://hooks.example:8443/services/T0/B0/word?key=word")).unwrap();
        assert_eq!((receiver.host(), receiver.uri().path()), ("hooks.example:8443", "/services/T0/B0/word"));
        assert_eq!(format!("{receiver:?} {:?}", secret("word")), "Receiver(hooks.example:8443) Secret");
        assert!(
            Receiver::parse(&secret("http://[::1]:80/")).is_ok() && Receiver::parse(&secret("http://[::1]")).is_ok()
        );
    }

    #[test]
    fn what_is_no_receiver_is_not_repeated() {
        for (url, error) in [
            ("hooks.example/t0ken", BadReceiver::NoUrl),
            ("/t0ken", BadReceiver::NoUrl),
            ("ftp://hooks.example/t0ken", BadReceiver::NoUrl),
            ("https://hooks.example:70000/t0ken", BadReceiver::NoUrl),
            ("https:///t0ken", BadReceiver::NoUrl),
            ("https://me:t0ken@hooks.example/", BadReceiver::Credentials),
        ] {
            assert_eq!(Receiver::parse(&secret(url)), Err(error), "{url}");
            assert!(!error.to_string().contains("t0ken"));
        }
    }

    #[test]
    fn a_header_hides_its_value() {
        let (name, value) = header(&secret("Authorization=Bearer a=word")).unwrap();
        assert_eq!((name.as_str(), value.to_str().unwrap()), ("authorization", "Bearer a=word"));
        assert!(!format!("{value:?}").contains("word"));
        for (text, error) in [
            ("Authorization: word", BadHeader::NoValue),
            ("a b=word", BadHeader::Name),
            ("x-a=wo\nrd", BadHeader::Value(HeaderName::from_static("x-a"))),
            ("Content-Length=1", BadHeader::Ours(http::header::CONTENT_LENGTH)),
        ] {
            assert_eq!(header(&secret(text)), Err(error), "{text}");
        }
    }
}
