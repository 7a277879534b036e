//! A queue's policy: whether a service may send to it, and for whom. Pure.

use super::glob::covers;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::fmt;

/// What lets a service in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// What each statement asks for.
    pub grants: Vec<Grant>,
    /// What would have to be known to say whether a statement applies.
    pub unclear: Vec<String>,
}

/// What one statement asks for: of each list one must fit. Without lists, whoever gets the service to send may.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// The ARNs of what may have it sent; may hold stars.
    pub sources: Vec<Vec<String>>,
    /// The accounts that may have it sent; may hold stars.
    pub accounts: Vec<Vec<String>>,
}

impl Admission {
    /// Whether whoever gets the service to send is let in.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.grants.iter().any(|grant| grant.sources.is_empty() && grant.accounts.is_empty())
    }

    /// The condition that keeps a source with this ARN, in this account, out; `None` lets it in.
    #[must_use]
    pub fn keeps_out(&self, arn: &str, account: &str) -> Option<&'static str> {
        let mut known = self.grants.iter().filter(|grant| fits_each(&grant.sources, arn)).peekable();
        if known.peek().is_none() {
            return Some("aws:SourceArn");
        }
        (!known.any(|grant| fits_each(&grant.accounts, account))).then_some("aws:SourceAccount")
    }
}

fn fits_each(lists: &[Vec<String>], value: &str) -> bool {
    lists.iter().all(|list| list.iter().any(|known| covers(known, value)))
}

impl fmt::Display for Grant {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.sources.iter().chain(&self.accounts).map(|list| list.join(", "));
        to.write_str(&all.collect::<Vec<_>>().join(" and "))
    }
}

/// What is true of EventBridge: it speaks TLS, and is a service of AWS's.
const EVENTBRIDGE_IS: [&str; 2] = ["aws:securetransport", "aws:principalisawsservice"];

