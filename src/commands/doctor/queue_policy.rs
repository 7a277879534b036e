//! A queue's policy: whether a service may send to it, and for whom, by the statements that Ebbtide's templates and AWS's documentation
//! write. A statement of another form is custom: it is named, and not judged. Pure.

use super::arn::ArnParts;
use super::glob::covers;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::fmt;

/// The access that a policy gives a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendAccess {
    /// The statements that allow it.
    pub grants: Vec<Terms>,
    /// The statements that deny it, but for the sources that each names.
    pub denials: Vec<Terms>,
    /// Whether a statement without a condition allows it to everybody.
    pub to_everybody: bool,
}

/// The conditions of one statement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// The statement's Sid.
    pub sid: String,
    /// Patterns for the ARN of the source.
    pub sources: Vec<String>,
    /// Patterns for the account of the source.
    accounts: Vec<String>,
    /// Patterns for the ARNs of roles and users. A service has none.
    principals: Vec<String>,
    /// Whether the statement is about the use of TLS. Everything that sends to a queue uses it.
    tls: bool,
}

impl Terms {
    /// Whether the service may send for anybody.
    fn is_open(&self) -> bool {
        self.sources.is_empty() && self.accounts.is_empty()
    }
}

impl SendAccess {
    /// Returns the statement that denies a source with this ARN in this account, if one does.
    #[must_use]
    pub fn denial_of(&self, arn: &str, account: &str) -> Option<&Terms> {
        self.denials.iter().find(|denial| !any_covers(&denial.sources, arn) && !any_covers(&denial.accounts, account))
    }

    /// Whether the service may send for anybody.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.grants.iter().any(Terms::is_open)
    }

    /// Returns the condition that excludes a source with this ARN in this account, if one does.
    #[must_use]
    pub fn excluding_condition(&self, arn: &str, account: &str) -> Option<&'static str> {
        let fits = |patterns: &[String], value| patterns.is_empty() || any_covers(patterns, value);
        let mut known = self.grants.iter().filter(|grant| fits(&grant.sources, arn)).peekable();
        if known.peek().is_none() {
            return Some("aws:SourceArn");
        }
        (!known.any(|grant| fits(&grant.accounts, account))).then_some("aws:SourceAccount")
    }
}

fn any_covers(patterns: &[String], value: &str) -> bool {
    patterns.iter().any(|pattern| covers(pattern, value))
}

impl fmt::Display for Terms {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [&self.sources, &self.accounts].into_iter().filter(|list| !list.is_empty());
        to.write_str(&all.map(|list| list.join(", ")).collect::<Vec<_>>().join(" and "))
    }
}

/// The reason why a service may not send.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    /// The statement with this Sid is custom.
    Custom(String),
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

/// A statement. It lacks the elements that it has as `NotPrincipal`, `NotAction` or `NotResource`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Statement {
    #[serde(default)]
    sid: String,
    effect: String,
    principal: Option<Value>,
    action: Option<Value>,
    resource: Option<Value>,
    #[serde(default)]
    condition: Map<String, Value>,
}

/// Returns the access that a policy gives `service` to the queue `arn`.
///
/// # Errors
/// The reason why the service may not send.
pub fn access(policy: &str, service: &str, arn: &str) -> Result<SendAccess, SendRefusal> {
    let mut access = SendAccess::default();
    let (mut nearest, mut custom) = (SendRefusal::Principal, None);
    for statement in read(policy).ok_or(SendRefusal::Unreadable)? {
        match (statement.fits(service, arn), statement.terms()) {
            (Err(near), _) if statement.denies() || near < nearest => {}
            (Err(near), _) => nearest = near,
            (Ok(()), None) if custom.as_ref().is_some_and(Statement::denies) => {}
            (Ok(()), None) => custom = Some(statement),
            (Ok(()), Some(terms)) if !statement.denies() => {
                access.to_everybody |= terms.is_open() && statement.is_for_everybody();
                access.grants.push(terms);
            }
            (Ok(()), Some(terms)) if terms.tls => {}
            (Ok(()), Some(terms)) if terms.is_open() => return Err(SendRefusal::Denied(terms.sid)),
            (Ok(()), Some(terms)) => access.denials.push(terms),
        }
    }
    match custom {
        Some(statement) if statement.denies() || !access.to_everybody => Err(SendRefusal::Custom(statement.sid)),
        _ if access.grants.is_empty() => Err(nearest),
        _ => Ok(access),
    }
}

