//! A queue's policy: whether a service may send to it, and for whom. Pure.

use super::arn::ArnParts;
use super::glob::covers;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::fmt;

/// The access that a policy gives a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendAccess {
    /// The conditions of each statement that allows it.
    pub grants: Vec<Grant>,
    /// The statements that deny it, but for the sources that each names.
    pub denials: Vec<Denial>,
    /// Conditions and statements that can't be judged here.
    pub unclear: Vec<String>,
}

/// The conditions of one statement. One pattern of each list must match. Without lists the service may send for anybody.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// Patterns for the ARN of the source.
    pub sources: Vec<Vec<String>>,
    /// Patterns for the account of the source.
    pub accounts: Vec<Vec<String>>,
}

/// A statement that denies all senders but those that it names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Denial {
    /// The statement's Sid.
    pub sid: String,
    /// Patterns for the ARNs of the sources that may send nevertheless.
    pub sources: Vec<String>,
    /// Patterns for the accounts of such sources.
    pub accounts: Vec<String>,
}

impl Denial {
    fn refuses(&self, arn: &str, account: &str) -> bool {
        let none = |patterns: &[String], value| !patterns.iter().any(|pattern| covers(pattern, value));
        none(&self.sources, arn) && none(&self.accounts, account)
    }
}

impl SendAccess {
    /// Returns the statement that denies a source with this ARN in this account, if one does.
    #[must_use]
    pub fn denial_of(&self, arn: &str, account: &str) -> Option<&Denial> {
        self.denials.iter().find(|denial| denial.refuses(arn, account))
    }

    /// Whether the service may send for anybody.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.grants.iter().any(|grant| grant.sources.is_empty() && grant.accounts.is_empty())
    }

    /// Returns the condition that excludes a source with this ARN in this account, if one does.
    #[must_use]
    pub fn excluding_condition(&self, arn: &str, account: &str) -> Option<&'static str> {
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

/// Condition keys that are true for EventBridge: it uses TLS, and is an AWS service.
const TRUE_FOR_EVENTBRIDGE: [&str; 2] = ["aws:securetransport", "aws:principalisawsservice"];

