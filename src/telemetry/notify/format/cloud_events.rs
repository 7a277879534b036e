//! The headers of `CloudEvents` 1.0 in binary mode over HTTP; the body is the notification.

use super::super::notification::Notification;
use http::header::InvalidHeaderValue;
use http::{HeaderName, HeaderValue};
use std::fmt::Write;

/// Returns the event's attributes as headers.
pub(super) fn headers(notification: &Notification) -> Result<Vec<(HeaderName, HeaderValue)>, InvalidHeaderValue> {
    let cluster = notification.cluster.as_deref().unwrap_or("cluster");
    let subject = notification.node.as_ref().or(notification.instance.as_ref());
    let attributes = [
        ("ce-specversion", Some("1.0".to_owned())),
        ("ce-id", Some(notification.id.clone())),
        ("ce-source", Some(format!("/ebbtide/{cluster}"))),
        ("ce-type", Some(format!("ebbtide.notification.{}", notification.phase))),
        ("ce-time", Some(notification.time.to_string())),
        ("ce-subject", subject.cloned()),
    ];
    let header = |(name, value): (&'static str, Option<String>)| {
        value.map(|value| Ok((HeaderName::from_static(name), HeaderValue::from_str(&encoded(&value))?)))
    };
    attributes.into_iter().filter_map(header).collect()
}

/// Encodes what a header can't carry as it is: spaces, quotes, percent signs, and all that is not printable ASCII.
fn encoded(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'"' | b'%' => {}
            0x21..=0x7e => {
                out.push(char::from(byte));
                continue;
            }
            _ => {}
        }
        // Writing to a String can't fail.
        let _ = write!(out, "%{byte:02X}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_only_what_it_can_carry() {
        assert_eq!(encoded("node-0.eu-west-1"), "node-0.eu-west-1");
        assert_eq!(encoded("a \"b\"\r\nc: 5%€"), "a%20%22b%22%0D%0Ac:%205%25%E2%82%AC");
    }
}
