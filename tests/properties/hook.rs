//! Properties of the machine of a hook, for any order of events and any times.

use ebbtide::fact::{Category, HookLack, NoticeKind};
use ebbtide::pipeline::{
    Heartbeats, Hook, HookEffect, HookEvent, HookMachine, HookReply, HookSearch, HookTerms, HookTimes, Trust,
};
use proptest::prelude::*;
use proptest::sample::select;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// One step in the life of a hook.
#[derive(Clone, Debug)]
enum Act {
    Wait(Duration),
    /// AWS answers the heartbeat in flight like this.
    Beat(Result<HookReply, Category>),
    Search(Result<HookSearch, Category>, bool),
    LookUp(Option<u64>),
    Absent(u64),
    Admit,
    /// A drain makes room for its pods, beyond all bounds.
    Lengthen(u64),
    Move(u64),
    Over,
    Complete,
    Completed,
    Leave,
}

fn any_act() -> impl Strategy<Value = Act> {
    let refusals = vec![
        Ok(HookReply::Over),
        Err(Category::Denied),
        Err(Category::NotFound),
        Err(Category::Invalid),
        Err(Category::Throttled),
    ];
    let found = [
        Ok(HookSearch::InService),
        Ok(HookSearch::NoGroup),
        Ok(HookSearch::Nowhere(HookLack::Over(String::new()))),
        Err(Category::Denied),
        Err(Category::Throttled),
    ];
    prop_oneof![
        8 => (0..400_u64).prop_map(|seconds| Act::Wait(Duration::from_secs(seconds))),
        1 => (0..200_000_u64).prop_map(|seconds| Act::Wait(Duration::from_secs(seconds))),
        8 => Just(Act::Beat(Ok(HookReply::Done))),
        2 => select(refusals).prop_map(Act::Beat),
        2 => (select(found.to_vec()), any::<bool>()).prop_map(|(found, may_be_back)| Act::Search(found, may_be_back)),
        2 => proptest::option::of(30..7200_u64).prop_map(Act::LookUp),
        1 => (0..5000_u64).prop_map(Act::Absent),
        1 => Just(Act::Admit),
        1 => (0..500_000_u64).prop_map(Act::Lengthen),
        1 => (0..500_000_u64).prop_map(Act::Move),
        1 => select(vec![Act::Over, Act::Complete, Act::Completed, Act::Leave]),
    ]
}

/// A hook, and what an observer knows of it.
struct Observed {
    machine: HookMachine,
    now: Instant,
    /// The calls in flight: of heartbeats and searches, and of look-ups.
    calls: Vec<HookEffect>,
    /// The last heartbeat that AWS accepted, if it has not refused any since.
    kept: Option<Instant>,
    is_completed: bool,
}

impl Observed {
    fn takes(&mut self, call: impl Fn(&HookEffect) -> bool) -> bool {
        let found = self.calls.iter().position(call);
        found.map(|at| self.calls.remove(at)).is_some()
    }

    fn handle(&mut self, event: HookEvent) {
        self.machine.handle(event, self.now);
    }

    fn act(&mut self, act: Act) {
        let is_beat = |call: &HookEffect| matches!(call, HookEffect::Beat(_));
        match act {
            Act::Wait(time) => self.now += time,
            Act::Beat(answer) if self.takes(is_beat) => {
                self.kept = (answer == Ok(HookReply::Done)).then_some(self.now);
                self.handle(HookEvent::Beat { sent: self.now, answer });
            }
            Act::Search(found, may_be_back) if self.takes(|call| *call == HookEffect::Search) => {
                self.handle(HookEvent::Searched { found, may_be_back });
            }
            Act::LookUp(seconds) if self.takes(|call| *call == HookEffect::LookUp) => {
                let times = seconds.map(|seconds| HookTimes::of(Duration::from_secs(seconds)));
                self.handle(HookEvent::LookedUp(times));
            }
            Act::Beat(_) | Act::Search(..) | Act::LookUp(_) => {}
            Act::Absent(seconds) => {
                let total = self.machine.absent() + Duration::from_secs(seconds);
                self.handle(HookEvent::Absent(total));
            }
            Act::Admit => self.handle(HookEvent::Admitted),
            Act::Lengthen(seconds) => {
                let deadline = self.machine.deadline().at_least(self.now + Duration::from_secs(seconds));
                self.handle(HookEvent::Lengthened(deadline));
            }
            Act::Move(seconds) => {
                let deadline = self.machine.own_deadline().put_off(Duration::from_secs(seconds));
                self.handle(HookEvent::Moved(deadline));
            }
            Act::Over => self.handle(HookEvent::Over),
            Act::Complete => self.handle(HookEvent::Completing),
            Act::Completed | Act::Leave => {
                self.is_completed = true;
                self.handle(if matches!(act, Act::Completed) { HookEvent::Completed } else { HookEvent::Left });
            }
        }
    }

