//! A notice's part in its Node's drain, as a machine: what is seen of the drain and of the notice's hook goes in, effects and the next wake-up
//! come out. It has no clock and makes no calls.
//!
//! | state    | the hook's deadline changes | the lifecycle action is over                   | patience ends (2) |
//! | -------- | --------------------------- | ---------------------------------------------- | ----------------- |
//! | `Shares` | its deadline follows        | `Left` (1), or `Over`: its deadline is now     | `Left`            |
//! | `Over`   |                             |                                                |                   |
//!
//! 1. If AWS waits for another hook of the instance, or if the instance has restarted already.
//! 2. Its soft deadline has passed, and the drain continues for others.
//!
//! The hook holds the deadline of the work, and the drain the room that its pods need: this part only passes each on to the other, and has
//! the end recorded on the Node when it differs from what the Node shows.

use super::times::HookTimes;
use crate::clients::gate::LAST_CALL;
use crate::pipeline::drain::{Deadline, Plan};
use crate::pipeline::node::record::TERMINATION_GRACE;
use std::time::Duration;
use tokio::time::Instant;

/// Time from the end of a drain until its hook is completed, if no call fails. An instance that has restarted by then still waits at the hook.
const COMPLETION: Duration = Duration::from_secs(20);

/// Whether work until `ends`, with the completion of its hook, continues when others take a mark with this deadline for left behind.
pub(super) fn outlasts(ends: Instant, marked: Instant) -> bool {
    ends + COMPLETION > marked + TERMINATION_GRACE
}

/// A notice's part in a drain.
#[derive(Clone, Debug)]
pub(super) struct DrainPart {
    state: State,
    /// Whether its Node is the instance's first: with several, the hook lives until the latest end.
    leads: bool,
    /// The hook's times and deadline that it follows.
    follows: Option<(HookTimes, Deadline)>,
    /// The earliest end when the hook's times became known: what puts off the hook's deadline later does not move it.
    least: Instant,
    /// The deadline that the hook has been given.
    kept: Option<Deadline>,
    /// The end that the Node shows.
    marked: Instant,
    /// Whether a later end is being recorded.
    is_marking: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Shares,
    Over,
    Left,
}

/// What is seen of the drain and the hook.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartView {
    /// The notice's deadline in the drain, with the room for its pods.
    pub deadline: Deadline,
    /// The drain's plan.
    pub plan: Plan,
    /// The notice's hook, if it has one.
    pub hook: Option<HookView>,
}

/// What is seen of the notice's hook.
#[derive(Clone, Copy, Debug)]
pub(super) struct HookView {
    /// Its times.
    pub times: HookTimes,
    /// The deadline of the work before the drain has made room for its pods.
    pub own_deadline: Deadline,
    /// The deadline of the work.
    pub deadline: Deadline,
    /// The end of the lifecycle action, if AWS has reported it.
    pub over: Option<ActionEnd>,
}

/// What is seen at the end of a lifecycle action.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActionEnd {
    /// Whether another hook keeps the instance.
    pub has_other_hook: bool,
    /// Whether the instance has restarted since the notice's mark.
    pub has_restarted: bool,
    /// Whether a restart counts as the instance's return.
    pub returns: bool,
}

/// What is to be done for the part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartEffect {
    /// Give the drain this deadline.
    SetDeadline(Deadline),
    /// Give the hook this deadline, which has room for the pods.
    KeepHook(Deadline),
    /// Record this end on the Node now.
    MoveMark(Instant),
    /// Record on the Node that the drain continues until then. Ends with [`DrainPart::marked`].
    PutOffMark(Instant),
    /// Leave the drain.
    Leave,
}

impl DrainPart {
    /// The part of a notice whose record on the Node shows the end `marked`.
    pub const fn new(marked: Instant, leads: bool) -> Self {
        Self { state: State::Shares, leads, follows: None, least: marked, kept: None, marked, is_marking: false }
    }

