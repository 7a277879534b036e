//! Fields of a message, read without a failure on their type.
//!
//! A derived deserializer stops at the first value of a wrong type, and reports only line and column. These three types accept every
//! JSON value and keep its type, so that each parser decides which fields it requires, and reports the path of a missing one.

mod read;

use super::{Identity, InstanceId, Malformed, MalformedReason, NoticeKind};
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use serde::Deserialize;
use std::borrow::Cow;

/// Maximum number of characters of a name: the limit for hooks and groups. A longer name is not AWS's. It would get into annotations and
/// logs, and each waiting notice holds several copies.
const MAX_NAME: usize = 255;

/// Maximum length of an ARN in bytes: Health's have up to 1,600 characters.
const MAX_ARN: usize = 2048;

/// Maximum number of characters of a message's text that an error quotes.
const MAX_QUOTE: usize = 60;

/// Parser that ignores a wrong weekday: AWS's documentation shows `Sat, 05 Jun 2016`, which was a Sunday.
const RFC_2822: rfc2822::DateTimeParser = rfc2822::DateTimeParser::new().relaxed_weekday(true);

/// A field that should hold text. `null` counts as missing.
#[derive(Debug, Default)]
pub(super) enum Text<'a> {
    #[default]
    Missing,
    Is(Cow<'a, str>),
    Other(&'static str),
}

/// A field that should hold an object. `null` counts as missing.
#[derive(Debug, Default)]
pub(super) enum Object<T> {
    #[default]
    Missing,
    Is(T),
    Other(&'static str),
}

/// A field that should hold a list. `null` counts as missing.
#[derive(Debug, Default)]
pub(super) enum List<T> {
    #[default]
    Missing,
    Is(Vec<T>),
    Other(&'static str),
}

/// A field's path in the message, for errors: its object (`detail.`, or nothing) and its name.
#[derive(Clone, Copy)]
pub(super) struct At(pub &'static str, pub &'static str);

impl At {
    pub(super) fn missing(self) -> Malformed {
        self.malformed(MalformedReason::MissingField, "missing".to_owned())
    }

    pub(super) fn bad(self, what: impl Into<String>) -> Malformed {
        self.malformed(MalformedReason::BadValue, what.into())
    }

    pub(super) fn malformed(self, reason: MalformedReason, what: String) -> Malformed {
        Malformed { reason, at: format!("{}{}", self.0, self.1), what }
    }
}

impl Text<'_> {
    /// Returns the text, if there is one.
    pub(super) fn get(&self) -> Option<&str> {
        match self {
            Self::Is(text) => Some(text),
            Self::Missing | Self::Other(_) => None,
        }
    }

    /// Whether the field has a value, of whatever type.
    pub(super) const fn is_present(&self) -> bool {
        !matches!(self, Self::Missing)
    }

    /// Returns the text, which is required.
    pub(super) fn text(&self, at: At) -> Result<&str, Malformed> {
        match self {
            Self::Is(text) => Ok(text),
            Self::Missing => Err(at.missing()),
            Self::Other(found) => Err(at.bad(format!("{found} where a string is expected"))),
        }
    }

    /// Returns a name or identifier, which is required, not empty, and of a plausible length. AWS's have no control characters, which would
    /// take six bytes each in an annotation.
    pub(super) fn name(&self, at: At) -> Result<&str, Malformed> {
        self.short(at, |text| text.chars().nth(MAX_NAME).is_some())
    }

    /// As [`Text::name`], of an ARN.
    pub(super) fn arn(&self, at: At) -> Result<&str, Malformed> {
        self.short(at, |text| text.len() > MAX_ARN)
    }

    fn short(&self, at: At, is_long: impl Fn(&str) -> bool) -> Result<&str, Malformed> {
        match self.text(at)? {
            "" => Err(at.bad("empty")),
            text if is_long(text) => Err(at.bad(format!("{} bytes, too long for a name", text.len()))),
            text if text.contains(char::is_control) => Err(at.bad("a name with control characters")),
            text => Ok(text),
        }
    }

    /// Returns an instance id, which is required.
    pub(super) fn instance(&self, at: At) -> Result<InstanceId, Malformed> {
        let text = self.text(at)?;
        InstanceId::new(text).ok_or_else(|| at.bad(format!("{} is not an instance id", quote(text))))
    }

    /// Returns an RFC 3339 time, with or without a fraction, which is required.
    pub(super) fn time(&self, at: At) -> Result<Timestamp, Malformed> {
        let text = self.text(at)?;
        text.parse().map_err(|_| at.bad(format!("{} is not an RFC 3339 time", quote(text))))
    }

    /// Returns a time in RFC 3339 or RFC 2822, if there is a readable one.
    pub(super) fn time_if_any(&self) -> Option<Timestamp> {
        let text = self.get()?;
        text.parse().ok().or_else(|| RFC_2822.parse_timestamp(text).ok())
    }
}

impl<T> Object<T> {
    /// Returns the object, which is required.
    pub(super) fn required(self, at: At) -> Result<T, Malformed> {
        match self {
            Self::Is(object) => Ok(object),
            Self::Missing => Err(at.missing()),
            Self::Other(found) => Err(at.bad(format!("{found} where an object is expected"))),
        }
    }
}

/// The fields of every EventBridge event besides its detail.
pub(super) struct Head<'a> {
    pub id: &'a Text<'a>,
    pub at: Timestamp,
}

impl Head<'_> {
    /// Returns the event's own identity. Used only if nothing better identifies the notice, so that an event whose identity is
    /// elsewhere does not need an `id`. EventBridge's are UUIDs.
    pub(super) fn identity(&self, kind: NoticeKind) -> Result<Identity, Malformed> {
        let at = At("", "id");
        match self.id.name(at)? {
            id if id.contains('/') => Err(at.bad(format!("{} is not an event's id", quote(id)))),
            id => Ok(Identity::Event { kind, id: id.to_owned() }),
        }
    }
}

