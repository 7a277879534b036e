//! Names and values as `helm --set` reads them: Argo CD gives it the parameters of an Application.

use serde_json::{Value, json};
use std::str::Chars;

/// Maximum index in a list: more than any list of NTH's values has, and few enough that a short name can't fill the memory.
const MAX_INDEX: usize = 99;

/// Maximum number of parts of a name: that of Helm.
const MAX_PARTS: usize = 30;

/// The place of a value among values, by its name: `tolerations[0].key`.
#[derive(Debug, PartialEq, Eq)]
pub struct Place(Vec<Step>);

#[derive(Debug, PartialEq, Eq)]
enum Step {
    Name(String),
    Index(usize),
}

impl Place {
    /// Reads a name: parts between dots, each with any number of indices. After a backslash a dot is a part of the text.
    pub fn of(name: &str) -> Option<Self> {
        let (mut rest, mut steps) = (name.chars(), Vec::new());
        for _ in 0..MAX_PARTS {
            let (part, mut end) = until(&mut rest, &['.', '[', '=', ',']);
            if part.is_empty() {
                return None;
            }
            steps.push(Step::Name(part));
            while end == Some('[') {
                let (index, bracket) = until(&mut rest, &[']']);
                let index = index.parse::<usize>().ok().filter(|index| bracket.is_some() && *index <= MAX_INDEX)?;
                steps.push(Step::Index(index));
                end = rest.next();
            }
            match end {
                None => return Some(Self(steps)),
                Some('.') => {}
                Some(_) => return None,
            }
        }
        None
    }

    /// Sets the value at this place. A value on the way to it that is not a map, or not a list, becomes one.
    pub fn set(self, values: &mut Value, value: Value) {
        let mut place = values;
        for step in self.0 {
            place = match step {
                Step::Name(name) => {
                    if !place.is_object() {
                        *place = json!({});
                    }
                    &mut place[name]
                }
                Step::Index(index) => {
                    let mut list = match place.take() {
                        Value::Array(list) => list,
                        _ => Vec::new(),
                    };
                    list.resize(list.len().max(index + 1), Value::Null);
                    *place = list.into();
                    &mut place[index]
                }
            };
        }
        *place = value;
    }
}

/// Reads a value: a list in braces, or one value.
pub fn value(text: &str, is_text: bool) -> Value {
    let read = |text: String| if is_text { text.into() } else { typed(text) };
    let Some(mut list) = text.strip_prefix('{').filter(|list| list.ends_with('}')).map(str::chars) else {
        return read(until(&mut text.chars(), &[]).0);
    };
    let mut items = Vec::new();
    loop {
        let (item, end) = until(&mut list, &[',', '}']);
        items.push(read(item));
        if end != Some(',') {
            return items.into();
        }
    }
}

/// Reads up to one of these characters, and over it. A backslash makes the next character a part of the text.
fn until(text: &mut Chars<'_>, ends: &[char]) -> (String, Option<char>) {
    let mut part = String::new();
    while let Some(next) = text.next() {
        match next {
            end if ends.contains(&end) => return (part, Some(end)),
            '\\' => part.extend(text.next()),
            other => part.push(other),
        }
    }
    (part, None)
}

/// Returns the value that a text stands for. A number does not begin with a zero.
fn typed(text: String) -> Value {
    let number = (text == "0" || !text.starts_with('0')).then(|| text.parse::<i64>().ok()).flatten();
    match (text.to_ascii_lowercase().as_str(), number) {
        ("true", _) => Value::Bool(true),
        ("false", _) => Value::Bool(false),
        ("null", _) => Value::Null,
        (_, Some(number)) => number.into(),
        _ => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_to_its_place() {
        let long = [vec![Value::Null; 99], vec![json!(1)]].concat();
        let table = [
            ("a", json!({"a": 1})),
            ("a.b", json!({"a": {"b": 1}})),
            (r"a.b\.c/d", json!({"a": {"b.c/d": 1}})),
            ("a[1].b", json!({"a": [null, {"b": 1}]})),
            ("a[0][1]", json!({"a": [[null, 1]]})),
            ("a[99]", json!({"a": long})),
        ];
        for (name, expected) in table {
            let mut values = json!({});
            Place::of(name).expect(name).set(&mut values, json!(1));
            assert_eq!(values, expected, "{name}");
        }
    }

    #[test]
    fn what_is_there_stays_unless_it_is_of_another_kind() {
        let mut values = json!({"a": [{"b": 1}, 2], "c": 3});
        for (name, value) in [("a[0].d", 4), ("a[1]", 5), ("c.e", 6)] {
            Place::of(name).expect(name).set(&mut values, value.into());
        }
        assert_eq!(values, json!({"a": [{"b": 1, "d": 4}, 5], "c": {"e": 6}}));
    }

    #[test]
    fn what_is_no_name_has_no_place() {
        let deep = ["a"; MAX_PARTS + 1].join(".");
        for name in [
            "", ".", "a.", ".a", "a..b", "a[", "a[]", "a[x]", "a[-1]", "a[0", "a[0]b", "a[100]", "[0]", "a=b", "a,b",
            &deep,
        ] {
            assert_eq!(Place::of(name), None, "{name}");
        }
        assert!(Place::of(&deep[2..]).is_some());
    }

    #[test]
    fn a_value_has_the_type_that_helm_gives_it() {
        let table = [
            ("true", json!(true)),
            ("False", json!(false)),
            ("null", Value::Null),
            ("0", json!(0)),
            ("-10", json!(-10)),
            ("010", json!("010")),
            ("1e3", json!("1e3")),
            ("", json!("")),
            (r"a\,b,c\\", json!(r"a,b,c\")),
            ("{a,1,true}", json!(["a", 1, true])),
            (r"{a\,b}", json!(["a,b"])),
            ("{a", json!("{a")),
        ];
        for (text, expected) in table {
            assert_eq!(value(text, false), expected, "{text}");
        }
        assert_eq!((value("5", true), value("{1,2}", true)), (json!("5"), json!(["1", "2"])));
    }
}