/// Whether a policy refuses what a role sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoleRefusal {
    /// A Deny statement refuses it.
    Refused,
    /// No Deny statement is known to refuse it. The one with this Sid is custom.
    Custom(String),
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
    let about = |statement: &Statement| statement.denies() && statement.sends_to(arn).is_ok();
    for statement in read(policy).unwrap_or_default().into_iter().filter(about) {
        match (statement.names(role), statement.terms()) {
            (Some(false), _) => {}
            (_, Some(terms)) if terms.tls || any_covers(&terms.principals, role) => {}
            // The role's own request has neither source nor account of a source, so a negated condition holds.
            (Some(true), Some(_)) => return RoleRefusal::Refused,
            _ => nearest = RoleRefusal::Custom(statement.sid),
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

impl Statement {
    fn denies(&self) -> bool {
        self.effect == "Deny"
    }

    /// Whether the statement may be about what `service` sends to the queue `arn`.
    fn fits(&self, service: &str, arn: &str) -> Result<(), SendRefusal> {
        let services = self.principal.iter().flat_map(|principal| texts(&principal["Service"]));
        if self.principal.is_some()
            && !self.is_for_everybody()
            && !services.into_iter().any(|name| name == service || name == "*")
        {
            return Err(SendRefusal::Principal);
        }
        self.sends_to(arn)
    }

    /// Whether the statement may be about what anybody sends to the queue `arn`.
    fn sends_to(&self, arn: &str) -> Result<(), SendRefusal> {
        let sends = |action: &str| covers(&action.to_ascii_lowercase(), "sqs:sendmessage");
        if self.action.as_ref().is_some_and(|actions| !texts(actions).any(sends)) {
            return Err(SendRefusal::Action);
        }
        if self.resource.as_ref().is_some_and(|resources| !texts(resources).any(|resource| covers(resource, arn))) {
            return Err(SendRefusal::Resource);
        }
        Ok(())
    }

    fn is_for_everybody(&self) -> bool {
        let principal = self.principal.as_ref();
        principal.is_some_and(|principal| principal == "*" || texts(&principal["AWS"]).any(|name| name == "*"))
    }

    /// Whether the statement is about this role; `None` if it names the role's account, or all principals but some.
    fn names(&self, role: &str) -> Option<bool> {
        let (names, account) = (&self.principal.as_ref()?["AWS"], ArnParts::of(role).account);
        if self.is_for_everybody() || texts(names).any(|name| name == role) {
            return Some(true);
        }
        let is_account = |name: &str| name == account || name.ends_with(&format!(":iam::{account}:root"));
        (!texts(names).any(is_account)).then_some(false)
    }

    /// Returns the conditions; `None` for a statement whose form is custom.
    fn terms(&self) -> Option<Terms> {
        let denies = self.denies();
        let _ = (self.principal.as_ref()?, self.action.as_ref()?, self.resource.as_ref()?);
        let operators = if denies {
            ["arnnotequals", "arnnotlike", "stringnotequals", "stringnotlike"]
        } else {
            ["arnequals", "arnlike", "stringequals", "stringlike"]
        };
        let mut terms = Terms { sid: self.sid.clone(), ..Terms::default() };
        let conditions = self.condition.iter().map(|(operator, keys)| Some((operator, keys.as_object()?)));
        for condition in conditions {
            let (operator, keys) = condition?;
            let operator = operator.to_ascii_lowercase();
            for (key, value) in keys {
                let patterns = match key.to_ascii_lowercase().as_str() {
                    "aws:securetransport"
                        if operator == "bool" && texts(value).eq([if denies { "false" } else { "true" }]) =>
                    {
                        terms.tls = true;
                        continue;
                    }
                    "aws:sourcearn" => &mut terms.sources,
                    "aws:sourceaccount" => &mut terms.accounts,
                    "aws:principalarn" if denies => &mut terms.principals,
                    _ => return None,
                };
                // StringEquals takes a star literally: a common mistake, with which the condition never matches.
                let literal = operator.starts_with("string") && operator.ends_with("equals");
                let is_judged = operators.contains(&operator.as_str())
                    && !(literal && texts(value).any(|text| text.contains(['*', '?'])))
                    // Each of two conditions on one key must hold, so a list of both would allow too much.
                    && (denies || patterns.is_empty());
                if !is_judged {
                    return None;
                }
                patterns.extend(texts(value).map(str::to_owned));
            }
        }
        Some(terms)
    }
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
        for (statement, to_everybody) in [
            (json!(allow()), false),
            (json!([allow()]), false),
            (with(&json!({ "Principal": { "Service": ["sqs.amazonaws.com", EVENTS] } })), false),
            (with(&json!({ "Principal": "*", "Action": ["sqs:GetQueueUrl", "SQS:Send*"], "Resource": "*" })), true),
            (with(&json!({ "Principal": { "AWS": "*" }, "Resource": ["arn:aws:sqs:*:*:ebb*"] })), true),
            (with(&json!({ "Condition": { "Bool": { "aws:SecureTransport": true } } })), false),
        ] {
            let access = read(&statement).unwrap();
            assert_eq!((access.is_open(), access.to_everybody), (true, to_everybody), "{statement}");
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
        assert!(read(&json!([tls, allow()])).is_ok_and(|access| access.denials.is_empty()));
    }

    #[test]
    fn a_statement_of_another_form_is_named_and_not_judged() {
        let custom = |changes: Value, removed: &str| {
            let mut statement = with(&changes);
            statement["Sid"] = "Own".into();
            statement.as_object_mut().unwrap().remove(removed);
            statement
        };
        let deny = |condition: Value| custom(json!({ "Effect": "Deny", "Principal": "*", "Condition": condition }), "");
        let denies = [
            deny(json!({ "StringNotEquals": { "aws:PrincipalOrgID": "o-1" } })),
            deny(json!({ "BoolIfExists": { "aws:PrincipalIsAWSService": "false" } })),
            deny(json!({ "ArnEqualsIfExists": { "aws:SourceArn": RULE } })),
            deny(json!({ "ArnEquals": { "aws:PrincipalArn": "arn:aws:iam::123456789012:role/known" } })),
            deny(json!({ "Bool": { "aws:SecureTransport": "true" } })),
            // StringNotEquals takes the star literally.
            deny(json!({ "StringNotEquals": { "aws:SourceArn": "arn:aws:events:*" } })),
            custom(json!({ "Effect": "Deny", "NotPrincipal": { "Service": EVENTS } }), "Principal"),
            custom(json!({ "Effect": "Deny", "NotAction": "sqs:ReceiveMessage" }), "Action"),
            custom(json!({ "Effect": "Deny", "NotResource": QUEUE }), "Resource"),
        ];
        let allows = [
            custom(json!({ "Condition": { "DateLessThan": { "aws:CurrentTime": "2020-01-01T00:00:00Z" } } }), ""),
            custom(json!({ "Condition": { "StringEquals": { "aws:SourceAccount": "1234*" } } }), ""),
            // Both of two conditions on one key must hold.
            custom(
                json!({ "Condition": { "ArnLike": { "aws:SourceArn": RULE }, "ArnEquals": { "aws:SourceArn": RULE } } }),
                "",
            ),
        ];
        let to_everybody = with(&json!({ "Principal": "*" }));
        for (statement, denies) in denies.iter().map(|it| (it, true)).chain(allows.iter().map(|it| (it, false))) {
            let refusal = Err(SendRefusal::Custom("Own".to_owned()));
            assert_eq!(read(&json!([statement])), refusal, "{statement}");
            assert_eq!(read(&json!([allow(), statement])), refusal, "{statement}");
            // What everybody may do is a fault, whatever else allows it; what else denies it may be none.
            let both = read(&json!([statement, to_everybody]));
            assert_eq!(both.is_ok_and(|access| access.to_everybody), !denies, "{statement}");
        }
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
            (json!({ "StringNotEquals": { "aws:SourceAccount": "1" } }), true),
        ] {
            let access = read(&json!([deny(&condition), allow()])).unwrap();
            let denial = access.denial_of(RULE, "123456789012");
            assert_eq!(denial.is_some(), refuses_spot, "{condition}");
            assert!(denial.is_none_or(|denial| denial.sid == "Only"), "{condition}");
        }
        // Without a source that it names it refuses EventBridge: a service has no ARN of a principal.
        let people = deny(&json!({ "ArnNotEquals": { "aws:PrincipalArn": role } }));
        assert_eq!(read(&json!([people, allow()])), Err(SendRefusal::Denied("Only".to_owned())));
    }

    #[test]
    fn who_may_send_by_iam_alone_is_refused_only_by_a_deny() {
        let judged = |statements: Value| refuses_others(&json!({ "Statement": statements }).to_string(), QUEUE);
        let refuses = |statements: Value| match judged(statements) {
            RoleRefusal::Custom(sid) => panic!("{sid}"),
            judged => judged == RoleRefusal::Refused,
        };
        let role = |name: &str| format!("arn:aws:iam::123456789012:role/{name}");
        assert!(!refuses(json!([])) && !refuses(json!([allow()])));
        assert_eq!(refuses_others("no", QUEUE), RoleRefusal::Admitted);
        for (condition, refused) in [
            (json!({ "ArnNotEquals": { "aws:SourceArn": RULE } }), true),
            (json!({ "ArnNotEquals": { "aws:SourceArn": RULE, "aws:PrincipalArn": role("on-call") } }), true),
            (json!({}), true),
            (json!({ "ArnNotLike": { "aws:SourceArn": RULE, "aws:PrincipalArn": role("*") } }), false),
            (json!({ "Bool": { "aws:SecureTransport": "false" } }), false),
        ] {
            assert_eq!(refuses(json!([allow(), deny(&condition)])), refused, "{condition}");
        }
        let by_arn = deny(&json!({ "ArnNotEquals": { "aws:SourceArn": RULE } }));
        for condition in [
            json!({ "StringNotEquals": { "aws:PrincipalOrgID": "o-1" } }),
            json!({ "StringNotEquals": { "aws:PrincipalOrgID": "o-1" }, "ArnNotEquals": { "aws:SourceArn": RULE } }),
            json!({ "Null": { "aws:SourceArn": "true" } }),
            json!({ "ArnEquals": { "aws:SourceArn": RULE } }),
            json!({ "ArnEqualsIfExists": { "aws:SourceArn": RULE } }),
            json!({ "Bool": { "aws:PrincipalIsAWSService": "false" } }),
        ] {
            let custom = deny(&condition);
            assert_eq!(judged(json!([custom, allow()])), RoleRefusal::Custom("Only".to_owned()), "{condition}");
            assert!(refuses(json!([custom, by_arn])), "another statement decides: {condition}");
        }
        for account in ["123456789012", "arn:aws:iam::123456789012:root"] {
            for key in ["Principal", "NotPrincipal"] {
                let mut statement = by_arn.clone();
                statement.as_object_mut().unwrap().remove("Principal");
                statement[key] = json!({ "AWS": [account] });
                assert_eq!(judged(json!([statement])), RoleRefusal::Custom("Only".to_owned()), "{statement}");
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
}