/// Reads the whole body as one object.
pub(super) fn root<'a, T: Deserialize<'a>>(body: &'a str) -> Result<T, Malformed> {
    let at = At("", "body");
    let not_json = |what| at.malformed(MalformedReason::NotJson, what);
    match serde_json::from_str(body) {
        Ok(Object::Is(object)) => Ok(object),
        Ok(Object::Missing) => Err(not_json("null where an object is expected".to_owned())),
        Ok(Object::Other(found)) => Err(not_json(format!("{found} where an object is expected"))),
        // The types above take everything but a duplicate key, whose value is ambiguous.
        Err(error) if error.is_data() => Err(at.bad(clip(&error.to_string()))),
        Err(error) => Err(not_json(clip(&error.to_string()))),
    }
}

/// Reads an EventBridge event's `detail`, which must be an object.
///
/// The body is parsed a second time instead of keeping its detail from the first time: messages are short, and the parser of each kind
/// names its own fields.
pub(super) fn detail<'a, T: Deserialize<'a>>(body: &'a str) -> Result<T, Malformed> {
    #[derive(Deserialize)]
    #[serde(bound(deserialize = "T: Deserialize<'de>"))]
    struct Event<T> {
        #[serde(default)]
        detail: Object<T>,
    }
    root::<Event<T>>(body)?.detail.required(At("", "detail"))
}

/// Quotes a piece of a message's text.
pub(super) fn quote(text: &str) -> String {
    format!("`{}`", clip(text))
}

/// Returns at most [`MAX_QUOTE`] characters, all printable: any text may come, and it is written to logs and terminals.
fn clip(text: &str) -> String {
    let printable = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    let mut clipped: String = text.chars().take(MAX_QUOTE).map(printable).collect();
    if text.chars().nth(MAX_QUOTE).is_some() {
        clipped.push('…');
    }
    clipped
}