/// Why a service may not send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shut {
    /// The policy can't be read.
    Unreadable,
    /// No statement names the service.
    Principal,
    /// One does, but does not allow `sqs:SendMessage`.
    Action,
    /// One allows it for another queue.
    Resource,
    /// A statement denies it.
    Denied(String),
    /// One allows it under conditions that are not judged.
    Unclear(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Policy {
    #[serde(default)]
    statement: Statements,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Statements {
    Many(Vec<Statement>),
    One(Box<Statement>),
}

impl Default for Statements {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Statement {
    #[serde(default)]
    sid: String,
    effect: String,
    #[serde(default)]
    principal: Value,
    #[serde(default)]
    not_principal: Value,
    #[serde(default)]
    action: Value,
    #[serde(default)]
    not_action: Value,
    #[serde(default)]
    resource: Value,
    #[serde(default)]
    not_resource: Value,
    #[serde(default)]
    condition: Map<String, Value>,
}

/// Who may have `service` send to the queue `arn`, as its policy says.
///
/// # Errors
/// Why it may not.
pub fn admission(policy: &str, service: &str, arn: &str) -> Result<Admission, Shut> {
    let Ok(Policy { statement }) = serde_json::from_str(policy) else { return Err(Shut::Unreadable) };
    let statements = match statement {
        Statements::Many(many) => many,
        Statements::One(one) => vec![*one],
    };
    let mut admission = Admission::default();
    let mut nearest = Shut::Principal;
    for statement in &statements {
        let fits = statement.fits(service, arn);
        if statement.effect == "Deny" {
            if fits.is_ok() {
                statement.denies(&mut admission)?;
            }
            continue;
        }
        match fits {
            Ok(()) => statement.allows(&mut admission),
            Err(near) if rank(&near) > rank(&nearest) => nearest = near,
            Err(_) => {}
        }
    }
    match admission.unclear.first() {
        _ if !admission.grants.is_empty() => Ok(admission),
        Some(unclear) => Err(Shut::Unclear(unclear.clone())),
        None => Err(nearest),
    }
}

/// How near a statement comes.
const fn rank(shut: &Shut) -> u8 {
    match shut {
        Shut::Action => 1,
        Shut::Resource => 2,
        _ => 0,
    }
}

impl Statement {
    fn fits(&self, service: &str, arn: &str) -> Result<(), Shut> {
        if !named(&self.principal, &self.not_principal, |names| principal(names, service)) {
            return Err(Shut::Principal);
        }
        let sends = |action: &str| covers(&action.to_ascii_lowercase(), "sqs:sendmessage");
        if !named(&self.action, &self.not_action, |actions| texts(actions).any(sends)) {
            return Err(Shut::Action);
        }
        let is_it = |resource: &str| covers(resource, arn);
        if !named(&self.resource, &self.not_resource, |resources| texts(resources).any(is_it)) {
            return Err(Shut::Resource);
        }
        Ok(())
    }

    fn allows(&self, admission: &mut Admission) {
        let (mut grant, mut other) = (Grant::default(), None);
        for (operator, key, value) in self.conditions() {
            let values = || texts(value).map(str::to_owned).collect::<Vec<_>>();
            let arns = ["arnequals", "arnlike"].contains(&operator.as_str());
            let strings = ["stringequals", "stringlike"].contains(&operator.as_str());
            // Here a star is a star: a common mistake, with which nothing ever comes in.
            let literal = operator == "stringequals" && texts(value).any(|text| text.contains(['*', '?']));
            match key.as_str() {
                "aws:sourcearn" if literal => {
                    other = Some("stringequals aws:sourcearn, to which * is no pattern (write ArnLike)".to_owned());
                }
                "aws:sourceaccount" if literal => {
                    other = Some("stringequals aws:sourceaccount, to which * is no pattern".to_owned());
                }
                "aws:sourcearn" if arns || strings => grant.sources.push(values()),
                "aws:sourceaccount" if strings => grant.accounts.push(values()),
                key if EVENTBRIDGE_IS.contains(&key) && operator == "bool" && all_say(value, "true") => {}
                _ => other = Some(format!("{operator} {key}")),
            }
        }
        match other {
            Some(other) => admission.unclear.push(other),
            None => admission.grants.push(grant),
        }
    }

    fn denies(&self, admission: &mut Admission) -> Result<(), Shut> {
        let mut conditions = self.conditions().peekable();
        if conditions.peek().is_none() {
            return Err(Shut::Denied(self.sid.clone()));
        }
        let never = |(operator, key, value): (String, String, &Value)| {
            operator == "bool" && EVENTBRIDGE_IS.contains(&key.as_str()) && all_say(value, "false")
        };
        if !conditions.any(never) {
            let named = if self.sid.is_empty() { String::new() } else { format!(" \"{}\"", self.sid) };
            admission.unclear.push(format!("the Deny statement{named}"));
        }
        Ok(())
    }

    /// Operator, key and value of each condition, the first two in lower case and without `IfExists`.
    fn conditions(&self) -> impl Iterator<Item = (String, String, &Value)> {
        self.condition.iter().flat_map(|(operator, keys)| {
            let operator = operator.to_ascii_lowercase().trim_end_matches("ifexists").to_owned();
            let keys = keys.as_object().into_iter().flatten();
            keys.map(move |(key, value)| (operator.clone(), key.to_ascii_lowercase(), value))
        })
    }
}

/// Whether an element of a statement names something, or its `Not` form, which stands in its place, does not.
fn named(element: &Value, not: &Value, names: impl Fn(&Value) -> bool) -> bool {
    if not.is_null() { names(element) } else { !names(not) }
}

fn principal(principal: &Value, service: &str) -> bool {
    match principal {
        Value::String(all) => all == "*",
        Value::Object(kinds) => kinds.iter().any(|(kind, names)| match kind.as_str() {
            "Service" => texts(names).any(|name| name == service || name == "*"),
            "AWS" => texts(names).any(|name| name == "*"),
            _ => false,
        }),
        _ => false,
    }
}

/// Whether a condition's value is this word, and nothing else.
fn all_say(value: &Value, word: &str) -> bool {
    texts(value).next().is_some() && texts(value).all(|text| text == word)
}

/// One text, or a list of them; a bool counts as its word.
fn texts(value: &Value) -> impl Iterator<Item = &str> {
    let list = match value {
        Value::Array(list) => list.as_slice(),
        one => std::slice::from_ref(one),
    };
    list.iter().filter_map(|value| match value {
        Value::String(text) => Some(text.as_str()),
        Value::Bool(true) => Some("true"),
        Value::Bool(false) => Some("false"),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const QUEUE: &str = "arn:aws:sqs:eu-west-1:123456789012:ebbtide";
    const RULE: &str = "arn:aws:events:eu-west-1:123456789012:rule/spot";
    const EVENTS: &str = "events.amazonaws.com";

    fn read(statements: &Value) -> Result<Admission, Shut> {
        admission(&json!({ "Version": "2012-10-17", "Statement": statements }).to_string(), EVENTS, QUEUE)
    }

    fn allow() -> Value {
        json!({ "Effect": "Allow", "Principal": { "Service": EVENTS }, "Action": "sqs:SendMessage", "Resource": QUEUE })
    }

    fn with(changes: &Value) -> Value {
        let mut statement = allow();
        for (key, value) in changes.as_object().unwrap() {
            statement[key] = value.clone();
        }
        statement
    }

    #[test]
    fn a_statement_lets_in_whom_it_names() {
        let open = Admission { grants: vec![Grant::default()], ..Admission::default() };
        for statement in [
            json!(allow()),
            json!([allow()]),
            with(&json!({ "Principal": { "Service": ["sqs.amazonaws.com", EVENTS] } })),
            with(&json!({ "Principal": "*", "Action": ["sqs:GetQueueUrl", "SQS:Send*"], "Resource": "*" })),
            with(&json!({ "Principal": { "AWS": "*" }, "Resource": ["arn:aws:sqs:*:*:ebb*"] })),
            with(&json!({ "Condition": { "Bool": { "aws:SecureTransport": true } } })),
            with(&json!({ "Principal": "*", "Condition": { "Bool": { "aws:PrincipalIsAWSService": "true" } } })),
        ] {
            assert_eq!(read(&statement), Ok(open.clone()), "{statement}");
        }
        let narrow =
            with(&json!({ "Condition": { "ArnLike": { "AWS:SourceArn": [RULE, "arn:aws:events:*:rule/b-*"] } } }));
        let admitted = read(&narrow).unwrap();
        assert!(!admitted.is_open() && admitted.keeps_out(RULE, "1").is_none());
        assert_eq!(admitted.keeps_out("arn:aws:events:eu-west-1:123456789012:rule/x", "1"), Some("aws:SourceArn"));
        let account = read(&with(&json!({ "Condition": { "StringEquals": { "aws:SourceAccount": "1" } } }))).unwrap();
        assert_eq!((account.keeps_out(RULE, "1"), account.keeps_out(RULE, "2")), (None, Some("aws:SourceAccount")));
    }

    #[test]
    fn all_conditions_of_one_statement_must_hold() {
        let asking = |condition: Value| with(&json!({ "Condition": condition }));
        let arn = |pattern: &str| json!({ "aws:SourceArn": pattern });
        let account = |id: &str| json!({ "aws:SourceAccount": id });
        let kept_out = |statements: Value| read(&statements).unwrap().keeps_out(RULE, "123456789012");
        let (ours, other) = (account("123456789012"), account("999999999999"));
        let shut = asking(json!({ "ArnLike": arn(RULE), "StringEquals": other }));
        assert_eq!(kept_out(json!([shut])), Some("aws:SourceAccount"));
        assert_eq!(kept_out(json!([asking(json!({ "ArnLike": arn(RULE), "StringEquals": ours }))])), None);
        // Another statement may let in what this one does not, but no half of each.
        assert_eq!(kept_out(json!([shut, asking(json!({ "StringLike": account("1234*") }))])), None);
        let half = asking(json!({ "ArnLike": arn("arn:aws:events:*:rule/x"), "StringEquals": ours }));
        assert_eq!(kept_out(json!([shut, half])), Some("aws:SourceAccount"));
        // Two operators on one key, in either order.
        for (like, equal) in [("arn:aws:events:*:rule/x", RULE), (RULE, "arn:aws:events:eu-west-1:123456789012:rule/x")]
        {
            let both = asking(json!({ "ArnLike": arn(like), "ArnEquals": arn(equal) }));
            assert_eq!(kept_out(json!([both])), Some("aws:SourceArn"), "{like} {equal}");
        }
        let star = asking(json!({ "StringEquals": account("1234*") }));
        assert!(matches!(read(&star), Err(Shut::Unclear(why)) if why.contains("aws:sourceaccount")));
    }

    #[test]
    fn what_is_missing_is_named() {
        let elsewhere = with(&json!({ "Resource": "arn:aws:sqs:eu-west-1:123456789012:other" }));
        for (statements, shut) in [
            (json!([]), Shut::Principal),
            (json!([with(&json!({ "Principal": { "Service": "sns.amazonaws.com" } }))]), Shut::Principal),
            (json!([with(&json!({ "Principal": { "AWS": "arn:aws:iam::1:root" } }))]), Shut::Principal),
            (json!([with(&json!({ "Action": "sqs:ReceiveMessage" }))]), Shut::Action),
            (json!([with(&json!({ "Action": "sqs:ReceiveMessage" })), elsewhere.clone()]), Shut::Resource),
            (json!([elsewhere, with(&json!({ "Principal": {} }))]), Shut::Resource),
            (json!([allow(), with(&json!({ "Effect": "Deny", "Sid": "No" }))]), Shut::Denied("No".to_owned())),
            (
                json!([with(
                    &json!({ "Condition": { "DateLessThan": { "aws:CurrentTime": "2020-01-01T00:00:00Z" } } })
                )]),
                Shut::Unclear("datelessthan aws:currenttime".to_owned()),
            ),
        ] {
            assert_eq!(read(&statements), Err(shut), "{statements}");
        }
        for text in ["", "no", "7", "{\"Statement\": 7}"] {
            assert_eq!(admission(text, EVENTS, QUEUE), Err(Shut::Unreadable), "{text}");
        }
    }

    #[test]
    fn tls_only_denies_nobody_who_speaks_tls() {
        let tls = with(&json!({ "Effect": "Deny", "Principal": "*", "Action": "sqs:*",
            "Condition": { "Bool": { "aws:SecureTransport": "false" } } }));
        assert!(read(&json!([tls, allow()])).unwrap().unclear.is_empty());
        let other = with(&json!({ "Effect": "Deny", "Sid": "Org", "Principal": "*",
            "Condition": { "StringNotEquals": { "aws:PrincipalOrgID": "o-1" } } }));
        assert_eq!(read(&json!([other, allow()])).unwrap().unclear, ["the Deny statement \"Org\""]);
        let perimeter = with(&json!({ "Effect": "Deny", "Principal": "*", "Condition": {
            "StringNotEqualsIfExists": { "aws:PrincipalOrgID": "o-1" }, "BoolIfExists": { "aws:PrincipalIsAWSService": "false" } } }));
        assert!(read(&json!([perimeter, allow()])).unwrap().unclear.is_empty());
    }

    #[test]
    fn what_all_but_some_are_denied_is_denied() {
        let deny = |changes: Value| {
            let mut statement =
                json!({ "Effect": "Deny", "Sid": "No", "Principal": "*", "Action": "sqs:*", "Resource": "*" });
            for (key, value) in changes.as_object().unwrap() {
                statement.as_object_mut().unwrap().remove(key.trim_start_matches("Not"));
                statement[key] = value.clone();
            }
            read(&json!([statement, allow()]))
        };
        for (changes, denied) in [
            (json!({ "NotPrincipal": { "AWS": "arn:aws:iam::1:root" } }), true),
            (json!({ "NotPrincipal": { "Service": EVENTS } }), false),
            (json!({ "NotPrincipal": "*" }), false),
            (json!({ "NotAction": ["sqs:ReceiveMessage", "sqs:DeleteMessage"] }), true),
            (json!({ "NotAction": "sqs:send*" }), false),
            (json!({ "NotResource": "arn:aws:sqs:eu-west-1:123456789012:other" }), true),
            (json!({ "NotResource": QUEUE }), false),
        ] {
            let said = deny(changes.clone());
            assert_eq!(said.is_err(), denied, "{changes}: {said:?}");
            assert!(said.is_ok() || said == Err(Shut::Denied("No".to_owned())), "{changes}");
        }
    }
}
