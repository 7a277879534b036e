//! Each format of notifications, as a real HTTP receiver on loopback gets it.

use bytes::Bytes;
use clap::Parser;
use ebbtide::cli::{Cli, Command};
use ebbtide::clients::connect;
use ebbtide::commands::notify;
use ebbtide::fact::NotificationPhase;
use ebbtide::runtime::Clock;
use ebbtide::telemetry::notify::{
    BlockedPod, Courier, DeliveryError, Format, Notification, NotifySettings, PhaseChoice, Phases, Template, sample,
};
use ebbtide::telemetry::outbound::{Receiver, Secret, header};
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// A request, as it arrived.
struct Arrived {
    line: String,
    headers: HeaderMap,
    body: String,
}

impl Arrived {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// A receiver on loopback that gives every request the same answer.
struct Server {
    port: u16,
    arrived: Arc<Mutex<Vec<Arrived>>>,
    _connections: JoinSet<()>,
}

impl Server {
    async fn answering(status: u16, headers: &'static [(&'static str, &'static str)], body: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, arrived) = (listener.local_addr().unwrap().port(), Arc::new(Mutex::new(Vec::new())));
        let mut connections = JoinSet::new();
        let taken = Arc::clone(&arrived);
        connections.spawn(async move {
            let mut inner = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (taken, body) = (Arc::clone(&taken), body.clone());
                let answer = service_fn(move |request: Request<Incoming>| {
                    let (taken, body) = (Arc::clone(&taken), body.clone());
                    async move {
                        let (head, sent) = request.into_parts();
                        let line = format!("{} {}", head.method, head.uri);
                        let sent = String::from_utf8(sent.collect().await.unwrap().to_bytes().to_vec()).unwrap();
                        taken.lock().push(Arrived { line, headers: head.headers, body: sent });
                        let mut response = Response::new(Full::new(Bytes::from(body)));
                        *response.status_mut() = StatusCode::from_u16(status).unwrap();
                        for (name, value) in headers {
                            response.headers_mut().insert(*name, value.parse().unwrap());
                        }
                        Ok::<_, Infallible>(response)
                    }
                });
                inner.spawn(async move {
                    let _ =
                        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
                });
            }
        });
        Self { port, arrived, _connections: connections }
    }

    async fn well() -> Self {
        Self::answering(200, &[], "ok".to_owned()).await
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/services/T0/s3cret-path?token=s3cret-query", self.port)
    }

    fn take(&self) -> Arrived {
        let mut arrived = self.arrived.lock();
        assert_eq!(arrived.len(), 1, "one request");
        arrived.remove(0)
    }
}

fn secret(text: &str) -> Secret {
    let Ok(secret) = text.parse();
    secret
}

fn settings(url: &str, format: Format) -> NotifySettings {
    NotifySettings {
        receiver: Receiver::parse(&secret(url)).unwrap(),
        format,
        template: None,
        headers: vec![header(&secret("X-Token=Bearer s3cret-header")).unwrap()],
        timeout: Duration::from_secs(5),
        signing_key: Some(secret("s3cret-key")),
        traces: false,
        routing_key: Some(secret("0123456789abcdef0123456789abcdef")),
        proxy: None,
        phases: PhaseChoice::all(Phases::of(&NotificationPhase::ALL)),
        cluster: Some("blue".to_owned()),
        replica: "ebbtide-1".to_owned(),
    }
}

/// A clock that stands at the same time in every test.
fn clock() -> Clock {
    Clock::showing("2026-11-23T12:00:00Z".parse().unwrap())
}

fn courier(settings: NotifySettings) -> Courier {
    let connector = connect::webhook(settings.proxy()).unwrap();
    Courier::new(Arc::new(settings), connector, clock())
}

/// Names and messages that try to be more than text.
fn hostile(phase: NotificationPhase) -> Notification {
    let settings = settings("http://127.0.0.1/", Format::Json);
    let mut told = sample::to_send(phase, "2026-11-23T12:00:00Z".parse().unwrap(), &settings);
    told.node = Some("<!channel>&\"[x](http://evil)".to_owned());
    "Drain blocked: <!channel>".clone_into(&mut told.title);
    "It is \"held\" by <@U1> & *others*\\".clone_into(&mut told.text);
    told.blocked = vec![BlockedPod { node: "n".to_owned(), pod: "a/\"b".to_owned(), by: "</script>".to_owned() }];
    told
}

