//! Label selectors and taints, as `kubectl` writes them.

pub use k8s_openapi::api::core::v1::Taint;
use kube::core::Expression;
pub use kube::core::Selector;
use std::fmt;

/// The error of a label selector, a key or a taint that can't be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// A selector has a parenthesis within another.
    #[error("\"{0}\" has a parenthesis within another")]
    NestedParenthesis(String),
    /// A selector closes a parenthesis that is not open.
    #[error("\"{0}\" closes a parenthesis that is not open")]
    UnopenedParenthesis(String),
    /// A selector leaves a parenthesis open.
    #[error("\"{0}\" leaves a parenthesis open")]
    OpenParenthesis(String),
    /// A term continues after its list of values.
    #[error("\"{0}\" continues after its parenthesis")]
    TrailingText(String),
    /// A term has a list of values, but neither `in` nor `notin`.
    #[error("\"{0}\" is not a label expression; write KEY=VALUE, KEY in (A,B), KEY or !KEY")]
    Expression(String),
    /// A key is not valid.
    #[error("\"{0}\" is not a label key; write it as name or example.com/name")]
    Key(String),
    /// A value is not valid.
    #[error("\"{0}\" is not a label value; it has at most 63 letters, digits, \"-\", \"_\" and \".\"")]
    Value(String),
    /// A taint names no effect.
    #[error("\"{0}\" names no effect; write KEY=VALUE:EFFECT, such as going=true:NoSchedule")]
    MissingEffect(String),
    /// A taint's effect is unknown.
    #[error("\"{0}\" is not an effect; choose NoSchedule, PreferNoSchedule or NoExecute")]
    Effect(String),
    /// A pattern is neither a key nor a prefix of keys.
    #[error(
        "\"{0}\" is neither a key nor a prefix; write name, example.com/name, or a prefix with one * at its end, as example.com/*"
    )]
    Pattern(String),
    /// A pattern without a prefix.
    #[error("* alone matches every key; write a prefix before it, as example.com/*")]
    BarePattern,
}

/// Keys of taints: one, or all with a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPattern {
    /// One key.
    Key(String),
    /// All keys with this prefix.
    Prefix(String),
}

impl KeyPattern {
    /// Whether it matches the key.
    #[must_use]
    pub fn matches(&self, key: &str) -> bool {
        match self {
            Self::Key(own) => key == own,
            Self::Prefix(prefix) => key.starts_with(prefix.as_str()),
        }
    }
}

impl fmt::Display for KeyPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => f.write_str(key),
            Self::Prefix(prefix) => write!(f, "{prefix}*"),
        }
    }
}

/// Parses a label selector: `a=b`, `a==b`, `a!=b`, `a`, `!a`, `a in (b,c)`, `a notin (b,c)`, joined by commas.
///
/// # Errors
/// The first term that can't be parsed.
pub fn selector(text: &str) -> Result<Selector, LabelError> {
    let mut selector = Selector::default();
    for term in terms(text)? {
        selector.extend(expression(term.trim())?);
    }
    Ok(selector)
}

