//! Traces as OTLP's JSON (<https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding>): ids in hexadecimal, 64-bit numbers as text.

use super::TraceSettings;
use super::span::{Attribute, Event, Span, Status, Trace, Value};
use crate::runtime::random;
use jiff::Timestamp;
use serde_json::{Value as Json, json};

/// Kinds of spans: of the work itself, and of what a message has caused.
const INTERNAL: u8 = 1;
const CONSUMER: u8 = 5;

/// Returns the body of a request.
pub(super) fn request(settings: &TraceSettings, traces: &[Trace]) -> Json {
    let mut resource = vec![
        ("service.name", Value::text(&"ebbtide")),
        ("service.version", Value::text(&env!("CARGO_PKG_VERSION"))),
        ("service.instance.id", Value::text(&settings.replica)),
    ];
    if let Some(cluster) = &settings.cluster {
        resource.push(("k8s.cluster.name", Value::text(cluster)));
    }
    let spans: Vec<Json> = traces.iter().flat_map(spans).collect();
    let scope = json!({ "name": "ebbtide", "version": env!("CARGO_PKG_VERSION") });
    json!({ "resourceSpans": [{
        "resource": { "attributes": attributes(&resource) },
        "scopeSpans": [{ "scope": scope, "spans": spans }],
    }] })
}

fn spans(trace: &Trace) -> impl Iterator<Item = Json> {
    let (id, root) = (trace.id.to_string(), span_id());
    let mut whole = span(&trace.whole, &id, &root, CONSUMER);
    whole["events"] = trace.events.iter().map(event).collect();
    whole["droppedEventsCount"] = json!(trace.missing_events);
    let parts = trace.parts.iter().map(move |part| {
        let mut json = span(part, &id, &span_id(), INTERNAL);
        json["parentSpanId"] = json!(root);
        json
    });
    [whole].into_iter().chain(parts)
}

fn span(span: &Span, trace: &str, id: &str, kind: u8) -> Json {
    let status = match &span.status {
        Status::Ok => json!({ "code": 1 }),
        Status::Error(reason) => json!({ "code": 2, "message": reason }),
    };
    json!({
        "traceId": trace, "spanId": id, "name": span.name, "kind": kind,
        "startTimeUnixNano": nanoseconds(span.begin), "endTimeUnixNano": nanoseconds(span.end),
        "attributes": attributes(&span.attributes), "status": status,
    })
}

fn event(event: &Event) -> Json {
    json!({ "name": event.name, "timeUnixNano": nanoseconds(event.at), "attributes": attributes(&event.attributes) })
}

fn attributes(all: &[Attribute]) -> Json {
    let value = |value: &Value| match value {
        Value::Text(text) => json!({ "stringValue": text }),
        Value::Number(number) => json!({ "intValue": number.to_string() }),
    };
    all.iter().map(|(key, of)| json!({ "key": key, "value": value(of) })).collect()
}

fn nanoseconds(at: Timestamp) -> String {
    at.as_nanosecond().max(0).to_string()
}

/// Returns the id of a span, which must not be 0.
fn span_id() -> String {
    format!("{:016x}", random::u64().max(1))
}
