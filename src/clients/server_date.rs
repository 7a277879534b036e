//! AWS's time, from the `Date` header of its answers.

use crate::fact::{Fact, Facts};
use crate::runtime::clock::{Clock, ClockChange, Reading};
use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::interceptors::Intercept;
use aws_smithy_runtime_api::client::interceptors::context::BeforeDeserializationInterceptorContextRef;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::config_bag::ConfigBag;
use jiff::Timestamp;
use jiff::fmt::rfc2822;

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
            tell(&self.facts, self.clock.compare(date, self.asked));
        }
        self.clock.note_answer();
        Ok(())
    }
}

/// Reports what has changed about the clock.
pub fn tell(facts: &Facts, change: ClockChange) {
    if let Some(by) = change.stepped {
        facts.emit(&Fact::ClockStepped { by });
    }
    if let Some(ahead) = change.ahead {
        facts.emit(&Fact::ClockSkewed { ahead });
    }
}
