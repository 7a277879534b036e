//! The machine that keeps a lifecycle hook alive: events in, calls and the next wake-up out. It has no clock and makes no calls; only the
//! jitter of its times is random.
//!
//! | state        | accepted | over                 | denied                  | no such hook           | searched, not found    |
//! | ------------ | -------- | -------------------- | ----------------------- | ---------------------- | ---------------------- |
//! | `Assumed`    | `Alive`  | `Sought`             | `Assumed`, `Denied` (1) | `Sought`               |                        |
//! | `Announced`  | `Alive`  | `Sought`             | `Refused`               | `Refused`              |                        |
//! | `Alive`      | `Alive`  | `Over`, `Unkept` (2) | `Denied`                | `Unkept`               |                        |
//! | `Denied`     | `Alive`  | `Over`, `Sought` (3) | `Denied`                | `Unkept`, `Sought` (3) |                        |
//! | `Sought`     |          |                      |                         |                        | `NotFound`, `Over` (4) |
//! | `Refused`    |          |                      |                         |                        | `NotFound`, `Over` (4) |
//! | `Completing` | the same | `Over`               | the same                | `Unkept`               |                        |
//!
//! 1. `Assumed` if a message announced the hook, which may be forged: its expiry is only a soft deadline then. `Denied` if Auto Scaling
//!    has shown that the instance waits: no heartbeat will ever prove it.
//! 2. `Unkept` for the action of a test message, which AWS doesn't know, about a Node that allows tests.
//! 3. `Sought` if neither AWS nor a search has proven the hook.
//! 4. `Over` if the group no longer makes the instance wait. A search that finds the instance at a hook of this group, or gets no answer, makes
//!    `Refused` `Denied`: a missing right must not cost a real drain its time.
//!
//! A heartbeat that fails is sent again, until the hook's life ends: then it is `Unkept`. A completion that starts makes `Assumed`, `Announced`,
//! `Alive` and `Denied` `Completing`, and `Sought` `Over`. In the end the hook is `Completed` or `Left`. No call follows in `Unkept`, `NotFound`,
//! `Over`, `Completed` and `Left`, and no heartbeat in `Sought` and `Refused`.

use super::{HookReply, HookSearch};
use crate::clients::gate::{Backoff, CALL_TIMEOUT, Category};
use crate::fact::HookLack;
use crate::pipeline::drain::Deadline;
use crate::pipeline::event::Hook;
use crate::pipeline::interruption::policy::Heartbeats;
use crate::pipeline::interruption::times::{HookTerms, HookTimes, due_beat};
use crate::runtime::random;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum jitter of a beat, as a share of the time to it: it is sent early, so that a storm's hooks don't beat together.
const JITTER: f64 = 0.1;

/// Maximum retry delay for heartbeats of a hook whose expiry is unknown, and delay between searches.
const RETRY: Duration = Duration::from_secs(5);

/// Waits between look-ups of a hook whose times are assumed.
const LOOK_UP_AGAIN: Backoff = Backoff::new(Duration::from_mins(1), Duration::from_mins(5));

/// How far a hook is trusted before AWS has accepted a heartbeat for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// It is trusted.
    Trusted,
    /// Its message is trusted, but may be forged within the limits: whatever AWS answers but that it accepts a heartbeat is checked before it
    /// ends the work, because AWS gives the same answers for an action that never was.
    Announced,
    /// Its message may be forged. The first heartbeat, at half-time, shows whether it is.
    Unproven,
    /// No message announced it, or an old one that may be forged: when it expires is unknown. Its expiry is a soft deadline until the
    /// first heartbeat, at once.
    Unknown,
}

/// The state of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Nothing proves so far that the instance waits at the hook.
    Assumed,
    /// A trusted message announced it, and AWS has not accepted a heartbeat.
    Announced,
    /// Heartbeats keep it alive.
    Alive,
    /// AWS denies heartbeats: the action expires.
    Denied {
        /// Whether AWS has accepted one before, or the hook's message is trusted.
        is_proven: bool,
    },
    /// AWS knows no such action: Auto Scaling's answer about the instance decides.
    Sought,
    /// AWS has refused the first heartbeat, as it does for a group without Ebbtide's permission, and for a token that is none. A
    /// forged message may have both: Auto Scaling's answer about the instance decides.
    Refused,
    /// No heartbeat keeps it alive: AWS knows no such hook, or its life has ended.
    Unkept,
    /// The instance does not wait at it.
    NotFound(HookLack),
    /// The action is over.
    Over,
    /// The action is being completed: AWS's answers may be the effect of our own calls.
    Completing,
    /// The action is completed.
    Completed,
    /// The hook is left to its own timeout, and its life ends then.
    Left {
        /// The end of its life.
        ends: Instant,
    },
}

