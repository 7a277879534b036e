//! The election of one replica for an office: a Kubernetes Lease that one replica holds at a time.
//!
//! The rules are those of Kubernetes' own leader election. The first replica that writes the Lease holds it. Every write names the version
//! that it replaces, so two writes can't both succeed. Another replica's turn is over when its Lease has not changed for its duration, by
//! our own clock and from the time at which we read the last change: the holder's clock does not matter. We stop well before other replicas
//! may consider our turn over, counted from before our request.
//!
//! No crate does this: kubert 0.25, kube-lease-manager 0.13 and kube-leader-election 0.44 compare the holder's `renewTime` with the
//! machine's clock and call the API server without our gate; only the second is for kube 5.

use crate::clients::gate::{CALL_TIMEOUT, Call, Category, Class, Gate, KubeError};
use crate::runtime::clock::Clock;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use std::time::Duration;
use tokio::time::Instant;

/// A task that one replica at a time is elected for.
#[derive(Clone, Copy, Debug)]
pub struct Office {
    /// Name of the Lease.
    pub name: &'static str,
    /// Duration of a turn, after which other replicas may take it.
    turn: Duration,
    /// Time between the end of our turn and the time at which other replicas may take it, so that our last call has ended.
    margin: Duration,
    /// Timeout of one call about the Lease.
    timeout: Duration,
}

impl Office {
    /// The collection of leftovers. A turn lasts two scans of Leases, so that one failed scan does not end the turn.
    pub const COLLECTOR: Self = Self {
        name: "ebbtide-collector",
        turn: Duration::from_mins(20),
        margin: Duration::from_mins(1),
        timeout: CALL_TIMEOUT,
    };

    /// The handling of notices from Nodes. Other replicas check every [`Office::LOOK`], and when the turn may be over, so that the turn of
    /// a replica that died silently is taken within 9 s, plus the time of the calls.
    pub const NODES: Self = Self {
        name: "ebbtide-nodes",
        turn: Duration::from_secs(6),
        margin: Duration::from_secs(1),
        timeout: Duration::from_secs(2),
    };

    /// Returns [`Office::NODES`], by the Lease of this name if there is one.
    #[must_use]
    pub const fn nodes(lease: Option<&'static str>) -> Self {
        match lease {
            Some(name) => Self { name, ..Self::NODES },
            None => Self::NODES,
        }
    }

    /// Interval between two checks of the Lease of [`Office::NODES`], and between its renewals.
    pub const LOOK: Duration = Duration::from_secs(2);
}

/// Maximum number of tries to give a turn back: each after another write of the Lease.
const GIVE_BACK_TRIES: usize = 3;

/// The election, from one replica's view.
pub struct Election {
    office: Office,
    api: Api<Lease>,
    gate: Gate,
    clock: Clock,
    /// The replica's name.
    identity: String,
    /// The other replica's Lease, as it was read last.
    observed: Option<Observation>,
    /// The Lease as we wrote it, if we hold it.
    held: Option<Lease>,
    /// Whether it may be ours: since we began to write it, no answer has denied that.
    may_be_ours: bool,
}

/// A Lease, and the time at which its last change was read.
struct Observation {
    spec: LeaseSpec,
    since: Instant,
}

/// The holder of the turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// This replica.
    Ours {
        /// The end of the turn.
        until: Instant,
        /// The number of times that the turn has passed to a replica: it is another if others may have had it meanwhile.
        term: i32,
    },
    /// Another replica.
    Theirs {
        /// The earliest end of the turn.
        until: Instant,
    },
}

/// The next step for a Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Renew our Lease.
    Renew,
    /// Take a Lease without a holder or of an expired holder.
    Take,
    /// Wait until another replica's turn may be over.
    Wait(Instant),
}

impl Election {
    /// Returns the election for the office, from the view of the replica `identity`, with the Lease in `namespace`.
    #[must_use]
    pub fn new(office: Office, client: Client, namespace: &str, identity: &str, gate: Gate, clock: Clock) -> Self {
        let api = Api::namespaced(client, namespace);
        Self { office, api, gate, clock, identity: identity.to_owned(), observed: None, held: None, may_be_ours: false }
    }

    /// Whether it was ours when last looked at.
    #[must_use]
    pub const fn is_ours(&self) -> bool {
        self.held.is_some()
    }

    /// Takes or keeps the turn, if it is free or ours.
    ///
    /// # Errors
    /// The API server's error. The holder of the turn is unknown then: it is not ours.
    pub async fn take_turn(&mut self) -> Result<Turn, KubeError> {
        match self.try_turn().await {
            // Another replica wrote first; or we did, by a renewal that was given up and has reached the API server after all. Or a user
            // deleted the Lease.
            Err(error) if matches!(error.category, Category::Conflict | Category::NotFound) => self.try_turn().await,
            turn => turn,
        }
    }

    async fn try_turn(&mut self) -> Result<Turn, KubeError> {
        let asked_at = Instant::now();
        let found = match self.held.take() {
            // No other replica has written it if the version that we wrote can be replaced.
            Some(held) => Some((held, Step::Renew)),
            None => match self.read().await? {
                None => None,
                Some(found) => match self.observe(found.spec.clone().unwrap_or_default(), Instant::now()) {
                    Step::Wait(until) => {
                        self.may_be_ours = false;
                        return Ok(Turn::Theirs { until });
                    }
                    step => Some((found, step)),
                },
            },
        };
        self.may_be_ours = true;
        let written = self.write(found).await?;
        // Earlier writes of other replicas prove nothing about later ones.
        self.observed = None;
        let term = written.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or_default();
        self.held = Some(written);
        Ok(Turn::Ours { until: asked_at + self.office.turn - self.office.margin, term })
    }

