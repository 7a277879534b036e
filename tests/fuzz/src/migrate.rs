//! Values of NTH's chart: what `migrate` writes is YAML that the chart's schema and the service accept; an error is one line.

use crate::{schema, settings};
use ebbtide::commands::migrate::convert;
use ebbtide::telemetry::notify::Template;
use serde_json::Value;

/// Most that an input of one byte can become, and of none: names that repeat, quotes, comments and defaults.
const MAX_GROWTH: (usize, usize) = (64, 16_384);

/// Values that `migrate` makes; others it copies.
const MADE: [&str; 6] = ["/settings", "/actions", "/notifications", "/aws", "/admin", "/agent/metadataEndpoint"];

/// Converts a values file.
pub fn check(text: &str) {
    let migration = match convert(text) {
        Ok(migration) => migration,
        Err(error) => {
            let said = error.to_string();
            assert!(!said.is_empty() && !said.contains('\n') && said.len() <= text.len() + 400, "{said:?}");
            return;
        }
    };
    let written = &migration.values;
    assert!(written.len() <= MAX_GROWTH.0 * text.len() + MAX_GROWTH.1, "{} bytes become {}", text.len(), written.len());
    // What YAML 1.1 takes for a line's end or does not take at all: Helm reads YAML 1.1.
    let odd =
        written.chars().find(|c| c.is_control() && *c != '\n' || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}'));
    assert_eq!(odd, None, "{written:?}");
    for remark in &migration.remarks {
        assert!(!remark.key.is_empty() || text.contains("\"\"") || text.contains("''"), "{remark:?}");
        assert!(!remark.text.is_empty(), "{remark:?}");
    }
    let mut values: Value = serde_saphyr::from_str(written).unwrap_or_else(|error| panic!("{error}\n{written}"));
    // Those of a parent chart.
    if values["ebbtide"].is_object() {
        values = values["ebbtide"].take();
    }
    // YAML folds the lines of a text: a line's end and what indents the next become a space.
    let folded = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let all = folded(text);
    let is_given = |value: &str| all.contains(&folded(value));
    // A text that is copied may be one that Helm and the service refuse, with its name; and so may a map of Kubernetes's, such as
    // resources. What is made, and where it is put, must fit.
    let given = |value: &Value| value.as_str().is_some_and(is_given);
    let mut refused = schema::problems(&values);
    refused.retain(|problem| {
        let own = MADE.iter().any(|made| problem.at.starts_with(made)) || problem.at.rfind('/') == Some(0);
        own && !given(&problem.value)
    });
    assert!(refused.is_empty(), "Helm refuses {refused:#?}\n{written}");
    let arguments = arguments(&values);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    for line in settings::read(&arguments).err().iter().flat_map(|error| error.lines()) {
        let flag = line.split(':').next().unwrap_or_default();
        let value = arguments.iter().find_map(|argument| argument.strip_prefix(flag)?.strip_prefix('='));
        assert!(value.is_some_and(is_given), "the service refuses {line}\n{written}");
    }
    if let Some(template) = values["notifications"]["template"].as_str().filter(|template| !template.is_empty()) {
        let said = Template::compile(template.to_owned()).err().map(|error| error.to_string());
        let told = migration.remarks.iter().any(|remark| remark.key.starts_with("webhookTemplate"));
        assert!(said.is_none() || told, "{said:?}\n{written}");
    }
}

/// Returns the flags that the chart makes of values.
fn arguments(values: &Value) -> Vec<String> {
    // The user's own URL is copied as it is; the service names a wrong one at its start.
    let queue = "--queue-url=https://sqs.eu-west-1.amazonaws.com/123456789012/queue".to_owned();
    // The chart always names the pod.
    let mut arguments = vec!["--pod-namespace=ebbtide".to_owned(), "--pod-name=ebbtide-1".to_owned()];
    arguments.extend(values["settings"]["source"].is_null().then_some(queue));
    let mut add = |name: &str, value: &Value| {
        let text = match value {
            Value::Null | Value::Bool(false) => return,
            Value::Bool(true) => return arguments.push(format!("--{name}")),
            Value::Array(list) => list.iter().map(plain).collect::<Vec<_>>().join(","),
            Value::Object(map) => {
                let pair = |(kind, value): (&String, &Value)| match kind.as_str() {
                    "all" => plain(value),
                    kind => format!("{}={}", kebab(kind), plain(value)),
                };
                map.iter().map(pair).collect::<Vec<_>>().join(",")
            }
            other => plain(other),
        };
        if !text.is_empty() {
            arguments.push(format!("--{name}={text}"));
        }
    };
    add("on", &values["actions"]);
    for (name, value) in values["settings"].as_object().into_iter().flatten() {
        add(&kebab(name), value);
    }
    arguments
}

/// Returns the program's word for a name in camelCase, as the chart does.
fn kebab(name: &str) -> String {
    let mut word = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() {
            word.push('-');
        }
        word.push(c.to_ascii_lowercase());
    }
    word
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