async fn sent(format: Format, told: &Notification) -> Arrived {
    let server = Server::well().await;
    let accepted = courier(settings(&server.url(), format)).send(told).await.unwrap();
    assert_eq!((accepted.status, accepted.body.as_str()), (200, "ok"));
    let arrived = server.take();
    assert_eq!(arrived.line, "POST /services/T0/s3cret-path?token=s3cret-query");
    assert_eq!(
        (arrived.header("content-type"), arrived.header("x-token")),
        ("application/json", "Bearer s3cret-header")
    );
    arrived
}

const BLOCKED: NotificationPhase = NotificationPhase::Blocked;

const JSON: &str = concat!(
    r#"{"version":1,"id":"test/1795435200/blocked","key":"ebbtide/test","phase":"blocked","test":true,"#,
    r#""time":"2026-11-23T12:00:00Z","title":"Drain blocked: <!channel>","#,
    r#""text":"It is \"held\" by <@U1> & *others*\\","cluster":"blue","replica":"ebbtide-1","kind":"spot","action":"drain","#,
    r#""instance":"i-00000000000000000","node":"<!channel>&\"[x](http://evil)","#,
    r#""instanceType":"m7g.large","zone":"eu-west-1a","group":"sample-group","#,
    r#""message":"00000000-0000-0000-0000-000000000000","traceId":null,"since":"2026-11-23T12:00:00Z","deadline":"2026-11-23T12:02:00Z","#,
    r#""hard":true,"blocked":[{"node":"n","pod":"a/\"b","by":"</script>"}],"blockedMore":0,"outcome":null,"seconds":null,"#,
    r#""report":null,"waited":null,"storm":null,"folded":{}}"#
);

#[tokio::test]
async fn json_is_the_notification_with_a_signature() {
    let arrived = sent(Format::Json, &hostile(BLOCKED)).await;
    assert_eq!(arrived.body, JSON);
    let (time, signature) = arrived.header("ebbtide-signature").split_once(",v1=").unwrap();
    assert_eq!((time, signature.len()), ("t=1795435200", 64));
    // As a receiver checks it.
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(b"s3cret-key").unwrap();
    mac.update(format!("1795435200.{}", arrived.body).as_bytes());
    let expected: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(signature, expected);
}

#[tokio::test]
async fn json_matches_its_schema() {
    let schema: Value = serde_json::from_str(include_str!("../../../docs/notification.schema.json")).unwrap();
    let properties = schema["properties"].as_object().unwrap();
    for told in sample::all().into_iter().chain(NotificationPhase::ALL.map(hostile)) {
        let json = serde_json::to_value(&told).unwrap();
        let fields: Vec<&String> = json.as_object().unwrap().keys().collect();
        assert_eq!(
            fields,
            properties.keys().collect::<Vec<_>>(),
            "each field is described, and each described field is there"
        );
        check(&schema, &schema, &json, "notification");
    }
    assert_eq!(schema["required"].as_array().unwrap().len(), properties.len());
}

/// Checks a value against the part of JSON Schema that the file uses.
fn check(root: &Value, schema: &Value, value: &Value, at: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        let part = root.pointer(name.trim_start_matches('#')).unwrap_or_else(|| panic!("{name} is not there"));
        return check(root, part, value, at);
    }
    if let Some(options) = schema["anyOf"].as_array() {
        let option = options.iter().find(|option| value.is_null() == (option["type"] == "null"));
        return check(root, option.unwrap_or_else(|| panic!("{at}: {value}")), value, at);
    }
    if let Some(words) = schema["enum"].as_array() {
        assert!(words.contains(value), "{at}: {value}");
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let kinds = schema["type"].as_array().cloned().unwrap_or_else(|| vec![schema["type"].clone()]);
    assert!(
        kinds.iter().any(|known| known == kind || known == "number" && kind == "integer"),
        "{at}: {value} is no {kinds:?}"
    );
    for (n, item) in value.as_array().into_iter().flatten().enumerate() {
        check(root, &schema["items"], item, &format!("{at}[{n}]"));
    }
    for (name, field) in value.as_object().into_iter().flatten() {
        let part = schema["properties"].get(name).unwrap_or(&schema["additionalProperties"]);
        assert!(part.is_object(), "{at}.{name} is not described");
        check(root, part, field, &format!("{at}.{name}"));
    }
}

