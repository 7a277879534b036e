//! Planned faults: rules that every service's edge consults, before and after a call's effect.

use crate::calls::Calls;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// A fault that a call meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The service refuses with its own throttling answer (AWS: `Throttling`, HTTP 400; Kubernetes: 429 in plain text with
    /// `Retry-After: 1`), without effect.
    Throttle,
    /// As [`Fault::Throttle`], with this many seconds in `Retry-After`; AWS never names a delay.
    ThrottleFor(u32),
    /// AWS refuses the call because its credentials have expired, without effect. Calls to the API server are not affected.
    Expired,
    /// An HTTP status with the service's error body (500, 503, 403 …), without effect.
    Status(u16),
    /// An HTTP status with this message in Kubernetes' error body, without effect: an admission webhook or policy denies the call.
    Refuse(u16, &'static str),
    /// The call has no effect and is never answered.
    Hang,
    /// The connection breaks before the call has an effect.
    Disconnect,
    /// The call has its effect, and the connection breaks before the answer.
    LostResponse,
    /// The call has its effect, and the answer is delayed by this long.
    Slow(Duration),
    /// The call has its effect after this long, if the client still waits.
    Late(Duration),
    /// The client's own future panics while it waits for the answer, without effect: simulates a bug.
    Panic,
    /// A watch ends cleanly right after it began. Other calls are not affected.
    CloseWatch,
    /// A watch ends with the error that its resourceVersion is too old (410 Gone). Other calls are not affected.
    ExpireWatch,
}

/// Selects the calls that meet a fault.
#[derive(Clone, Debug)]
pub struct Rule {
    operation: String,
    subject: Option<String>,
    fault: Fault,
    skip: u32,
    times: u32,
    chance: f64,
}

impl Rule {
    /// The name that stands for every call to the API server, watches included.
    pub const API_SERVER: &'static str = "kube";

    /// Applies `fault` to every call of `operation` (as in [`crate::calls::Call::operation`]; `*` for all, [`Rule::API_SERVER`] for all
    /// to the API server).
    #[must_use]
    pub fn on(operation: impl Into<String>, fault: Fault) -> Self {
        Self { operation: operation.into(), subject: None, fault, skip: 0, times: u32::MAX, chance: 1.0 }
    }

    /// Applies only to calls with this subject.
    #[must_use]
    pub fn subject(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    /// Skips the first `n` calls.
    #[must_use]
    pub fn after(mut self, n: u32) -> Self {
        self.skip = n;
        self
    }

    /// Applies to at most `n` calls.
    #[must_use]
    pub fn times(mut self, n: u32) -> Self {
        self.times = n;
        self
    }

    /// Applies to each call with this probability, drawn from the plan's seed.
    #[must_use]
    pub fn chance(mut self, probability: f64) -> Self {
        self.chance = probability;
        self
    }
}

/// The plan: rules in force, consulted in order; the first that applies wins.
#[derive(Clone, Debug)]
pub struct Faults(Arc<Mutex<Plan>>);

#[derive(Debug)]
struct Plan {
    rng: fastrand::Rng,
    rules: Vec<Rule>,
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Plan { rng: fastrand::Rng::with_seed(seed), rules: Vec::new() })))
    }

    /// Adds a rule.
    pub fn add(&self, rule: Rule) {
        self.0.lock().rules.push(rule);
    }

    /// Removes all rules: everything works again.
    pub fn clear(&self) {
        self.0.lock().rules.clear();
    }

    fn draw(&self, operation: &str, subject: &str) -> Option<Fault> {
        let mut plan = self.0.lock();
        let Plan { rng, rules } = &mut *plan;
        for rule in rules {
            let named = match &*rule.operation {
                "*" => true,
                // A verb and a resource.
                Rule::API_SERVER => operation.contains(' '),
                wanted => wanted == operation,
            };
            let about = rule.subject.as_deref().is_none_or(|wanted| wanted == subject);
            if !named || !about || rule.times == 0 {
                continue;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
                continue;
            }
            if rule.chance < 1.0 && rng.f64() >= rule.chance {
                continue;
            }
            rule.times = rule.times.saturating_sub(1);
            return Some(rule.fault);
        }
        None
    }
}

/// The connection broke: clients see a transport error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disconnected;

impl std::fmt::Display for Disconnected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the simulated connection broke")
    }
}

impl std::error::Error for Disconnected {}

tokio::task_local! {
    /// Whether the credentials of the call that is being served have expired.
    pub(crate) static EXPIRED: bool;
}

/// Entry of every call: records the call, applies its fault, and then passes it to the service.
#[derive(Clone, Debug)]
pub struct Edge {
    calls: Calls,
    faults: Faults,
}

impl Edge {
    pub(crate) fn new(calls: Calls, faults: Faults) -> Self {
        Self { calls, faults }
    }

    /// Passes one call through the plan.
    ///
    /// Expired credentials of the call itself come before the plan. `refuse` builds the service's own error answer for a [`Fault`] that needs
    /// one ([`Fault::Throttle`], [`Fault::ThrottleFor`], [`Fault::Expired`], [`Fault::Status`],
    /// [`Fault::Refuse`], [`Fault::CloseWatch`], [`Fault::ExpireWatch`]; `None` where the fault does not apply to this call, which
    /// then goes on). `serve` has the effect and returns the answer.
    pub(crate) async fn pass<B>(
        &self,
        service: &'static str,
        operation: &str,
        subject: &str,
        refuse: impl FnOnce(Fault) -> Option<http::Response<B>>,
        serve: impl Future<Output = http::Response<B>>,
    ) -> Result<http::Response<B>, Disconnected> {
        let index = self.calls.arrived(service, operation, subject);
        let expired = EXPIRED.try_with(|expired| *expired).unwrap_or_default();
        let fault = if expired { Some(Fault::Expired) } else { self.faults.draw(operation, subject) };
        if let Some(fault) = fault {
            self.calls.met(index, fault);
        }
        let serve = async {
            let response = serve.await;
            self.calls.served(index);
            response
        };
        let response = match fault {
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Disconnect) => return Err(Disconnected),
            Some(Fault::Panic) => panic!("planned: {service} {operation} {subject}"),
            Some(Fault::LostResponse) => {
                serve.await;
                return Err(Disconnected);
            }
            Some(Fault::Late(by)) => {
                tokio::time::sleep(by).await;
                serve.await
            }
            Some(Fault::Slow(by)) => {
                let response = serve.await;
                tokio::time::sleep(by).await;
                response
            }
            Some(refused) => match refuse(refused) {
                Some(response) => response,
                None => serve.await,
            },
            None => serve.await,
        };
        self.calls.answered(index, response.status().as_u16());
        Ok(response)
    }
}