/// The reason why a service may not send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendRefusal {
    /// The policy can't be read.
    Unreadable,
    /// No statement names the service.
    Principal,
    /// A statement names the service, but does not allow `sqs:SendMessage`.
    Action,
    /// A statement allows it for another queue.
    Resource,
    /// A statement with this Sid denies it to every source.
    Denied(String),
    /// A statement allows it under a condition that can't be judged here.
    Unclear(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PolicyDocument {
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

/// Returns the access that a policy gives `service` to the queue `arn`.
///
/// # Errors
/// The reason why the service may not send.
pub fn access(policy: &str, service: &str, arn: &str) -> Result<SendAccess, SendRefusal> {
    let Some(statements) = read(policy) else { return Err(SendRefusal::Unreadable) };
    let mut access = SendAccess::default();
    let mut nearest = SendRefusal::Principal;
    for statement in &statements {
        let fits = statement.fits(service, arn);
        if statement.effect == "Deny" {
            if fits.is_ok() {
                statement.denies(&mut access)?;
            }
            continue;
        }
        match fits {
            Ok(()) => statement.allows(&mut access),
            Err(near) if rank(&near) > rank(&nearest) => nearest = near,
            Err(_) => {}
        }
    }
    match access.unclear.first() {
        _ if !access.grants.is_empty() => Ok(access),
        Some(unclear) => Err(SendRefusal::Unclear(unclear.clone())),
        None => Err(nearest),
    }
}

/// Whether a policy refuses what a role sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoleRefusal {
    /// A Deny statement refuses it.
    Refused,
    /// No Deny statement does, but whether the one with this Sid does can't be judged here.
    Unclear(String),
    /// No Deny statement does.
    Admitted,
}

/// Returns whether the policy refuses roles and users of the queue's own account that may send by IAM alone, but for those that it
/// names. An unreadable policy does not.
#[must_use]
pub fn refuses_others(policy: &str, arn: &str) -> RoleRefusal {
    let ArnParts { partition, account, .. } = ArnParts::of(arn);
    refuses(policy, &format!("arn:{partition}:iam::{account}:role/any"), arn)
}

/// Returns whether the policy refuses what this role sends. An unreadable policy does not.
#[must_use]
pub fn refuses(policy: &str, role: &str, arn: &str) -> RoleRefusal {
    let mut nearest = RoleRefusal::Admitted;
    for statement in read(policy).unwrap_or_default() {
        match statement.refuses(role, arn) {
            Some(true) => return RoleRefusal::Refused,
            Some(false) => {}
            None => nearest = RoleRefusal::Unclear(statement.sid),
        }
    }
    nearest
}

fn read(policy: &str) -> Option<Vec<Statement>> {
    let PolicyDocument { statement } = serde_json::from_str(policy).ok()?;
    Some(match statement {
        Statements::Many(many) => many,
        Statements::One(one) => vec![*one],
    })
}

/// Returns how many elements of a statement fit.
const fn rank(refusal: &SendRefusal) -> u8 {
    match refusal {
        SendRefusal::Action => 1,
        SendRefusal::Resource => 2,
        _ => 0,
    }
}

impl Statement {
    fn fits(&self, service: &str, arn: &str) -> Result<(), SendRefusal> {
        if !named(&self.principal, &self.not_principal, |names| principal(names, service)) {
            return Err(SendRefusal::Principal);
        }
        self.sends_to(arn)
    }

    /// Whether the statement is about sending to the queue `arn`, by any sender.
    ///
    /// # Errors
    /// The element that does not fit.
    fn sends_to(&self, arn: &str) -> Result<(), SendRefusal> {
        let sends = |action: &str| covers(&action.to_ascii_lowercase(), "sqs:sendmessage");
        if !named(&self.action, &self.not_action, |actions| texts(actions).any(sends)) {
            return Err(SendRefusal::Action);
        }
        let is_it = |resource: &str| covers(resource, arn);
        if !named(&self.resource, &self.not_resource, |resources| texts(resources).any(is_it)) {
            return Err(SendRefusal::Resource);
        }
        Ok(())
    }

    fn allows(&self, access: &mut SendAccess) {
        let (mut grant, mut other) = (Grant::default(), None);
        for Condition { operator, key, value, .. } in self.conditions() {
            let values = || texts(value).map(str::to_owned).collect::<Vec<_>>();
            let arns = ["arnequals", "arnlike"].contains(&operator.as_str());
            let strings = ["stringequals", "stringlike"].contains(&operator.as_str());
            // StringEquals takes a star literally: a common mistake, with which the condition never matches.
            let literal = operator == "stringequals" && texts(value).any(|text| text.contains(['*', '?']));
            match key.as_str() {
                "aws:sourcearn" if literal => {
                    other = Some("stringequals aws:sourcearn, for which * is no wildcard (write ArnLike)".to_owned());
                }
                "aws:sourceaccount" if literal => {
                    other = Some("stringequals aws:sourceaccount, for which * is no wildcard".to_owned());
                }
                "aws:sourcearn" if arns || strings => grant.sources.push(values()),
                "aws:sourceaccount" if strings => grant.accounts.push(values()),
                key if TRUE_FOR_EVENTBRIDGE.contains(&key) && operator == "bool" && all_are(value, "true") => {}
                _ => other = Some(format!("{operator} {key}")),
            }
        }
        match other {
            Some(other) => access.unclear.push(other),
            None => access.grants.push(grant),
        }
    }

    fn denies(&self, access: &mut SendAccess) -> Result<(), SendRefusal> {
        let never = |Condition { operator, key, value, .. }: Condition<'_>| {
            operator == "bool" && TRUE_FOR_EVENTBRIDGE.contains(&key.as_str()) && all_are(value, "false")
        };
        if self.conditions().any(never) {
            return Ok(());
        }
        let mut denial = Denial { sid: self.sid.clone(), ..Denial::default() };
        for Condition { operator, key, value, .. } in self.conditions() {
            match key.as_str() {
                "aws:sourcearn" if is_negated(&operator) => denial.sources.extend(patterns(&operator, value)),
                "aws:sourceaccount" if is_negated(&operator) => denial.accounts.extend(patterns(&operator, value)),
                // A service has no such key, so the condition holds for it.
                "aws:principalarn" if is_negated(&operator) => {}
                _ => {
                    let named = if self.sid.is_empty() { String::new() } else { format!(" \"{}\"", self.sid) };
                    access.unclear.push(format!("the Deny statement{named}"));
                    return Ok(());
                }
            }
        }
        if denial.sources.is_empty() && denial.accounts.is_empty() {
            return Err(SendRefusal::Denied(denial.sid));
        }
        access.denials.push(denial);
        Ok(())
    }

    /// Whether the statement denies this role to send to the queue; `None` if that can't be judged here.
    fn refuses(&self, role: &str, arn: &str) -> Option<bool> {
        if self.effect != "Deny" || self.sends_to(arn).is_err() {
            return Some(false);
        }
        let conditions = self.conditions().map(|Condition { operator, if_exists, key, value }| match key.as_str() {
            // A role's own request lacks these keys, so a negated condition holds, and so does one that asks for them only if they exist.
            "aws:sourcearn" | "aws:sourceaccount" if is_negated(&operator) => Some(true),
            "aws:sourcearn" | "aws:sourceaccount" => is_positive(&operator).then_some(if_exists),
            "aws:principalarn" if is_negated(&operator) => {
                Some(!patterns(&operator, value).any(|pattern| covers(&pattern, role)))
            }
            "aws:principalarn" if is_positive(&operator) => Some(texts(value).any(|pattern| covers(pattern, role))),
            "aws:principalisawsservice" if operator == "bool" => Some(all_are(value, "false")),
            "aws:securetransport" if operator == "bool" => Some(all_are(value, "true")),
            _ => None,
        });
        let all: Vec<_> = conditions.chain([self.names(role)]).collect();
        // One that does not hold decides, whatever the others are.
        if all.contains(&Some(false)) { Some(false) } else { (!all.contains(&None)).then_some(true) }
    }

    /// Whether the statement is about this role; `None` if it names the role's whole account.
    fn names(&self, role: &str) -> Option<bool> {
        let account = ArnParts::of(role).account;
        let names = |principals: &Value| match principals {
            Value::String(all) => Some(all == "*"),
            principals => {
                let root = format!(":iam::{account}:root");
                let mut names = texts(&principals["AWS"]);
                let is_account = |name: &str| name == account || name.ends_with(&root);
                if names.clone().any(|name| name == "*" || name == role) {
                    Some(true)
                } else {
                    (!names.any(is_account)).then_some(false)
                }
            }
        };
        if self.not_principal.is_null() { names(&self.principal) } else { names(&self.not_principal).map(|is| !is) }
    }

    fn conditions(&self) -> impl Iterator<Item = Condition<'_>> {
        self.condition.iter().flat_map(|(operator, keys)| {
            let operator = operator.to_ascii_lowercase();
            let (operator, if_exists) = match operator.strip_suffix("ifexists") {
                Some(operator) => (operator.to_owned(), true),
                None => (operator, false),
            };
            let keys = keys.as_object().into_iter().flatten();
            keys.map(move |(key, value)| Condition {
                operator: operator.clone(),
                if_exists,
                key: key.to_ascii_lowercase(),
                value,
            })
        })
    }
}

