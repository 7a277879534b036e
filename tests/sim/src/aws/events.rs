//! EventBridge's rules, for callers that look them up. Rules send nothing: tests put messages on the queue themselves.

mod pattern;

pub use pattern::matches;

use super::query::respond;
use super::refusal::{Refusal, Words};
use super::{ACCOUNT, REGION};
use crate::fault::{Disconnected, Edge};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

const WORDS: Words = Words {
    throttled_status: 400,
    throttled: "ThrottlingException",
    denied: "AccessDeniedException",
    expired: (400, "ExpiredTokenException"),
    invalid: "ValidationException",
    internal: "InternalException",
    unavailable: "ServiceUnavailable",
};

/// Simulated EventBridge, with the default bus. Clones share one state.
#[derive(Clone, Debug)]
pub struct Events {
    edge: Edge,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    rules: BTreeMap<String, Rule>,
    page: Option<usize>,
}

#[derive(Debug)]
struct Rule {
    pattern: String,
    target: String,
    enabled: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Asked {
    target_arn: String,
    name: String,
    next_token: Option<String>,
    event_pattern: String,
    event: String,
}

impl Events {
    pub(super) fn new(edge: Edge) -> Self {
        Self { edge, state: Arc::default() }
    }

    /// Adds an enabled rule, or replaces it.
    pub fn put_rule(&self, name: &str, pattern: &str, target: &str) {
        let rule = Rule { pattern: pattern.to_owned(), target: target.to_owned(), enabled: true };
        self.state().rules.insert(name.to_owned(), rule);
    }

    /// Disables a rule; does nothing if there is no such rule.
    pub fn disable_rule(&self, name: &str) {
        if let Some(rule) = self.state().rules.get_mut(name) {
            rule.enabled = false;
        }
    }

    /// Removes a rule.
    pub fn remove_rule(&self, name: &str) {
        self.state().rules.remove(name);
    }

    /// Sets the maximum number of names in an answer.
    pub fn set_page_size(&self, names: usize) {
        self.state().page = Some(names);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) async fn serve(&self, operation: &str, body: &Bytes) -> Result<http::Response<Bytes>, Disconnected> {
        let asked: Asked = serde_json::from_slice(body).unwrap_or_default();
        let subject = if asked.name.is_empty() { asked.target_arn.clone() } else { asked.name.clone() };
        let answer = |status, body: &Value| respond(status, "application/x-amz-json-1.1", body.to_string());
        let no =
            |refusal: &Refusal| answer(refusal.status, &json!({ "__type": refusal.code, "message": refusal.message }));
        let refuse = |fault| Refusal::planned(fault, &WORDS).map(|refusal| no(&refusal));
        let serve = async {
            let done = match operation {
                "ListRuleNamesByTarget" => Ok(self.state().names(&asked)),
                "DescribeRule" => self.state().describe(&asked.name),
                "TestEventPattern" => test(&asked.event_pattern, &asked.event),
                other => Err(Refusal::new("UnknownOperationException", format!("There is no operation {other}."))),
            };
            done.map_or_else(|refusal| no(&refusal), |body| answer(200, &body))
        };
        self.edge.pass("events", operation, &subject, refuse, serve).await
    }
}

/// Fields that the event of a `TestEventPattern` must have.
const REQUIRED: [&str; 7] = ["id", "account", "source", "time", "region", "resources", "detail-type"];

fn test(pattern: &str, event: &str) -> Result<Value, Refusal> {
    let invalid = |what: String| Refusal::new("InvalidEventPatternException", what);
    let read = |text| serde_json::from_str::<Value>(text).map_err(|error| invalid(error.to_string()));
    let (pattern, event) = (read(pattern)?, read(event)?);
    if let Some(missing) = REQUIRED.iter().find(|field| event.get(field).is_none()) {
        return Err(invalid(format!("The event has no {missing}.")));
    }
    matches(&pattern, &event).map(|result| json!({ "Result": result })).map_err(invalid)
}

impl State {
    /// A page's token is the last name of the page before it.
    fn names(&self, asked: &Asked) -> Value {
        let after = asked.next_token.as_deref().unwrap_or_default();
        let mut names = self
            .rules
            .iter()
            .filter(|(name, rule)| rule.target == asked.target_arn && name.as_str() > after)
            .map(|(name, _)| name);
        let page: Vec<_> = names.by_ref().take(self.page.unwrap_or(100)).collect();
        let more = names.next().is_some();
        let next = page.last().filter(|_| more);
        json!({ "RuleNames": page, "NextToken": next })
    }

    fn describe(&self, name: &str) -> Result<Value, Refusal> {
        let Some(rule) = self.rules.get(name) else {
            let message = format!("Rule {name} does not exist on EventBus default.");
            return Err(Refusal::new("ResourceNotFoundException", message));
        };
        Ok(json!({
            "Name": name,
            "Arn": format!("arn:aws:events:{REGION}:{ACCOUNT}:rule/{name}"),
            "EventBusName": "default",
            "EventPattern": rule.pattern,
            "State": if rule.enabled { "ENABLED" } else { "DISABLED" },
        }))
    }
}