    /// Starts what is due, and checks it.
    fn check(&mut self) {
        let is_over = self.is_completed || self.machine.is_over() || self.machine.lack().is_some();
        while let Some(effect) = self.machine.next(self.now) {
            match effect {
                HookEffect::ReportDenied(_) => {}
                call => {
                    assert!(!is_over, "{call:?} after the end");
                    let kind = |call: &HookEffect| *call == HookEffect::LookUp;
                    assert!(!self.calls.iter().any(|other| kind(other) == kind(&call)), "two calls at once");
                    self.calls.push(call);
                }
            }
        }
        assert!(!is_over || self.machine.is_at_rest() && self.machine.wakes_at().is_none());
        assert!(self.machine.wakes_at().is_none_or(|at| at > self.now), "what is due has been started");
        let (times, terms) = (self.machine.times(), self.machine.terms());
        let life_ends = terms.life_ends(times);
        if let Some(last) = self.kept.filter(|_| !self.machine.is_at_rest() && terms.heartbeats != Heartbeats::Off) {
            let latest = last + times.heartbeat - times.margin();
            let is_sent = || self.calls.iter().any(|call| matches!(call, HookEffect::Beat(_)));
            let is_due = || self.machine.wakes_at().is_some_and(|at| at <= latest);
            assert!(latest >= life_ends || is_due() || is_sent(), "no beat in time: {:?}", self.machine);
        }
        for deadline in [self.machine.deadline(), self.machine.own_deadline()] {
            if let Some(latest) = deadline.latest_end() {
                let ends = times.expires.map_or(life_ends, |expires| expires.min(life_ends));
                assert!(deadline.at() <= latest && latest <= ends - times.margin(), "{:?}", self.machine);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn a_hook_is_kept_alive_until_its_end_and_never_after_it(
        trust in select(vec![Trust::Trusted, Trust::Unproven, Trust::Unknown]),
        token in proptest::option::of(select(vec!["token", "ebbtide-test-1"])),
        heartbeats in select(vec![Heartbeats::Auto, Heartbeats::Off, Heartbeats::Every(Duration::from_secs(20))]),
        drain_timeout in proptest::option::of((1..100_000_u64).prop_map(Duration::from_secs)),
        (timeout, known_for, assumed) in (30..7200_u64, 0..10_000_u64, any::<bool>()),
        acts in proptest::collection::vec(any_act(), 1..80),
    ) {
        let found = Instant::now() + Duration::from_secs(1_000_000);
        let hook = Hook {
            group: "group".to_owned(),
            name: "hook".to_owned(),
            token: token.map(str::to_owned),
            pool: None,
            replaces_root_volume: false,
            direct: false,
        };
        let (kind, since) = (NoticeKind::AsgTerminate, found - Duration::from_secs(known_for));
        let terms = HookTerms { kind, drain_timeout, heartbeats, found, since };
        let times = HookTimes { assumed, ..HookTimes::of(Duration::from_secs(timeout)) };
        let machine = HookMachine::new(Arc::new(hook), terms, times, trust, None, found);
        let mut hook = Observed { machine, now: found, calls: Vec::new(), kept: None, is_completed: false };
        hook.check();
        for act in acts {
            hook.act(act);
            hook.check();
        }
    }
}