/// One condition of a statement.
struct Condition<'a> {
    /// The operator, in lower case and without `IfExists`.
    operator: String,
    /// Whether the condition holds for a request that lacks the key.
    if_exists: bool,
    /// The key, in lower case.
    key: String,
    value: &'a Value,
}

/// Whether an element of a statement matches, or its `Not` form, which replaces it, does not.
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

/// Whether an operator of ARNs or texts holds when no value matches, and when the request lacks the key.
fn is_negated(operator: &str) -> bool {
    ["arnnotequals", "arnnotlike", "stringnotequals", "stringnotlike"].contains(&operator)
}

/// Whether an operator of ARNs or texts holds when a value matches, and not when the request lacks the key.
fn is_positive(operator: &str) -> bool {
    ["arnequals", "arnlike", "stringequals", "stringlike"].contains(&operator)
}

/// Returns the values of a negated condition that can match. `StringNotEquals` takes a star literally, so such a value matches nothing.
fn patterns(operator: &str, value: &Value) -> impl Iterator<Item = String> {
    let literal = operator == "stringnotequals";
    texts(value).filter(move |text| !literal || !text.contains(['*', '?'])).map(str::to_owned)
}

/// Whether a condition's value is this word only.
fn all_are(value: &Value, word: &str) -> bool {
    texts(value).next().is_some() && texts(value).all(|text| text == word)
}