    /// Returns what is to be done now, in this order. To be called again after each change, and after each effect but
    /// [`PartEffect::KeepHook`].
    pub fn handle(&mut self, view: &PartView, now: Instant) -> Vec<PartEffect> {
        let mut effects = Vec::new();
        let hook = view.hook.filter(|_| self.state == State::Shares);
        match hook {
            Some(HookView { over: Some(end), .. }) => {
                self.end_action(end, now, &mut effects);
                return effects;
            }
            Some(hook) if self.follows != Some((hook.times, hook.own_deadline)) => {
                self.follow(hook, now, &mut effects);
                return effects;
            }
            Some(hook) => self.keep(hook, view.deadline, &mut effects),
            None => {}
        }
        if self.leaves_at(view).is_some_and(|at| at <= now) {
            self.state = State::Left;
            effects.push(PartEffect::Leave);
        } else if let Some(ends) = self.puts_off_to(view).filter(|_| self.marked <= now) {
            self.is_marking = true;
            effects.push(PartEffect::PutOffMark(ends));
        }
        effects
    }

    /// Returns when there is something to do, if nothing changes until then.
    pub fn wakes_at(&self, view: &PartView) -> Option<Instant> {
        self.leaves_at(view).into_iter().chain(self.puts_off_to(view).map(|_| self.marked)).min()
    }

    /// Takes the end that the Node shows now.
    pub const fn marked(&mut self, at: Instant) {
        (self.marked, self.is_marking) = (at, false);
    }

    fn end_action(&mut self, end: ActionEnd, now: Instant, effects: &mut Vec<PartEffect>) {
        if end.has_other_hook || end.has_restarted {
            self.state = State::Left;
            self.move_mark(now, effects);
            effects.push(PartEffect::Leave);
            return;
        }
        self.state = State::Over;
        effects.push(PartEffect::SetDeadline(Deadline::hard(now + LAST_CALL)));
        if end.returns {
            // The hook may be left to its timeout, and the mark stays then.
            self.move_mark(now, effects);
        }
    }

    fn follow(&mut self, hook: HookView, now: Instant, effects: &mut Vec<PartEffect>) {
        let is_new = self.follows.is_none_or(|(times, _)| times != hook.times);
        if is_new {
            self.least = now + LAST_CALL;
        }
        let own = hook.own_deadline.at_least(self.least);
        (self.follows, self.kept) = (Some((hook.times, hook.own_deadline)), None);
        effects.push(PartEffect::SetDeadline(own));
        // The hook's times may have become known since the cordon, or have changed. What only puts the end off is recorded when it is needed.
        let (earlier, later) = (own.at().min(self.marked), own.at().max(self.marked));
        if is_new && later.duration_since(earlier) > TERMINATION_GRACE {
            self.move_mark(own.at(), effects);
        }
    }

    /// The drain makes room for its pods, and the hook lives until it ends. With several Nodes, the latest end counts.
    fn keep(&mut self, hook: HookView, deadline: Deadline, effects: &mut Vec<PartEffect>) {
        // The first Node's part moves it only with its own deadline, or two parts would move it in turn.
        let is_new = self.kept.replace(deadline) != Some(deadline);
        if if self.leads { is_new && hook.deadline != deadline } else { deadline.at() > hook.deadline.at() } {
            effects.push(PartEffect::KeepHook(deadline));
        }
    }

    fn move_mark(&mut self, at: Instant, effects: &mut Vec<PartEffect>) {
        self.marked(at);
        effects.push(PartEffect::MoveMark(at));
    }

    /// Returns when the notice leaves: at its soft deadline, if the drain continues for others.
    fn leaves_at(&self, PartView { deadline, plan, .. }: &PartView) -> Option<Instant> {
        let is_patience = self.state == State::Shares && !deadline.is_hard();
        Some(deadline.at()).filter(|at| is_patience && plan.end().at() > *at)
    }

    /// Returns the end of the drain, if the Node shows an earlier one. The drain continues while another hook keeps the instance.
    fn puts_off_to(&self, PartView { deadline, plan, hook }: &PartView) -> Option<Instant> {
        let hooks_end = plan.hooks_end().filter(|_| hook.is_some());
        let ends = hooks_end.map_or(deadline.at(), |hooks_end| hooks_end.max(deadline.at()));
        Some(ends).filter(|ends| !self.is_marking && self.state != State::Left && outlasts(*ends, self.marked))
    }
}

#[cfg(test)]
mod tests;
