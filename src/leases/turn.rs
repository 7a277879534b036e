//! Whose turn it is: a Kubernetes Lease that one replica holds at a time.
//!
//! The rules are those of Kubernetes' own leader election. Whoever writes the Lease first has it; every write names the version
//! that it replaces, so two can't both succeed. Another's is over when it has not changed for as long as it says. That is judged by
//! our own clock, from when we saw it last change: what the holder's clock shows does not matter. We in turn stop well before
//! the others may judge so, counted from before we asked.
//!
//! A library would bring its own tasks, its own clock and its own way to the API server, past the gate.

use crate::clients::gate::{CALL_TIMEOUT, Call, Category, Class, Gate, KubeError};
use crate::runtime::clock::Clock;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use std::time::Duration;
use tokio::time::Instant;

/// What the Lease is called.
pub const NAME: &str = "ebbtide-lease-collector";

/// How long a turn lasts: two looks, so that one that fails does not lose it.
const LASTS: Duration = Duration::from_mins(20);

/// We end ours so much earlier than others may take it: a call that is under way then has ended, too.
const MARGIN: Duration = Duration::from_mins(1);

/// Takes turns with other replicas.
pub struct Turn {
    api: Api<Lease>,
    gate: Gate,
    clock: Clock,
    /// Who we are.
    identity: String,
    /// What was read last, and when that was new to us.
    seen: Option<(LeaseSpec, Instant)>,
    /// The Lease as we wrote it, if it was ours when last looked at.
    held: Option<Lease>,
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Ours, until then.
    Ours {
        /// When to stop.
        until: Instant,
    },
    /// Another's, until then at the earliest.
    Theirs {
        /// When to look again.
        until: Instant,
    },
}

/// What follows from the Lease as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// It is ours already: say that we live.
    Renew,
    /// Nobody has it, or nobody any more.
    Take,
    /// Somebody has it until then.
    Wait(Instant),
}

impl Turn {
    /// A replica that is called `identity`, in a namespace where it may write the Lease.
    #[must_use]
    pub fn new(client: Client, (namespace, identity): (&str, &str), gate: Gate, clock: Clock) -> Self {
        let api = Api::namespaced(client, namespace);
        Self { api, gate, clock, identity: identity.to_owned(), seen: None, held: None }
    }

    /// Whether it was ours when last looked at.
    #[must_use]
    pub const fn is_ours(&self) -> bool {
        self.held.is_some()
    }

    /// Takes or keeps the turn, if it is free or ours.
    ///
    /// # Errors
    /// What the API server said. Then nobody knows whose turn it is: it is not ours.
    pub async fn take(&mut self) -> Result<Taken, KubeError> {
        let asked = Instant::now();
        self.held = None;
        let call = Call { verb: "get", resource: "leases", subject: NAME };
        let found = self.call(call, || self.api.get_opt(NAME)).await?;
        let write = match found {
            None => self.write(None).await,
            Some(found) => {
                let spec = found.spec.clone().unwrap_or_default();
                match self.look(spec, Instant::now()) {
                    Next::Wait(until) => return Ok(Taken::Theirs { until }),
                    next => self.write(Some((found, next))).await,
                }
            }
        };
        match write {
            Ok(written) => {
                self.held = Some(written);
                Ok(Taken::Ours { until: asked + LASTS - MARGIN })
            }
            // Another replica was faster.
            Err(error) if error.category == Category::Conflict => Ok(Taken::Theirs { until: asked + LASTS }),
            Err(error) => Err(error),
        }
    }

    /// Gives the turn back, if it is ours, so that nobody waits for its end.
    ///
    /// # Errors
    /// What the API server said.
    pub async fn give_back(self) -> Result<(), KubeError> {
        let Some(mut lease) = self.held.clone() else { return Ok(()) };
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = None;
        spec.renew_time = Some(MicroTime(self.clock.now()));
        self.replace(lease).await.map(drop)
    }

    fn look(&mut self, spec: LeaseSpec, now: Instant) -> Next {
        let since = match &self.seen {
            Some((seen, since)) if *seen == spec => *since,
            _ => now,
        };
        let next = next(&spec, since, now, &self.identity);
        self.seen = Some((spec, since));
        next
    }

    async fn write(&self, found: Option<(Lease, Next)>) -> Result<Lease, KubeError> {
        let now = MicroTime(self.clock.now());
        let creates = found.is_none();
        let (mut lease, next) = found.unwrap_or_else(|| {
            let metadata = ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() };
            (Lease { metadata, spec: None }, Next::Take)
        });
        let spec = lease.spec.get_or_insert_default();
        if next == Next::Take {
            spec.lease_transitions = Some(spec.lease_transitions.map_or(0, |before| before.saturating_add(1)));
            spec.acquire_time = Some(now.clone());
            spec.holder_identity = Some(self.identity.clone());
        }
        spec.renew_time = Some(now);
        spec.lease_duration_seconds = i32::try_from(LASTS.as_secs()).ok();
        if creates {
            let (call, params) = (Call { verb: "create", resource: "leases", subject: NAME }, PostParams::default());
            self.call(call, || self.api.create(&params, &lease)).await
        } else {
            self.replace(lease).await
        }
    }

    /// Writes the Lease in the place of the version that it was read at.
    async fn replace(&self, lease: Lease) -> Result<Lease, KubeError> {
        let (call, params) = (Call { verb: "update", resource: "leases", subject: NAME }, PostParams::default());
        self.call(call, || self.api.replace(NAME, &params, &lease)).await
    }

    async fn call<T, F>(&self, call: Call<'_>, request: impl FnOnce() -> F) -> Result<T, KubeError>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        self.gate.kube(call, Class::Background, Instant::now() + CALL_TIMEOUT, request).await
    }
}

/// What `me` does about a Lease that has been so `since` then.
fn next(spec: &LeaseSpec, since: Instant, now: Instant, me: &str) -> Next {
    match spec.holder_identity.as_deref().unwrap_or_default() {
        "" => Next::Take,
        holder if holder == me => Next::Renew,
        _ => {
            let said = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
            let until = since + said.filter(|seconds| *seconds > 0).map_or(LASTS, Duration::from_secs);
            if now >= until { Next::Take } else { Next::Wait(until) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_over_when_it_did_not_change_for_as_long_as_it_says() {
        let since = Instant::now();
        let at = |seconds| since + Duration::from_secs(seconds);
        let lease = |holder: &str, seconds: Option<i32>| LeaseSpec {
            holder_identity: (!holder.is_empty()).then(|| holder.to_owned()),
            lease_duration_seconds: seconds,
            ..LeaseSpec::default()
        };
        for (holder, lasts, now, expected) in [
            ("", Some(60), 0, Next::Take),
            ("me", Some(60), 0, Next::Renew),
            ("me", Some(60), 3600, Next::Renew),
            ("other", Some(60), 0, Next::Wait(at(60))),
            ("other", Some(60), 59, Next::Wait(at(60))),
            ("other", Some(60), 60, Next::Take),
            ("other", None, 1199, Next::Wait(at(1200))),
            ("other", None, 1200, Next::Take),
            ("other", Some(0), 0, Next::Wait(at(1200))),
            ("other", Some(-5), 0, Next::Wait(at(1200))),
        ] {
            let next = next(&lease(holder, lasts), since, at(now), "me");
            assert_eq!(next, expected, "{holder} {lasts:?} after {now} s");
        }
        let empty = LeaseSpec { holder_identity: Some(String::new()), ..LeaseSpec::default() };
        assert_eq!(next(&empty, since, since, "me"), Next::Take);
    }
}