#[tokio::test]
async fn slack_gets_blocks_and_a_text_with_its_control_characters_escaped() {
    let arrived = sent(Format::Slack, &hostile(BLOCKED)).await;
    let mrkdwn = |text: &str| json!({"type": "mrkdwn", "text": text, "verbatim": true});
    let text = "It is \"held\" by &lt;@U1&gt; &amp; *others*\\";
    let expected = json!({
        "text": format!("Drain blocked: &lt;!channel&gt;. {text}"),
        "blocks": [
            {"type": "header", "text": {"type": "plain_text", "text": "Drain blocked: &lt;!channel&gt;", "emoji": false}},
            {"type": "section", "text": mrkdwn(text)},
            {"type": "section", "fields": [
                mrkdwn("*Kind*\nspot"),
                mrkdwn("*Node*\n&lt;!channel&gt;&amp;\"[x](http://evil)"),
                mrkdwn("*Instance*\ni-00000000000000000"),
                mrkdwn("*Type, zone, group*\nm7g.large, eu-west-1a, sample-group"),
                mrkdwn("*Deadline*\n2026-11-23T12:02:00Z"),
                mrkdwn("*Cluster*\nblue"),
                mrkdwn("*Message*\n00000000-0000-0000-0000-000000000000"),
            ]},
            {"type": "context", "elements": [
                mrkdwn("test, nothing of this is real; Ebbtide, replica ebbtide-1, 2026-11-23T12:00:00Z"),
            ]},
        ],
    });
    assert_eq!(arrived.body, expected.to_string());
}

#[tokio::test]
async fn teams_gets_an_adaptive_card_without_markup() {
    let arrived = sent(Format::Teams, &hostile(BLOCKED)).await;
    let block = |runs: Value| json!({"type": "RichTextBlock", "inlines": runs});
    let row = |name: &str, value: &str| {
        block(json!([
            {"type": "TextRun", "text": format!("{name}: "), "weight": "Bolder"},
            {"type": "TextRun", "text": value},
        ]))
    };
    let title = "Drain blocked: <!channel>";
    let footer = "test, nothing of this is real; Ebbtide, replica ebbtide-1, 2026-11-23T12:00:00Z";
    let expected = json!({"type": "message", "attachments": [{
        "contentType": "application/vnd.microsoft.card.adaptive",
        "contentUrl": null,
        "content": {
            "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
            "type": "AdaptiveCard",
            "version": "1.2",
            "fallbackText": title,
            "msteams": {"width": "Full"},
            "body": [
                block(json!([{"type": "TextRun", "text": title, "weight": "Bolder", "size": "Medium", "color": "Warning"}])),
                block(json!([{"type": "TextRun", "text": "It is \"held\" by <@U1> & *others*\\"}])),
                row("Kind", "spot"),
                row("Node", "<!channel>&\"[x](http://evil)"),
                row("Instance", "i-00000000000000000"),
                row("Type, zone, group", "m7g.large, eu-west-1a, sample-group"),
                row("Deadline", "2026-11-23T12:02:00Z"),
                row("Cluster", "blue"),
                row("Message", "00000000-0000-0000-0000-000000000000"),
                block(json!([{"type": "TextRun", "text": footer, "isSubtle": true, "size": "Small"}])),
            ],
        },
    }]});
    assert_eq!(arrived.body, expected.to_string());
}

#[tokio::test]
async fn pager_duty_gets_one_alert_that_done_resolves() {
    let told = hostile(BLOCKED);
    let arrived = sent(Format::PagerDuty, &told).await;
    let details: Value = serde_json::from_str(JSON).unwrap();
    let expected = json!({
        "routing_key": "0123456789abcdef0123456789abcdef",
        "event_action": "trigger",
        "dedup_key": "ebbtide/test",
        "client": "Ebbtide",
        "payload": {
            "summary": format!("{}. {}", told.title, told.text),
            "source": "<!channel>&\"[x](http://evil)",
            "severity": "warning",
            "timestamp": "2026-11-23T12:00:00Z",
            "class": "spot",
            "group": "blue",
            "custom_details": details,
        },
    });
    assert_eq!(arrived.body, expected.to_string());
    for (phase, severity) in [(NotificationPhase::Notice, "info"), (NotificationPhase::Failed, "error")] {
        assert_eq!(sent(Format::PagerDuty, &hostile(phase)).await.json()["payload"]["severity"], severity);
    }
    let resolved = sent(Format::PagerDuty, &hostile(NotificationPhase::Done)).await;
    let expected =
        r#"{"dedup_key":"ebbtide/test","event_action":"resolve","routing_key":"0123456789abcdef0123456789abcdef"}"#;
    assert_eq!(resolved.body, expected);
}

