//! What a field of a message may hold, read without ever failing on its type.
//!
//! A derived reader stops at the first value of a wrong type and says only line and column. These three accept every JSON
//! value and keep what it was, so that each parser decides by itself what it must have, and says where it is missing.

mod read;

use super::{Identity, InstanceId, Malformed, Reason};
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use serde::Deserialize;
use std::borrow::Cow;

/// The longest name taken. Health's ARNs may have 1,600 characters and hooks' and groups' names 255; a longer one is not
/// AWS's, and would travel on into annotations and logs.
const LONGEST_NAME: usize = 2048;

/// How much of a message's text an error may quote.
const LONGEST_QUOTE: usize = 60;

/// AWS's documentation shows `Sat, 05 Jun 2016`, which was a Sunday: the weekday says nothing the date does not.
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

/// A field's place in the message, for errors: the object it is in (`detail.`, or nothing) and its name.
#[derive(Clone, Copy)]
pub(super) struct At(pub &'static str, pub &'static str);

impl At {
    pub(super) fn missing(self) -> Malformed {
        self.malformed(Reason::MissingField, "missing".to_owned())
    }

    pub(super) fn bad(self, what: impl Into<String>) -> Malformed {
        self.malformed(Reason::BadValue, what.into())
    }

    pub(super) fn malformed(self, reason: Reason, what: String) -> Malformed {
        Malformed { reason, at: format!("{}{}", self.0, self.1), what }
    }
}

impl Text<'_> {
    /// The text, where there is one.
    pub(super) fn get(&self) -> Option<&str> {
        match self {
            Self::Is(text) => Some(text),
            Self::Missing | Self::Other(_) => None,
        }
    }

    /// Whether there is anything at all, of whatever type.
    pub(super) const fn is_present(&self) -> bool {
        !matches!(self, Self::Missing)
    }

    /// The text, which must be there.
    pub(super) fn text(&self, at: At) -> Result<&str, Malformed> {
        match self {
            Self::Is(text) => Ok(text),
            Self::Missing => Err(at.missing()),
            Self::Other(found) => Err(at.bad(format!("{found} where a string is expected"))),
        }
    }

    /// A name or identifier, which must be there, not empty, and of a length that a name can have.
    pub(super) fn name(&self, at: At) -> Result<&str, Malformed> {
        match self.text(at)? {
            "" => Err(at.bad("empty")),
            text if text.len() > LONGEST_NAME => Err(at.bad(format!("{} bytes, too long for a name", text.len()))),
            text => Ok(text),
        }
    }

    /// An instance id, which must be there.
    pub(super) fn instance(&self, at: At) -> Result<InstanceId, Malformed> {
        let text = self.text(at)?;
        InstanceId::new(text).ok_or_else(|| at.bad(format!("{} is not an instance id", quote(text))))
    }

    /// An RFC 3339 time, with or without a fraction, which must be there.
    pub(super) fn time(&self, at: At) -> Result<Timestamp, Malformed> {
        let text = self.text(at)?;
        text.parse().map_err(|_| at.bad(format!("{} is not an RFC 3339 time", quote(text))))
    }

    /// A time in RFC 3339 or RFC 2822, where there is a readable one.
    pub(super) fn time_if_any(&self) -> Option<Timestamp> {
        let text = self.get()?;
        text.parse().ok().or_else(|| RFC_2822.parse_timestamp(text).ok())
    }
}

impl<T> Object<T> {
    /// The object, which must be there.
    pub(super) fn required(self, at: At) -> Result<T, Malformed> {
        match self {
            Self::Is(object) => Ok(object),
            Self::Missing => Err(at.missing()),
            Self::Other(found) => Err(at.bad(format!("{found} where an object is expected"))),
        }
    }
}

/// What every EventBridge event carries beside its detail.
pub(super) struct Head<'a> {
    pub id: &'a Text<'a>,
    pub at: Timestamp,
}

impl Head<'_> {
    /// The event's own identity. Asked for only where nothing better identifies the notice, so that an event whose
    /// identity is elsewhere does not need an `id`.
    pub(super) fn identity(&self) -> Result<Identity, Malformed> {
        Ok(Identity::Event(self.id.name(At("", "id"))?.to_owned()))
    }
}

/// Reads the whole body as one object.
pub(super) fn root<'a, T: Deserialize<'a>>(body: &'a str) -> Result<T, Malformed> {
    let at = At("", "body");
    let not_json = |what| at.malformed(Reason::NotJson, what);
    match serde_json::from_str(body) {
        Ok(Object::Is(object)) => Ok(object),
        Ok(Object::Missing) => Err(not_json("null where an object is expected".to_owned())),
        Ok(Object::Other(found)) => Err(not_json(format!("{found} where an object is expected"))),
        // The one thing that the types above can't take is a key that comes twice: then there is no saying which is meant.
        Err(error) if error.is_data() => Err(at.bad(clip(&error.to_string()))),
        Err(error) => Err(not_json(clip(&error.to_string()))),
    }
}

/// Reads an EventBridge event's `detail`, which must be an object.
///
/// The body is gone through a second time rather than its detail being kept from the first: messages are short, and the
/// parser of each kind then names its own fields.
pub(super) fn detail<'a, T: Deserialize<'a>>(body: &'a str) -> Result<T, Malformed> {
    #[derive(Deserialize)]
    #[serde(bound(deserialize = "T: Deserialize<'de>"))]
    struct Event<T> {
        #[serde(default)]
        detail: Object<T>,
    }
    root::<Event<T>>(body)?.detail.required(At("", "detail"))
}

/// A piece of a message's text, in quotation marks.
pub(super) fn quote(text: &str) -> String {
    format!("`{}`", clip(text))
}

/// At most [`LONGEST_QUOTE`] characters, all printable: the text may be anything, and goes to logs and terminals.
fn clip(text: &str) -> String {
    let printable = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    let mut clipped: String = text.chars().take(LONGEST_QUOTE).map(printable).collect();
    if text.chars().nth(LONGEST_QUOTE).is_some() {
        clipped.push('…');
    }
    clipped
}