/// Returns the texts of a value: one text, or a list of them. A boolean counts as its word.
fn texts(value: &Value) -> impl Iterator<Item = &str> + Clone {
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

    fn read(statements: &Value) -> Result<SendAccess, SendRefusal> {
        access(&json!({ "Version": "2012-10-17", "Statement": statements }).to_string(), EVENTS, QUEUE)
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
    fn a_statement_allows_the_principal_that_it_names() {
        let open = SendAccess { grants: vec![Grant::default()], ..SendAccess::default() };
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
        assert!(!admitted.is_open() && admitted.excluding_condition(RULE, "1").is_none());
        assert_eq!(
            admitted.excluding_condition("arn:aws:events:eu-west-1:123456789012:rule/x", "1"),
            Some("aws:SourceArn")
        );
        let account = read(&with(&json!({ "Condition": { "StringEquals": { "aws:SourceAccount": "1" } } }))).unwrap();
        assert_eq!(
            (account.excluding_condition(RULE, "1"), account.excluding_condition(RULE, "2")),
            (None, Some("aws:SourceAccount"))
        );
    }

    #[test]
    fn all_conditions_of_one_statement_must_hold() {
        let asking = |condition: Value| with(&json!({ "Condition": condition }));
        let arn = |pattern: &str| json!({ "aws:SourceArn": pattern });
        let account = |id: &str| json!({ "aws:SourceAccount": id });
        let excluded = |statements: Value| read(&statements).unwrap().excluding_condition(RULE, "123456789012");
        let (ours, other) = (account("123456789012"), account("999999999999"));
        let refusal = asking(json!({ "ArnLike": arn(RULE), "StringEquals": other }));
        assert_eq!(excluded(json!([refusal])), Some("aws:SourceAccount"));
        assert_eq!(excluded(json!([asking(json!({ "ArnLike": arn(RULE), "StringEquals": ours }))])), None);
        // Another statement may allow a source, but halves of two statements do not add up.
        assert_eq!(excluded(json!([refusal, asking(json!({ "StringLike": account("1234*") }))])), None);
        let half = asking(json!({ "ArnLike": arn("arn:aws:events:*:rule/x"), "StringEquals": ours }));
        assert_eq!(excluded(json!([refusal, half])), Some("aws:SourceAccount"));
        // Two operators on one key, in either order.
        for (like, equal) in [("arn:aws:events:*:rule/x", RULE), (RULE, "arn:aws:events:eu-west-1:123456789012:rule/x")]
        {
            let both = asking(json!({ "ArnLike": arn(like), "ArnEquals": arn(equal) }));
            assert_eq!(excluded(json!([both])), Some("aws:SourceArn"), "{like} {equal}");
        }
        let star = asking(json!({ "StringEquals": account("1234*") }));
        assert!(matches!(read(&star), Err(SendRefusal::Unclear(why)) if why.contains("aws:sourceaccount")));
    }

    #[test]
    fn the_missing_element_is_named() {
        let elsewhere = with(&json!({ "Resource": "arn:aws:sqs:eu-west-1:123456789012:other" }));
        for (statements, refusal) in [
            (json!([]), SendRefusal::Principal),
            (json!([with(&json!({ "Principal": { "Service": "sns.amazonaws.com" } }))]), SendRefusal::Principal),
            (json!([with(&json!({ "Principal": { "AWS": "arn:aws:iam::1:root" } }))]), SendRefusal::Principal),
            (json!([with(&json!({ "Action": "sqs:ReceiveMessage" }))]), SendRefusal::Action),
            (json!([with(&json!({ "Action": "sqs:ReceiveMessage" })), elsewhere.clone()]), SendRefusal::Resource),
            (json!([elsewhere, with(&json!({ "Principal": {} }))]), SendRefusal::Resource),
            (json!([allow(), with(&json!({ "Effect": "Deny", "Sid": "No" }))]), SendRefusal::Denied("No".to_owned())),
            (
                json!([with(
                    &json!({ "Condition": { "DateLessThan": { "aws:CurrentTime": "2020-01-01T00:00:00Z" } } })
                )]),
                SendRefusal::Unclear("datelessthan aws:currenttime".to_owned()),
            ),
        ] {
            assert_eq!(read(&statements), Err(refusal), "{statements}");
        }
        for text in ["", "no", "7", "{\"Statement\": 7}"] {
            assert_eq!(access(text, EVENTS, QUEUE), Err(SendRefusal::Unreadable), "{text}");
        }
    }

    #[test]
    fn a_tls_only_statement_denies_no_tls_client() {
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

    fn deny(condition: &Value) -> Value {
        json!({ "Effect": "Deny", "Sid": "Only", "Principal": "*", "Action": "sqs:SendMessage", "Resource": QUEUE, "Condition": condition })
    }

    #[test]
    fn a_deny_statement_refuses_the_sources_that_it_does_not_name() {
        let role = "arn:aws:iam::123456789012:role/on-call";
        for (condition, refuses_spot) in [
            (json!({ "ArnNotEquals": { "aws:SourceArn": [RULE, "arn:x"], "aws:PrincipalArn": role } }), false),
            (json!({ "ArnNotLike": { "aws:SourceArn": "arn:aws:events:*:*:rule/s*" } }), false),
            (json!({ "ArnNotEquals": { "aws:SourceArn": "arn:x" }, "ArnNotLike": { "aws:SourceArn": RULE } }), false),
            (json!({ "StringNotEquals": { "aws:SourceAccount": "123456789012" } }), false),
            (
                json!({ "StringNotEquals": { "aws:SourceAccount": "1" }, "ArnNotEquals": { "aws:SourceArn": RULE } }),
                false,
            ),
            (json!({ "ArnNotEquals": { "aws:SourceArn": "arn:aws:events:eu-west-1:123456789012:rule/x" } }), true),
            (json!({ "StringNotEquals": { "aws:SourceArn": "arn:aws:events:*", "aws:SourceAccount": "1" } }), true),
        ] {
            let access = read(&json!([deny(&condition), allow()])).unwrap();
            let denial = access.denial_of(RULE, "123456789012");
            assert_eq!(denial.is_some(), refuses_spot, "{condition}");
            assert!(access.unclear.is_empty() && denial.is_none_or(|denial| denial.sid == "Only"), "{condition}");
        }
        // Without a source that it names it refuses EventBridge: a service has no ARN of a principal.
        for condition in [
            json!({ "ArnNotEquals": { "aws:PrincipalArn": role } }),
            json!({ "StringNotEquals": { "aws:SourceArn": "arn:aws:events:*" } }),
        ] {
            assert_eq!(read(&json!([deny(&condition), allow()])), Err(SendRefusal::Denied("Only".to_owned())));
        }
    }

    #[test]
    fn who_may_send_by_iam_alone_is_refused_only_by_a_deny() {
        let judged = |statements: Value| refuses_others(&json!({ "Statement": statements }).to_string(), QUEUE);
        let refuses = |statements: Value| match judged(statements) {
            RoleRefusal::Unclear(sid) => panic!("{sid}"),
            judged => judged == RoleRefusal::Refused,
        };
        let role = |name: &str| format!("arn:aws:iam::123456789012:role/{name}");
        assert!(!refuses(json!([])) && !refuses(json!([allow()])));
        assert_eq!(refuses_others("no", QUEUE), RoleRefusal::Admitted);
        for (condition, refused) in [
            (json!({ "ArnNotEquals": { "aws:SourceArn": RULE } }), true),
            (json!({ "ArnNotEquals": { "aws:SourceArn": RULE, "aws:PrincipalArn": role("on-call") } }), true),
            (
                json!({ "Bool": { "aws:PrincipalIsAWSService": "false" }, "ArnNotLike": { "aws:PrincipalArn": role("on-call") } }),
                true,
            ),
            (json!({}), true),
            (json!({ "ArnNotLike": { "aws:SourceArn": RULE, "aws:PrincipalArn": role("*") } }), false),
            (json!({ "Bool": { "aws:SecureTransport": "false" } }), false),
            (json!({ "ArnEquals": { "aws:SourceArn": RULE } }), false),
            // A request without the key meets the condition.
            (json!({ "ArnEqualsIfExists": { "aws:SourceArn": RULE } }), true),
            (json!({ "StringLikeIfExists": { "aws:SourceAccount": "1*" } }), true),
            (json!({ "ArnNotEqualsIfExists": { "aws:SourceArn": RULE } }), true),
            (json!({ "ArnEqualsIfExists": { "aws:SourceArn": RULE, "aws:PrincipalArn": role("known") } }), false),
            (json!({ "ArnEquals": { "aws:PrincipalArn": role("known") } }), false),
            (json!({ "ArnLike": { "aws:PrincipalArn": role("*") } }), true),
            // What does not hold decides, whatever the other condition is.
            (json!({ "Bool": { "aws:PrincipalIsAWSService": "true" }, "Null": { "aws:SourceArn": "true" } }), false),
        ] {
            assert_eq!(refuses(json!([allow(), deny(&condition)])), refused, "{condition}");
        }
        let by_arn = deny(&json!({ "ArnNotEquals": { "aws:SourceArn": RULE } }));
        for condition in [
            json!({ "StringNotEquals": { "aws:PrincipalOrgID": "o-1" } }),
            json!({ "StringNotEquals": { "aws:PrincipalOrgID": "o-1" }, "ArnNotEquals": { "aws:SourceArn": RULE } }),
            json!({ "Null": { "aws:SourceArn": "true" } }),
            json!({ "NotIpAddress": { "aws:SourceIp": "10.0.0.0/8" } }),
        ] {
            let unclear = deny(&condition);
            assert_eq!(judged(json!([unclear, allow()])), RoleRefusal::Unclear("Only".to_owned()), "{condition}");
            assert!(refuses(json!([unclear, by_arn])), "another statement decides: {condition}");
        }
        for account in ["123456789012", "arn:aws:iam::123456789012:root"] {
            for key in ["Principal", "NotPrincipal"] {
                let mut statement = by_arn.clone();
                statement.as_object_mut().unwrap().remove("Principal");
                statement[key] = json!({ "AWS": [account] });
                assert_eq!(judged(json!([statement])), RoleRefusal::Unclear("Only".to_owned()), "{statement}");
            }
        }
        // A role that a statement names is judged as that.
        let mut statement = by_arn.clone();
        statement["Principal"] = json!({ "AWS": role("hook") });
        let of = |name: &str| super::refuses(&json!({ "Statement": [statement] }).to_string(), &role(name), QUEUE);
        assert_eq!((of("hook"), of("other")), (RoleRefusal::Refused, RoleRefusal::Admitted));
        for (key, value) in [
            ("Principal", json!({ "Service": EVENTS })),
            ("Principal", json!({ "AWS": role("known") })),
            ("Action", json!("sqs:ReceiveMessage")),
            ("Resource", json!("arn:aws:sqs:eu-west-1:123456789012:other")),
            ("Effect", json!("Allow")),
        ] {
            let mut statement = deny(&json!({ "ArnNotEquals": { "aws:SourceArn": RULE } }));
            statement[key] = value;
            assert!(!refuses(json!([statement])), "{statement}");
        }
    }

    #[test]
    fn not_elements_deny_everything_else() {
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
            assert!(said.is_ok() || said == Err(SendRefusal::Denied("No".to_owned())), "{changes}");
        }
    }
}