#[tokio::test]
async fn cloud_events_are_in_binary_mode() {
    let arrived = sent(Format::CloudEvents, &hostile(BLOCKED)).await;
    assert_eq!(arrived.body, JSON);
    for (name, value) in [
        ("ce-specversion", "1.0"),
        ("ce-id", "test/1795435200/blocked"),
        ("ce-source", "/ebbtide/blue"),
        ("ce-type", "ebbtide.notification.blocked"),
        ("ce-time", "2026-11-23T12:00:00Z"),
        ("ce-subject", "<!channel>&%22[x](http://evil)"),
    ] {
        assert_eq!(arrived.header(name), value, "{name}");
    }
}

#[tokio::test]
async fn the_users_template_and_headers_replace_ours() {
    let server = Server::well().await;
    let template = r#"{"msg": "{{ title }}: {{ text }}", "pods": {{ blocked|length }}}"#.to_owned();
    let mut settings = settings(&server.url(), Format::Slack);
    settings.template = Some(Template::compile(template).unwrap());
    settings.headers.push(header(&secret("Content-Type=application/json; charset=utf-8")).unwrap());
    settings.signing_key = None;
    courier(settings).send(&hostile(BLOCKED)).await.unwrap();
    let arrived = server.take();
    let text =
        r#"{"msg": "Drain blocked: &lt;!channel&gt;: It is \"held\" by &lt;@U1&gt; &amp; *others*\\", "pods": 1}"#;
    assert_eq!(arrived.body, text);
    assert_eq!(arrived.headers.get_all("content-type").iter().count(), 1);
    assert_eq!(arrived.header("content-type"), "application/json; charset=utf-8");
    assert_eq!(arrived.header("ebbtide-signature"), "", "without a key there is none");
}

/// Sends to a server with this answer.
async fn refused(status: u16, headers: &'static [(&'static str, &'static str)], body: &str) -> (DeliveryError, usize) {
    let server = Server::answering(status, headers, body.to_owned()).await;
    let error = courier(settings(&server.url(), Format::Json)).send(&hostile(BLOCKED)).await.unwrap_err();
    let number = server.arrived.lock().len();
    (error, number)
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = [("location", "http://127.0.0.1:1/evil")];
    for status in [301, 302, 307, 308] {
        let (error, number) = refused(status, Box::leak(Box::new(elsewhere)), "").await;
        assert!(matches!(error, DeliveryError::Redirect(it) if it == status) && !error.is_retried() && number == 1);
        assert!(!error.to_string().contains("evil"), "{error}");
    }
}

#[tokio::test]
async fn an_answer_is_quoted_in_part_and_without_secrets() {
    let body = format!(
        "no\u{1b}[31m such /services/T0/s3cret-path?token=s3cret-query\r\nX-Token: Bearer s3cret-header s3cret-key {}",
        "x".repeat(100_000)
    );
    let (error, _) = refused(404, &[], &body).await;
    let said = error.to_string();
    assert!(said.starts_with("answered 404: no[31m such *** X-Token: *** *** xxx"), "{said}");
    assert!(said.ends_with("x…; check --notify-url and --notify-header") && !said.contains("s3cret"), "{said}");
    assert!(said.chars().count() < 280 && !said.chars().any(char::is_control), "{said}");
    assert!(!format!("{error:?}").contains("s3cret"));
    assert!(!error.is_retried());
}

#[tokio::test]
async fn only_what_may_pass_is_tried_again() {
    for (status, headers, pause) in [
        (429, &[("retry-after", "7")][..], Some(7)),
        (503, &[("retry-after", "Mon, 23 Nov 2026 12:01:00 GMT")], Some(60)),
        (503, &[("retry-after", "86400")], Some(300)),
        (500, &[("retry-after", "soon")], None),
    ] {
        let (error, _) = refused(status, headers, "").await;
        assert!(error.is_retried(), "{status}");
        let asked = error.retry_after().map(|pause| pause.as_secs_f64().round());
        assert_eq!(asked, pause.map(f64::from), "{status}");
    }
    for status in [400, 401, 404, 413, 422] {
        assert!(!refused(status, &[], "").await.0.is_retried(), "{status}");
    }
}