/// Splits a selector at the commas outside of parentheses.
fn terms(text: &str) -> Result<Vec<&str>, LabelError> {
    let mut terms = Vec::new();
    let (mut begin, mut inside) = (0, false);
    for (at, character) in text.char_indices() {
        match character {
            '(' if inside => return Err(LabelError::NestedParenthesis(text.to_owned())),
            '(' => inside = true,
            ')' if !inside => return Err(LabelError::UnopenedParenthesis(text.to_owned())),
            ')' => inside = false,
            ',' if !inside => {
                terms.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(LabelError::OpenParenthesis(text.to_owned()));
    }
    terms.push(&text[begin..]);
    Ok(terms)
}

fn expression(term: &str) -> Result<Expression, LabelError> {
    if let Some(key) = term.strip_prefix('!') {
        return Ok(Expression::DoesNotExist(checked_key(key)?));
    }
    if let Some((key, value)) = term.split_once("!=") {
        return Ok(Expression::NotEqual(checked_key(key)?, checked_value(value)?));
    }
    if let Some((key, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        return Ok(Expression::Equal(checked_key(key)?, checked_value(value)?));
    }
    let Some((head, values)) = term.split_once('(') else { return Ok(Expression::Exists(checked_key(term)?)) };
    let values = values.strip_suffix(')').ok_or_else(|| LabelError::TrailingText(term.to_owned()))?;
    let values = values.split(',').map(checked_value).collect::<Result<_, _>>()?;
    match head.split_whitespace().collect::<Vec<_>>()[..] {
        [key, "in"] => Ok(Expression::In(checked_key(key)?, values)),
        [key, "notin"] => Ok(Expression::NotIn(checked_key(key)?, values)),
        _ => Err(LabelError::Expression(term.to_owned())),
    }
}

/// Parses a taint: `KEY=VALUE:EFFECT` or `KEY:EFFECT`.
///
/// # Errors
/// The part that can't be parsed.
pub fn taint(text: &str) -> Result<Taint, LabelError> {
    let (named, effect) = text.rsplit_once(':').ok_or_else(|| LabelError::MissingEffect(text.to_owned()))?;
    if !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect) {
        return Err(LabelError::Effect(effect.to_owned()));
    }
    let (key, value) = match named.split_once('=') {
        Some((key, value)) => (key, Some(checked_value(value)?)),
        None => (named, None),
    };
    Ok(Taint { key: checked_key(key)?, value, effect: effect.to_owned(), time_added: None })
}

/// Parses the key of a label or a taint: a name of at most 63 characters, optionally after a DNS name and a slash.
///
/// # Errors
/// The key, if it is not valid.
pub fn checked_key(key: &str) -> Result<String, LabelError> {
    let key = key.trim();
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let dns = |prefix: &str| {
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.');
        !prefix.is_empty() && prefix.len() <= 253 && prefix.bytes().all(allowed)
    };
    if is_name(name) && prefix.is_none_or(dns) {
        return Ok(key.to_owned());
    }
    Err(LabelError::Key(key.to_owned()))
}

/// Parses a key, or a prefix of keys with a `*` at its end.
///
/// # Errors
/// The pattern, if no key, or every key, matches it.
pub fn key_pattern(text: &str) -> Result<KeyPattern, LabelError> {
    match text.split_once('*') {
        None => checked_key(text).map(KeyPattern::Key),
        Some(("", "")) => Err(LabelError::BarePattern),
        // Some key has the prefix.
        Some((prefix, "")) if checked_key(&format!("{prefix}x")).is_ok() => Ok(KeyPattern::Prefix(prefix.to_owned())),
        Some(_) => Err(LabelError::Pattern(text.to_owned())),
    }
}

fn checked_value(value: &str) -> Result<String, LabelError> {
    let value = value.trim();
    if value.is_empty() || is_name(value) {
        return Ok(value.to_owned());
    }
    Err(LabelError::Value(value.to_owned()))
}

fn is_name(text: &str) -> bool {
    let ends = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::SelectorExt;
    use std::collections::BTreeMap;

    #[test]
    fn selectors_match_as_kubectls_do() {
        let labels: BTreeMap<_, _> =
            [("tier".to_owned(), "web".to_owned()), ("a.b/c".to_owned(), String::new())].into();
        let table = [
            ("tier=web", true),
            ("tier==web,a.b/c", true),
            ("tier = web", true),
            ("tier!=web", false),
            ("other!=web", true),
            ("!other", true),
            ("!tier", false),
            ("a.b/c=", true),
            ("tier in (api, web)", true),
            ("tier notin (api,web),a.b/c", false),
            ("other notin (api)", true),
        ];
        for (text, matches) in table {
            assert_eq!(selector(text).unwrap().matches(&labels), matches, "{text}");
        }
        for bad in
            ["", "a,,b", "a in b", "a on (b)", "a in (b", "a)", "a in ((b))", "a in (b) c", "-a", "a/b/c", "A.b/c=d e"]
        {
            assert!(selector(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn taints_are_read_as_kubectl_writes_them() {
        let full = taint("example.com/going=now:NoExecute").unwrap();
        assert_eq!((&*full.key, full.value.as_deref(), &*full.effect), ("example.com/going", Some("now"), "NoExecute"));
        assert_eq!(taint("going:NoSchedule").unwrap().value, None);
        for bad in ["going", "going=now", "going:Now", ":NoSchedule", "a b:NoSchedule", "a=b c:NoSchedule"] {
            assert!(taint(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_pattern_is_a_key_or_a_prefix_of_keys() {
        let table = [
            ("cni", "cni", true),
            ("cni", "cni2", false),
            ("a.b/c", "a.b/c", true),
            ("readiness.k8s.io/*", "readiness.k8s.io/network", true),
            ("readiness.k8s.io/*", "readiness.k8s.io", false),
            ("readiness.k8s.io/*", "other.readiness.k8s.io/network", false),
            ("readiness.k8s.io/net-*", "readiness.k8s.io/net-a", true),
            ("readiness.k8s.io/net-*", "readiness.k8s.io/storage", false),
            ("readiness.*", "readiness.k8s.io/network", true),
            ("cni-*", "cni-", true),
        ];
        for (text, key, matches) in table {
            let pattern = key_pattern(text).unwrap();
            assert_eq!((pattern.matches(key), pattern.to_string().as_str()), (matches, text), "{text} {key}");
        }
        assert_eq!(key_pattern("*"), Err(LabelError::BarePattern));
        for bad in ["**", "a*b", "*a", "a.b/*c", "a/*/*", "a/b/*", "/*", "-a*", "A.b/*", "a b*"] {
            assert_eq!(key_pattern(bad), Err(LabelError::Pattern(bad.to_owned())), "{bad}");
        }
        for bad in ["", "a/b/c", "-a"] {
            assert_eq!(key_pattern(bad), Err(LabelError::Key(bad.to_owned())), "{bad}");
        }
    }
}