impl State {
    /// Whether Auto Scaling's answer about the instance decides what follows.
    const fn is_searched(&self) -> bool {
        matches!(self, Self::Sought | Self::Refused)
    }
}

/// An event of a hook.
#[derive(Clone, Debug)]
pub enum HookEvent {
    /// AWS answered a heartbeat, or did not.
    Beat {
        /// When it was sent.
        sent: Instant,
        /// The answer. `NotFound` is certain; an invalid request may be a failure of AWS's own.
        answer: Result<HookReply, Category>,
    },
    /// Auto Scaling answered where the instance is, or did not.
    Searched {
        /// The answer.
        found: Result<HookSearch, Category>,
        /// Whether the instance may have come back from the action.
        may_be_back: bool,
    },
    /// The hook's times were looked up; `None` without an answer.
    LookedUp(Option<HookTimes>),
    /// AWS has reported to another caller that the action is over.
    Over,
    /// The API server's absences since the start of the work have grown to this sum.
    Absent(Duration),
    /// The work is admitted: from now on the hook's expiry may override a budget.
    Admitted,
    /// The deadline of work that has waited.
    Moved(Deadline),
    /// The deadline with room for the pods.
    Lengthened(Deadline),
    /// The action is being completed.
    Completing,
    /// The action is completed.
    Completed,
    /// The hook is left to its own timeout.
    Left,
}

/// What is to be done for a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookEffect {
    /// Send a heartbeat, in time for this expiry.
    Beat(Instant),
    /// Ask Auto Scaling where the instance is.
    Search,
    /// Look up the hook's times.
    LookUp,
    /// Report that AWS denies heartbeats, and the time that the work has.
    ReportDenied(Duration),
}

/// When a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Never,
    At(Instant),
    Running,
}

/// A hook that is kept alive for its interruption, which reads the times, the deadlines and the end of the action here.
#[derive(Clone, Debug)]
pub struct HookMachine {
    hook: Arc<Hook>,
    terms: HookTerms,
    state: State,
    times: HookTimes,
    /// The deadline of the work, from the hook's times and the settings.
    own_deadline: Deadline,
    /// The deadline with room for the pods: the latest time at which the completion is expected.
    deadline: Deadline,
    /// The sum of the API server's absences that the deadline counts.
    absent: Duration,
    is_admitted: bool,
    /// The last accepted heartbeat, or the start of the action; `None` while both are unknown.
    last: Option<Instant>,
    /// The next heartbeat, or in `Sought` the next search.
    call: Turn,
    /// The time of a call that is tried again.
    retry: Option<Instant>,
    /// Delays after the expiry.
    late: Option<Backoff>,
    look_up: Turn,
    pauses: Backoff,
    reports_denial: bool,
}

impl HookMachine {
    /// A hook with these times. `last` is the last heartbeat that this process knows.
    #[must_use]
    pub fn new(
        hook: Arc<Hook>,
        terms: HookTerms,
        times: HookTimes,
        trust: Trust,
        last: Option<Instant>,
        now: Instant,
    ) -> Self {
        let begins = terms.life_begins(times);
        // When an action without a message was last kept alive is unknown, even if it is trusted.
        let is_known = trust != Trust::Unknown && hook.token.is_some();
        let deadline = terms.deadline(times);
        let mut machine = Self {
            hook,
            terms,
            state: match trust {
                Trust::Trusted => State::Alive,
                Trust::Announced if last.is_some() => State::Alive,
                Trust::Announced => State::Announced,
                Trust::Unproven | Trust::Unknown => State::Assumed,
            },
            times,
            own_deadline: deadline,
            deadline,
            absent: Duration::ZERO,
            is_admitted: false,
            last: is_known.then(|| last.map_or(begins, |last| last.max(begins))),
            call: Turn::Never,
            retry: None,
            late: None,
            look_up: Turn::Never,
            pauses: LOOK_UP_AGAIN,
            reports_denial: false,
        };
        machine.plan(now);
        machine
    }