#[tokio::test]
async fn a_receiver_that_is_silent_or_away_is_named_by_its_host() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}/s3cret");
    let silent = courier(NotifySettings { timeout: Duration::from_millis(100), ..settings(&url, Format::Json) });
    assert_eq!(silent.host(), format!("127.0.0.1:{port}"));
    let error = silent.send(&hostile(BLOCKED)).await.unwrap_err();
    assert!(matches!(error, DeliveryError::TimedOut(_)) && error.is_retried(), "{error}");
    drop(listener);
    let error = courier(settings(&url, Format::Json)).send(&hostile(BLOCKED)).await.unwrap_err();
    assert!(matches!(error, DeliveryError::Unreachable(_)) && error.is_retried(), "{error}");
    assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
}

#[tokio::test]
async fn a_proxy_is_asked_when_one_is_set() {
    let proxy = Server::answering(202, &[], "accepted".to_owned()).await;
    let proxy_url = format!("http://me:s3cret-word@127.0.0.1:{}", proxy.port);
    let mut settings = settings("http://receiver.invalid/hook", Format::Json);
    settings.proxy = Some(secret(&proxy_url));
    let accepted = courier(settings).send(&hostile(BLOCKED)).await.unwrap();
    assert_eq!(accepted.status, 202);
    let arrived = proxy.take();
    assert_eq!(
        (arrived.line.as_str(), arrived.header("host")),
        ("POST http://receiver.invalid/hook", "receiver.invalid")
    );
    assert!(arrived.header("proxy-authorization").starts_with("Basic "));
}

/// Runs `ebbtide notify --test` with these flags. Returns the exit code, what it says, and its problems.
async fn tested(flags: &[&str]) -> (u8, String, String) {
    let all = ["ebbtide", "notify", "--test"].iter().chain(flags);
    let Command::Notify(flags) = Cli::try_parse_from(all).expect("flags").command else { panic!("it must be notify") };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = notify::notify(flags).await.print(&mut out, &mut err);
    (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

#[tokio::test]
async fn the_command_sends_each_chosen_phase_and_shows_the_answers() {
    let server = Server::well().await;
    let (code, said, problems) = tested(&["--notify-url", &server.url(), "--notify", "all"]).await;
    let host = format!("127.0.0.1:{}", server.port);
    let lines =
        ["notice", "blocked", "failed", "done"].map(|phase| format!("{phase}: {host} accepted it with 200: ok\n"));
    assert_eq!((code, said, problems), (0, lines.concat(), String::new()));
    assert!(server.arrived.lock().iter().all(|arrived| arrived.json()["test"] == true));

    let broken = Server::answering(500, &[], "s3cret-path is broken".to_owned()).await;
    let (code, said, problems) = tested(&["--notify-url", &broken.url()]).await;
    let host = format!("127.0.0.1:{}", broken.port);
    let problem = |phase| {
        format!("ebbtide: {phase}: {host}: answered 500: *** is broken; the receiver is overloaded or failing\n")
    };
    assert_eq!((code, said, problems), (1, String::new(), ["blocked", "failed"].map(problem).concat()));

    // The report has the failures, too, and no secret.
    let (code, said, problems) = tested(&["--notify-url", &broken.url(), "--notify", "failed", "-o", "json"]).await;
    let error = "answered 500: *** is broken; the receiver is overloaded or failing";
    let sample = serde_json::json!({ "phase": "failed", "status": null, "body": "", "error": error });
    let report = serde_json::json!({ "receiver": host, "samples": [sample] });
    assert_eq!((code, serde_json::from_str::<Value>(&said).unwrap()), (1, report));
    assert!(problems.contains(error), "{problems}");
    let (code, said, problems) = tested(&["--notify-url", &server.url(), "--notify", "done", "-o", "yaml"]).await;
    let sample = "samples:\n  - body: ok\n    error: null\n    phase: done\n    status: 200\n";
    let report = format!("receiver: 127.0.0.1:{}\n{sample}", server.port);
    assert_eq!((code, said, problems), (0, report, String::new()));

    let (code, _, problems) = tested(&[]).await;
    assert_eq!(
        (code, problems.as_str()),
        (2, "ebbtide: --notify-url: is missing; give the receiver's URL, or set EBBTIDE_NOTIFY_URL\n")
    );
    let (code, _, problems) = tested(&["--notify-url", "hooks.example/s3cret", "--notify-header", "s3cret"]).await;
    assert!(code == 2 && !problems.contains("s3cret"), "{problems}");
}
