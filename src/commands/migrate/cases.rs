//! The cases of a row: what decides whether a value is lost, needless or different.

use super::selectors::selects_the_same;
use super::table::Case;
use super::value::{NthValue, number, switch};

impl Case {
    /// Whether all that the case names holds.
    pub fn applies(&self, nth: &NthValue<'_>) -> bool {
        let (value, number) = (nth.value, number(nth.value));
        let has = |what: &String| value.as_str().is_some_and(|text| text.contains(what)) || value.get(what).is_some();
        let is_from_value =
            |key: &String| self::number(&nth.all[key]).is_some_and(|least| least > 0 && number >= Some(least));
        self.mode.is_none_or(|mode| mode == nth.mode)
            && self.is.is_none_or(|on| switch(value) == Some(on))
            && self.has.as_ref().is_none_or(has)
            && self.from.is_none_or(|from| number >= Some(from))
            && self.to.is_none_or(|to| number.is_some_and(|number| number <= to))
            && self.from_value.as_ref().is_none_or(is_from_value)
            && self.on.as_ref().is_none_or(|key| nth.is_on(key))
            && !(self.foreign_selectors && selects_the_same(nth, value))
            && !(self.not_a_queue && value.as_str().is_some_and(is_queue_url))
    }
}

/// Whether the chart takes a text as the URL of a queue.
fn is_queue_url(text: &str) -> bool {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    rest.and_then(|rest| rest.split_once('/')).is_some_and(|(_, path)| path.chars().any(|c| c != '/'))
}