    /// Returns the hook's times.
    #[must_use]
    pub const fn times(&self) -> HookTimes {
        self.times
    }

    /// Returns what bounds the work under the hook.
    #[must_use]
    pub const fn terms(&self) -> HookTerms {
        self.terms
    }

    /// Returns the deadline of the work, by the hook's times and the pods known now.
    #[must_use]
    pub const fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// Returns the deadline of the work before a drain has made room for its pods.
    #[must_use]
    pub const fn own_deadline(&self) -> Deadline {
        self.own_deadline
    }

    /// Returns the sum of the API server's absences that the deadline counts.
    #[must_use]
    pub const fn absent(&self) -> Duration {
        self.absent
    }

    /// Whether AWS has reported that the action is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Whether AWS has accepted a heartbeat, a search has found the instance there, or the hook is trusted.
    #[must_use]
    pub const fn is_proven(&self) -> bool {
        matches!(self.state, State::Alive | State::Denied { is_proven: true })
    }

    /// Returns why the instance does not wait at the hook.
    #[must_use]
    pub const fn lack(&self) -> Option<&HookLack> {
        if let State::NotFound(lack) = &self.state { Some(lack) } else { None }
    }

    /// Whether nothing changes it any more. The deadline of a hook without heartbeats is still put off by absences.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.is_at_rest() && !matches!(self.state, State::Unkept)
    }

    /// Whether no call will be due any more, whatever happens.
    #[must_use]
    pub const fn is_at_rest(&self) -> bool {
        matches!(self.state, State::Unkept | State::NotFound(_) | State::Over | State::Completed | State::Left { .. })
    }

    /// Returns the end of the hook's life, until which it can be completed.
    #[must_use]
    pub fn ends(&self) -> Instant {
        let ends = self.terms.life_ends(self.times);
        if let State::Left { ends: left } = self.state { ends.min(left) } else { ends }
    }

    /// Returns the time of the next call. Until then, only an event changes anything.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Instant> {
        let at = |turn| if let Turn::At(at) = turn { Some(at) } else { None };
        [at(self.call), at(self.look_up)].into_iter().flatten().min()
    }

    /// Returns what is to be done now. Each call ends with its event.
    pub fn next(&mut self, now: Instant) -> Option<HookEffect> {
        let is_due = |turn| matches!(turn, Turn::At(at) if at <= now);
        if std::mem::take(&mut self.reports_denial) {
            return Some(HookEffect::ReportDenied(self.deadline.at().saturating_duration_since(now)));
        }
        if is_due(self.call) {
            (self.call, self.retry) = (Turn::Running, None);
            let by = self.last.map_or(now + CALL_TIMEOUT, |last| last + self.times.heartbeat);
            return Some(if self.state.is_searched() { HookEffect::Search } else { HookEffect::Beat(by) });
        }
        is_due(self.look_up).then(|| {
            self.look_up = Turn::Running;
            HookEffect::LookUp
        })
    }

    /// Takes an event.
    pub fn handle(&mut self, event: HookEvent, now: Instant) {
        match event {
            HookEvent::Beat { sent, answer } => {
                self.call = Turn::Never;
                self.answered(sent, answer, now);
            }
            HookEvent::Searched { found, may_be_back } => {
                self.call = Turn::Never;
                if self.state.is_searched() {
                    self.searched(&found, may_be_back, now);
                }
            }
            HookEvent::LookedUp(times) => {
                self.look_up = Turn::Never;
                if let Some(times) = times.filter(|_| self.looks_up()) {
                    self.take(times);
                    self.expire(now);
                }
            }
            HookEvent::Over => self.state = State::Over,
            HookEvent::Absent(total) => {
                let by = total.saturating_sub(self.absent);
                self.own_deadline = self.own_deadline.put_off(by);
                self.deadline = self.deadline.put_off(by);
                self.absent = total;
            }
            HookEvent::Admitted => self.is_admitted = true,
            HookEvent::Moved(deadline) => {
                self.own_deadline = self.terms.within_life(deadline, self.times);
                self.deadline = self.own_deadline;
            }
            HookEvent::Lengthened(deadline) => self.deadline = self.terms.within_life(deadline, self.times),
            HookEvent::Completing => match self.state {
                State::Assumed | State::Announced | State::Alive | State::Refused | State::Denied { .. } => {
                    self.state = State::Completing;
                }
                State::Sought => self.state = State::Over,
                _ => {}
            },
            HookEvent::Completed => self.state = State::Completed,
            HookEvent::Left => self.state = State::Left { ends: now + self.times.heartbeat },
        }
        self.plan(now);
    }

    fn answered(&mut self, sent: Instant, answer: Result<HookReply, Category>, now: Instant) {
        let is_proven = match self.state {
            State::Assumed | State::Denied { is_proven: false } => false,
            State::Announced | State::Alive | State::Denied { is_proven: true } | State::Completing => true,
            _ => return,
        };
        match answer {
            Ok(HookReply::Done) => {
                (self.last, self.late) = (Some(sent), None);
                if self.state != State::Completing {
                    self.state = State::Alive;
                }
                self.take(HookTimes { expires: None, ..self.times });
                if !is_proven {
                    self.look_up_now(now);
                }
            }
            Ok(HookReply::Over) | Err(Category::NotFound) if !is_proven => {
                (self.state, self.retry) = (State::Sought, Some(now));
            }
            Ok(HookReply::Over) if self.state == State::Announced => {
                (self.state, self.retry) = (State::Sought, Some(now));
                // Until the answer it overrides no budget.
                self.take(HookTimes { assumed: true, ..self.times });
            }
            Err(Category::Denied | Category::NotFound | Category::Invalid) if self.state == State::Announced => {
                (self.state, self.retry) = (State::Refused, Some(now));
            }
            Ok(HookReply::Over) if self.state == State::Alive && self.hook.is_test() => self.state = State::Unkept,
            Ok(HookReply::Over) => self.state = State::Over,
            Err(Category::NotFound | Category::Invalid) if is_proven => self.state = State::Unkept,
            Err(category) => {
                if category == Category::Denied {
                    self.denied(now);
                }
                self.try_again(now);
            }
        }
    }

    fn denied(&mut self, now: Instant) {
        match self.state {
            // An attacker could name a group for which Ebbtide has no permission.
            State::Assumed if self.hook.token.is_some() => self.take(HookTimes { assumed: true, ..self.times }),
            State::Assumed => {
                self.state = State::Denied { is_proven: false };
                self.look_up_now(now);
            }
            State::Alive => self.state = State::Denied { is_proven: true },
            _ => {}
        }
        self.expire(now);
    }

    /// Ends the work of a denied hook in time for its expiry. Without the hook's timeout the expiry is unknown, and nothing changes.
    fn expire(&mut self, now: Instant) {
        let HookTimes { assumed, expires, heartbeat, .. } = self.times;
        if matches!(self.state, State::Denied { .. }) && !assumed && expires.is_none() {
            // The time of an action whose start is unknown counts from when it was found.
            let from_start = || (self.terms.life_begins(self.times) + heartbeat).max(now);
            let expires = Some(self.last.map_or_else(from_start, |last| last + heartbeat));
            self.take(HookTimes { expires, ..self.times });
            self.reports_denial = true;
        }
    }

    /// Auto Scaling knows no action of this hook for the instance. If its group no longer makes it wait, the action is over. Otherwise the
    /// instance is drained without the hook, which may be forged.
    fn searched(&mut self, found: &Result<HookSearch, Category>, may_be_back: bool, now: Instant) {
        let is_announced = self.hook.token.is_some();
        let is_there = match found {
            Ok(HookSearch::Found(found)) => found.group == self.hook.group,
            Ok(HookSearch::NotYet) | Err(_) => true,
            Ok(_) => false,
        };
        if self.state == State::Refused && is_there {
            self.state = State::Denied { is_proven: true };
            self.expire(now);
            return self.try_again(now);
        }
        self.state = match found {
            // Its Node has restarted since the message.
            Ok(HookSearch::InService) if may_be_back => State::Over,
            Ok(HookSearch::Nowhere(HookLack::Over(_))) => State::Over,
            Ok(HookSearch::Returning) if is_announced => State::Over,
            // Its group had it when it was found.
            Ok(HookSearch::NoGroup) if !is_announced => State::Over,
            Ok(HookSearch::NoGroup) => State::NotFound(HookLack::NoGroup),
            Ok(_) => State::NotFound(HookLack::Elsewhere(self.hook.group.clone())),
            Err(Category::Denied) if is_announced => State::NotFound(HookLack::Unseen),
            Err(_) => {
                self.retry = Some(now + RETRY);
                return;
            }
        };
    }

    /// Plans the next try of a heartbeat.
    fn try_again(&mut self, now: Instant) {
        if now >= self.terms.life_ends(self.times) {
            self.state = State::Unkept;
            return;
        }
        let expires = self.last.map(|last| last + self.times.heartbeat);
        let max = if expires.is_some() { self.times.heartbeat / 2 } else { RETRY };
        let wait = match expires.filter(|expires| now < *expires) {
            Some(expires) => retry_in(self.times, expires, now),
            None => self.late.get_or_insert_with(|| Backoff::new(Duration::from_secs(1), max)).step(),
        };
        self.retry = Some(now + wait);
    }

    /// Sets the hook's times and their deadline, put off by the API server's absences, if they are new.
    fn take(&mut self, times: HookTimes) {
        if self.times != times {
            let deadline = self.terms.deadline(times).put_off(self.absent);
            (self.times, self.own_deadline, self.deadline) = (times, deadline, deadline);
        }
    }

    /// Whether assumed times are looked up, until AWS answers. They decide when beats are sent, and when the work must end: not before the
    /// hook is proven.
    const fn looks_up(&self) -> bool {
        self.times.assumed
            && matches!(self.state, State::Announced | State::Alive | State::Denied { .. } | State::Completing)
    }

    fn look_up_now(&mut self, now: Instant) {
        if self.look_up != Turn::Running && self.looks_up() {
            self.look_up = Turn::At(now);
        }
    }

    /// Plans the next calls.
    fn plan(&mut self, now: Instant) {
        if self.call != Turn::Running {
            let at = if self.state.is_searched() { self.retry } else { self.beat_at(now) };
            self.call = at.filter(|_| !self.is_at_rest()).map_or(Turn::Never, Turn::At);
        }
        self.look_up = match self.look_up {
            Turn::At(_) if !self.looks_up() => Turn::Never,
            Turn::Never if self.looks_up() => Turn::At(now + self.pauses.step()),
            same => same,
        };
    }

    /// Returns when the next heartbeat is sent.
    fn beat_at(&self, now: Instant) -> Option<Instant> {
        let Self { times, terms, .. } = *self;
        if terms.heartbeats == Heartbeats::Off {
            return None;
        }
        // If the action's start is unknown, it may expire at any time until a heartbeat is accepted.
        let Some(last) = self.last else { return Some(self.retry.unwrap_or(now)) };
        if self.retry.is_some() {
            return self.retry;
        }
        let expires = last + times.heartbeat;
        // The first beat proves that the action exists, before its expiry overrides a budget.
        let must_be_proven = matches!(self.state, State::Assumed | State::Announced) && self.is_admitted;
        let finish = if must_be_proven { expires.max(self.deadline.at()) } else { self.deadline.at() };
        let due = due_beat(terms.heartbeats, terms.life_begins(times), expires, times, finish)?;
        // A beat due after the expected completion is only for a late completion.
        let floor = if due >= finish { finish } else { now };
        Some(earlier(due, now).max(floor))
    }
}

/// Returns the wait before a retry: a few tries in the time left, because the whole account shares the rate limit of these calls.
fn retry_in(times: HookTimes, expires: Instant, now: Instant) -> Duration {
    let left = expires.saturating_duration_since(now + times.margin());
    let least = (times.margin() / 4).max(Duration::from_secs(1));
    random::jittered((left / 4).max(least), 0.75..1.0)
}

/// Returns `due`, or a time earlier by up to a tenth of the time to it.
fn earlier(due: Instant, now: Instant) -> Instant {
    let wait = due.saturating_duration_since(now);
    due.checked_sub(random::jittered(wait, 0.0..JITTER)).unwrap_or(due)
}

#[cfg(test)]
mod tests;