    /// Gives our turn back, so that no replica waits for its end.
    ///
    /// # Errors
    /// The API server's error.
    pub async fn give_back(mut self) -> Result<(), KubeError> {
        let mut result = Ok(());
        for _ in 0..GIVE_BACK_TRIES {
            let Some(mut lease) = self.ours().await? else { return Ok(()) };
            let spec = lease.spec.get_or_insert_default();
            spec.holder_identity = None;
            spec.renew_time = Some(MicroTime(self.clock.now()));
            result = self.replace(lease).await.map(drop);
            // A renewal that was given up has reached the API server after all.
            if !matches!(&result, Err(error) if error.category == Category::Conflict) {
                break;
            }
        }
        result
    }

    /// Returns our Lease, if it is ours. When a renewal was given up halfway, only the API server knows.
    async fn ours(&mut self) -> Result<Option<Lease>, KubeError> {
        if let Some(held) = self.held.take() {
            return Ok(Some(held));
        }
        if !self.may_be_ours {
            return Ok(None);
        }
        let found = self.read().await?;
        let is_ours = |spec: &LeaseSpec| spec.holder_identity.as_deref() == Some(&*self.identity);
        Ok(found.filter(|found| found.spec.as_ref().is_some_and(is_ours)))
    }

    async fn read(&self) -> Result<Option<Lease>, KubeError> {
        let call = Call { verb: "get", resource: "leases", subject: self.office.name };
        self.call(call, || self.api.get_opt(self.office.name)).await
    }

    fn observe(&mut self, spec: LeaseSpec, now: Instant) -> Step {
        let since = match &self.observed {
            Some(observed) if observed.spec == spec => observed.since,
            _ => now,
        };
        let observation = Observation { spec, since };
        let step = step(&observation, now, &self.identity, self.office.turn);
        self.observed = Some(observation);
        step
    }

    async fn write(&self, found: Option<(Lease, Step)>) -> Result<Lease, KubeError> {
        let now = MicroTime(self.clock.now());
        let creates = found.is_none();
        let (mut lease, step) = found.unwrap_or_else(|| {
            let metadata = ObjectMeta { name: Some(self.office.name.to_owned()), ..ObjectMeta::default() };
            (Lease { metadata, spec: None }, Step::Take)
        });
        let spec = lease.spec.get_or_insert_default();
        if step == Step::Take {
            spec.lease_transitions = Some(spec.lease_transitions.map_or(0, |before| before.saturating_add(1)));
            spec.acquire_time = Some(now.clone());
            spec.holder_identity = Some(self.identity.clone());
        }
        spec.renew_time = Some(now);
        spec.lease_duration_seconds = i32::try_from(self.office.turn.as_secs()).ok();
        if creates {
            let (call, params) =
                (Call { verb: "create", resource: "leases", subject: self.office.name }, PostParams::default());
            self.call(call, || self.api.create(&params, &lease)).await
        } else {
            self.replace(lease).await
        }
    }

    /// Replaces the version of the Lease that was read.
    async fn replace(&self, lease: Lease) -> Result<Lease, KubeError> {
        let (call, params) =
            (Call { verb: "update", resource: "leases", subject: self.office.name }, PostParams::default());
        self.call(call, || self.api.replace(self.office.name, &params, &lease)).await
    }

    async fn call<T, F>(&self, call: Call<'_>, request: impl FnOnce() -> F) -> Result<T, KubeError>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        self.gate.kube(call, Class::Background, Instant::now() + self.office.timeout, request).await
    }
}

/// Returns the next step of the replica `me`. A turn lasts `turn` if its Lease names no other duration.
fn step(Observation { spec, since }: &Observation, now: Instant, me: &str, turn: Duration) -> Step {
    match spec.holder_identity.as_deref().unwrap_or_default() {
        "" => Step::Take,
        holder if holder == me => Step::Renew,
        _ => {
            let duration = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
            let until = *since + duration.filter(|seconds| *seconds > 0).map_or(turn, Duration::from_secs);
            if now >= until { Step::Take } else { Step::Wait(until) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_over_when_its_lease_did_not_change_for_its_duration() {
        let since = Instant::now();
        let at = |seconds| since + Duration::from_secs(seconds);
        let lease = |holder: &str, seconds: Option<i32>| LeaseSpec {
            holder_identity: (!holder.is_empty()).then(|| holder.to_owned()),
            lease_duration_seconds: seconds,
            ..LeaseSpec::default()
        };
        for (holder, lasts, now, expected) in [
            ("", Some(60), 0, Step::Take),
            ("me", Some(60), 0, Step::Renew),
            ("me", Some(60), 3600, Step::Renew),
            ("other", Some(60), 0, Step::Wait(at(60))),
            ("other", Some(60), 59, Step::Wait(at(60))),
            ("other", Some(60), 60, Step::Take),
            ("other", None, 1199, Step::Wait(at(1200))),
            ("other", None, 1200, Step::Take),
            ("other", Some(0), 0, Step::Wait(at(1200))),
            ("other", Some(-5), 0, Step::Wait(at(1200))),
        ] {
            let observation = Observation { spec: lease(holder, lasts), since };
            assert_eq!(
                step(&observation, at(now), "me", Office::COLLECTOR.turn),
                expected,
                "{holder} {lasts:?} after {now} s"
            );
        }
        let empty = LeaseSpec { holder_identity: Some(String::new()), ..LeaseSpec::default() };
        assert_eq!(step(&Observation { spec: empty, since }, since, "me", Office::COLLECTOR.turn), Step::Take);
    }
}
