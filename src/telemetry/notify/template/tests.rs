use super::*;
use crate::telemetry::notify::notification::BlockedPod;

fn compiled(source: &str) -> Template {
    Template::compile(source.to_owned()).unwrap_or_else(|error| panic!("{source}: {error}"))
}

fn refused(source: &str) -> String {
    Template::compile(source.to_owned()).map(drop).unwrap_err().to_string()
}

fn hostile() -> Notification {
    let mut told = sample::all().into_iter().find(|told| told.phase == NotificationPhase::Blocked).unwrap();
    told.blocked = vec![BlockedPod {
        node: "node-0".to_owned(),
        pod: "\"}, {{ 7 * 7 }} <!channel> {% raw %}\\".to_owned(),
        by: "\u{1}\n</script>&\u{2028}".to_owned(),
    }];
    told
}

#[test]
fn values_stay_inside_of_their_strings() {
    for source in [
        r#"{"text": "{{ title }}: {% for pod in blocked %}{{ pod.pod }} {{ pod.by }}{% endfor %}"}"#,
        r#"{"text": {{ (blocked|first|default({'pod': ''})).pod|tojson }}, "all": {{ blocked|tojson }}}"#,
        r#"["{{ blocked }}", "{{ waited }}", {{ seconds|tojson }}]"#,
    ] {
        let body = compiled(source).render(&hostile(), str::to_owned).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let text = json["text"].as_str().or_else(|| json[0].as_str()).unwrap();
        assert!(text.contains("{{ 7 * 7 }} <!channel> {% raw %}"), "{text}");
    }
}

#[test]
fn slack_gets_no_control_characters_of_others() {
    use crate::telemetry::notify::format::Format;
    for source in [
        r#"{"text": "{% for pod in blocked %}{{ pod.pod }}{% endfor %}"}"#,
        r#"{"text": {% for pod in blocked %}{{ pod.pod|tojson }}{% else %}1{% endfor %}}"#,
    ] {
        let body = Format::Slack.render(&compiled(source), &hostile()).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let text = json["text"].as_str().unwrap();
        assert!(text.contains("&lt;!channel&gt;") && !text.contains("<!"), "{text}");
    }
}

#[test]
fn a_missing_value_is_empty_and_a_storm_can_be_told_apart() {
    let template = compiled(
        r#"{"text": "{% if storm %}{{ storm.notices }} notices{% else %}{{ node }}/{{ outcome }}{% endif %}{{ cluster }}"}"#,
    );
    let made: Vec<String> = sample::all()
        .iter()
        .map(|told| String::from_utf8(template.render(told, str::to_owned).unwrap()).unwrap())
        .collect();
    assert_eq!(made[0], r#"{"text": "sample-node/"}"#);
    assert_eq!(
        (made[3].as_str(), made[11].as_str()),
        (r#"{"text": "sample-node/blocked"}"#, r#"{"text": "100 notices"}"#)
    );
}

#[test]
fn a_wrong_template_is_refused_at_the_start() {
    for (source, expected) in [
        ("{% if %}", "is no template of minijinja: syntax error in line 1"),
        (
            "{\"a\": \"{{ nod }}\"}",
            "fails with a sample of the phase notice: undefined value in line 1: a field that notifications don't have",
        ),
        ("{\"a\": {{ node }}}", "fails with a sample of the phase notice: its output is not JSON: "),
        ("{\"a\": \"{{ storm.notices }}\"}", "fails with a sample of the phase notice: undefined value"),
        (
            "{\"a\": \"{{ node|shout }}\"}",
            "fails with a sample of the phase notice: unknown filter in line 1: filter shout is unknown",
        ),
        (
            "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
            "fails with a sample of the phase notice: ",
        ),
        (
            "\"{% for i in range(2000) %}0123456789012345678901234567890123456789{% endfor %}\"",
            "fails with a sample of the phase notice: its output has more than 65536 bytes",
        ),
        ("{{ 'x' * 1000000000 }}", "fails with a sample of the phase notice: "),
        ("", "fails with a sample of the phase notice: its output is not JSON"),
    ] {
        let said = refused(source);
        assert!(said.starts_with(expected), "{source}: {said}");
    }
    assert_eq!(refused(&"x".repeat(MAX_SOURCE + 1)), "has more than 65536 bytes; no message is that long");
    assert!(
        refused(r#"{"text": {% if storm %}{{ kind }}{% else %}1{% endif %}}"#).contains("phase notice about a storm")
    );
}

/// A value can make a template fail that no sample does. The error does not repeat the value.
#[test]
fn a_value_that_breaks_the_body_is_not_sent() {
    let template = compiled(
        r#"{"text": {{ (title|safe)|replace("[test] ", "")|length }}, "n": {% if title == "word" %}{{ title }}{% else %}1{% endif %}}"#,
    );
    let mut told = hostile();
    "word".clone_into(&mut told.title);
    let error = template.render(&told, str::to_owned).unwrap_err();
    assert!(matches!(error, RenderError::NotJson(_)) && !error.to_string().contains("word"), "{error}");
}

/// A storm's begin has no slowest node, and a node may have no labels: a template that needs them is refused at the start, not at night.
#[test]
fn a_template_must_not_need_what_may_be_unknown() {
    for source in
        [r#"{"text": "{% if storm %}{{ storm.slowest.node }}{% endif %}"}"#, r#"{"text": "{{ deadline.year }}"}"#]
    {
        let refused = Template::compile(source.to_owned()).map(drop).unwrap_err().to_string();
        assert!(refused.contains("a field that notifications don't have"), "{source}: {refused}");
    }
    compiled(r#"{"text": "{% if storm and storm.slowest %}{{ storm.slowest.node }}{% endif %}{{ group[:5] }}"}"#);
}
