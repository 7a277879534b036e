//! AWS's time, and the API server's, from the `Date` header of their answers.

use crate::clients::gate::{Call, Class, Gate, KubeError};
use crate::fact::{Fact, Facts};
use crate::runtime::clock::{Clock, ClockChange, Reading};
use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::interceptors::Intercept;
use aws_smithy_runtime_api::client::interceptors::context::BeforeDeserializationInterceptorContextRef;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::config_bag::ConfigBag;
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use tokio::time::Instant;

/// Returns the time in a `Date` header, which has whole seconds.
#[must_use]
pub fn parse(date: &str) -> Option<Timestamp> {
    rfc2822::DateTimeParser::new().parse_timestamp(date).ok()
}

/// Compares our clock with AWS's by the answer to one call. At the answer itself: what the service does later takes its time.
///
/// A refusal counts as well: it may be our clock that AWS refuses.
#[derive(Debug)]
pub struct ClockComparison {
    clock: Clock,
    facts: Facts,
    asked: Reading,
}

impl ClockComparison {
    /// Begins a comparison, before the call is made.
    #[must_use]
    pub fn begin(clock: Clock, facts: Facts) -> Self {
        let asked = clock.read();
        Self { clock, facts, asked }
    }
}

impl Intercept for ClockComparison {
    fn name(&self) -> &'static str {
        "ClockComparison"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if let Some(date) = context.response().headers().get("date").and_then(parse) {
            report(&self.facts, self.clock.compare(date, self.asked));
        }
        self.clock.trust();
        Ok(())
    }
}

/// Compares our clock with that of the API server. Every client may ask for its version, and any answer has the time.
///
/// # Errors
/// No answer `by` then.
pub async fn ask_api_server(
    client: &kube::Client,
    gate: &Gate,
    clock: Clock,
    facts: &Facts,
    by: Instant,
) -> Result<(), KubeError> {
    let call = Call { verb: "get", resource: "version", subject: "" };
    let answer = async || {
        let request = http::Request::get("/version").body(kube::client::Body::empty());
        let request = request.map_err(kube::Error::HttpError)?;
        let asked = clock.read();
        let answer = client.clone().send(request).await?;
        let date = answer.headers().get(http::header::DATE).and_then(|date| parse(date.to_str().ok()?));
        Ok(date.map(|date| clock.compare(date, asked)))
    };
    let change = gate.kube(call, Class::Background, by, answer).await?;
    clock.trust();
    report(facts, change.unwrap_or_default());
    Ok(())
}

/// Reports what has changed about the clock.
pub fn report(facts: &Facts, change: ClockChange) {
    if let Some(by) = change.stepped {
        facts.emit(&Fact::ClockStepped { by });
    }
    if let Some(ahead) = change.ahead {
        facts.emit(&Fact::ClockSkewed { ahead });
    }
}
