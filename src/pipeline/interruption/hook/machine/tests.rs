use super::*;
use crate::fact::NoticeKind;
use Category::{Denied, Invalid, NotFound, Throttled};

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const TOKEN: Option<&str> = Some("00000000-0000-4000-8000-000000000000");
const TEST: Option<&str> = Some("ebbtide-test-1");

/// AWS accepted a heartbeat of this time.
fn accepted(sent: Instant) -> HookEvent {
    HookEvent::Beat { sent, answer: Ok(HookReply::Done) }
}

/// AWS answered that the action is over.
fn over() -> HookEvent {
    HookEvent::Beat { sent: Instant::now(), answer: Ok(HookReply::Over) }
}

fn failed(category: Category) -> HookEvent {
    HookEvent::Beat { sent: Instant::now(), answer: Err(category) }
}

/// A hook that a search has found in this group.
fn hook_of(group: &str) -> Hook {
    let (group, name) = (group.to_owned(), "hook".to_owned());
    Hook { group, name, token: None, pool: None, replaces_root_volume: false, direct: true }
}

/// A hook of a minute for a drain of ten minutes.
fn machine(trust: Trust, token: Option<&str>, assumed: bool, now: Instant) -> HookMachine {
    let hook = Hook {
        group: "group".to_owned(),
        name: "hook".to_owned(),
        token: token.map(str::to_owned),
        pool: None,
        replaces_root_volume: false,
        direct: false,
    };
    let (kind, heartbeats) = (NoticeKind::AsgTerminate, Heartbeats::Auto);
    let terms = HookTerms { kind, drain_timeout: Some(s(600)), heartbeats, found: now, since: now };
    let times = HookTimes { assumed, ..HookTimes::of(s(60)) };
    HookMachine::new(Arc::new(hook), terms, times, trust, None, now)
}

fn after(trust: Trust, token: Option<&str>, events: impl IntoIterator<Item = HookEvent>, now: Instant) -> HookMachine {
    let mut machine = machine(trust, token, trust == Trust::Unknown, now);
    events.into_iter().for_each(|event| machine.handle(event, now));
    machine
}

fn searched(found: Result<HookSearch, Category>) -> HookEvent {
    HookEvent::Searched { found, may_be_back: false }
}

fn elsewhere() -> State {
    State::NotFound(HookLack::Elsewhere("group".to_owned()))
}

/// Returns the effects that are due.
fn due(machine: &mut HookMachine, now: Instant) -> Vec<HookEffect> {
    std::iter::from_fn(|| machine.next(now)).collect()
}

#[test]
fn each_state_has_its_answers() {
    let now = Instant::now();
    let (over, found, beat) = (over(), accepted(now), failed);
    let assumed = || after(Trust::Unproven, TOKEN, [], now);
    let sought_by_instance = || after(Trust::Unknown, None, [], now);
    let announced = || after(Trust::Announced, TOKEN, [], now);
    let refused = || after(Trust::Announced, TOKEN, [beat(Denied)], now);
    let alive = || after(Trust::Trusted, TOKEN, [], now);
    let denied = || after(Trust::Trusted, TOKEN, [beat(Denied)], now);
    let denied_at_first = || after(Trust::Unknown, None, [beat(Denied)], now);
    let sought = || after(Trust::Unproven, TOKEN, [over.clone()], now);
    let completing = || after(Trust::Trusted, TOKEN, [HookEvent::Completing], now);
    let unproven = State::Denied { is_proven: false };
    let proven = State::Denied { is_proven: true };
    let rows = vec![
        (assumed(), found.clone(), State::Alive),
        (assumed(), over.clone(), State::Sought),
        (assumed(), beat(Denied), State::Assumed),
        (assumed(), beat(NotFound), State::Sought),
        (assumed(), beat(Invalid), State::Assumed),
        (assumed(), beat(Throttled), State::Assumed),
        (assumed(), HookEvent::Completing, State::Completing),
        (sought_by_instance(), found.clone(), State::Alive),
        (sought_by_instance(), over.clone(), State::Sought),
        (sought_by_instance(), beat(Denied), unproven.clone()),
        (announced(), found.clone(), State::Alive),
        (announced(), over.clone(), State::Sought),
        (announced(), beat(Denied), State::Refused),
        (announced(), beat(Throttled), State::Announced),
        (announced(), beat(NotFound), State::Refused),
        (announced(), beat(Invalid), State::Refused),
        (after(Trust::Announced, TEST, [], now), over.clone(), State::Sought),
        (refused(), searched(Ok(HookSearch::Found(hook_of("group")))), proven.clone()),
        (refused(), searched(Ok(HookSearch::Found(hook_of("other")))), elsewhere()),
        (refused(), searched(Ok(HookSearch::NotYet)), proven.clone()),
        (refused(), searched(Ok(HookSearch::InService)), elsewhere()),
        (refused(), searched(Ok(HookSearch::Returning)), State::Over),
        (refused(), searched(Err(Denied)), proven.clone()),
        (refused(), searched(Err(Throttled)), proven.clone()),
        (refused(), HookEvent::Completing, State::Completing),
        (alive(), found.clone(), State::Alive),
        (alive(), over.clone(), State::Over),
        (alive(), beat(Denied), proven.clone()),
        (alive(), beat(NotFound), State::Unkept),
        (alive(), beat(Invalid), State::Unkept),
        (alive(), beat(Throttled), State::Alive),
        (alive(), HookEvent::Completing, State::Completing),
        (after(Trust::Trusted, TEST, [], now), over.clone(), State::Unkept),
        (after(Trust::Unproven, TEST, [], now), over.clone(), State::Sought),
        (denied(), found.clone(), State::Alive),
        (denied(), over.clone(), State::Over),
        (denied(), beat(Denied), proven),
        (denied(), beat(NotFound), State::Unkept),
        (denied_at_first(), found.clone(), State::Alive),
        (denied_at_first(), over.clone(), State::Sought),
        (denied_at_first(), beat(Denied), unproven),
        (sought(), searched(Ok(HookSearch::InService)), elsewhere()),
        (sought(), searched(Ok(HookSearch::NotYet)), elsewhere()),
        (sought(), searched(Ok(HookSearch::Returning)), State::Over),
        (sought(), searched(Ok(HookSearch::NoGroup)), State::NotFound(HookLack::NoGroup)),
        (sought(), searched(Ok(HookSearch::Nowhere(HookLack::Over("x".to_owned())))), State::Over),
        (sought(), searched(Err(Denied)), State::NotFound(HookLack::Unseen)),
        (sought(), searched(Err(Throttled)), State::Sought),
        (sought(), HookEvent::Searched { found: Ok(HookSearch::InService), may_be_back: true }, State::Over),
        (sought(), HookEvent::Completing, State::Over),
        (completing(), found.clone(), State::Completing),
        (completing(), over.clone(), State::Over),
        (completing(), beat(Denied), State::Completing),
        (completing(), beat(NotFound), State::Unkept),
        (completing(), HookEvent::Completed, State::Completed),
        (completing(), HookEvent::Left, State::Left { ends: now + s(60) }),
    ];
    for (row, (mut machine, event, expected)) in rows.into_iter().enumerate() {
        machine.handle(event, now);
        assert_eq!(machine.state, expected, "row {row}");
    }
    let by_instance = [over.clone(), searched(Ok(HookSearch::NoGroup))];
    assert!(after(Trust::Unknown, None, by_instance, now).is_over(), "its group had it when it was found");
    let by_instance = [over.clone(), searched(Err(Denied))];
    assert_eq!(after(Trust::Unknown, None, by_instance, now).state, State::Sought);
    let at_rest = [
        after(Trust::Trusted, TOKEN, [beat(NotFound)], now),
        after(Trust::Trusted, TOKEN, [over.clone()], now),
        after(Trust::Unproven, TOKEN, [over.clone(), searched(Ok(HookSearch::NoGroup))], now),
        after(Trust::Trusted, TOKEN, [HookEvent::Completed], now),
        after(Trust::Trusted, TOKEN, [HookEvent::Left], now),
    ];
    for mut machine in at_rest {
        let state = machine.state.clone();
        for event in [found.clone(), over.clone(), beat(Denied), searched(Ok(HookSearch::InService))] {
            machine.handle(event, now);
            machine.handle(HookEvent::Completing, now);
            assert_eq!((&machine.state, machine.wakes_at(), machine.is_at_rest()), (&state, None, true));
        }
        assert_eq!(due(&mut machine, now + s(10_000)), []);
    }
}

#[test]
fn a_hook_with_an_unknown_expiry_is_kept_alive_at_once() {
    let now = Instant::now();
    let mut hook = machine(Trust::Unknown, None, true, now);
    assert_eq!(due(&mut hook, now), [HookEffect::Beat(now + CALL_TIMEOUT)]);
    assert_eq!(due(&mut hook, now + s(100)), [], "one call at a time");
    for failures in 0..10 {
        hook.handle(failed(Throttled), now);
        let wait = hook.wakes_at().unwrap() - now;
        assert!((Duration::from_millis(500)..=RETRY).contains(&wait), "{failures}: {wait:?}");
        assert_eq!(due(&mut hook, now + RETRY), [HookEffect::Beat(now + RETRY + CALL_TIMEOUT)]);
    }
    hook.handle(accepted(now), now);
    let due_at = hook.wakes_at().unwrap();
    assert_eq!((due_at, due(&mut hook, now)), (now, vec![HookEffect::LookUp]), "its times decide from now on");
    hook.handle(HookEvent::LookedUp(Some(HookTimes::of(s(60)))), now);
    let due_at = hook.wakes_at().unwrap() - now;
    assert!((s(27)..=s(30)).contains(&due_at) && hook.deadline().is_hard(), "{due_at:?}");
}

#[test]
fn assumed_times_are_looked_up_again_once_the_hook_is_proven() {
    let now = Instant::now();
    let looks_up_in = |hook: &HookMachine| match hook.look_up {
        Turn::At(at) => Some((at - now).as_secs_f64()),
        _ => None,
    };
    for (trust, token) in [(Trust::Unproven, TOKEN), (Trust::Unknown, None)] {
        assert_eq!(looks_up_in(&machine(trust, token, true, now)), None, "{trust:?}");
    }
    let mut hook = machine(Trust::Trusted, TOKEN, true, now);
    for minutes in [1.0, 2.0, 4.0, 5.0, 5.0] {
        let wait = looks_up_in(&hook).unwrap() / 60.0;
        assert!((minutes / 2.0..=minutes).contains(&wait), "{wait}");
        hook.look_up = Turn::Running;
        hook.handle(HookEvent::LookedUp(None), now);
    }
    let mut hook = machine(Trust::Unproven, TOKEN, true, now);
    hook.handle(accepted(now), now);
    assert_eq!(looks_up_in(&hook), Some(0.0));
    hook.handle(over(), now);
    assert_eq!((looks_up_in(&hook), hook.is_over()), (None, true));
}

#[test]
fn denied_heartbeats_end_the_work_in_time_for_the_expiry() {
    let now = Instant::now();
    let mut hook = machine(Trust::Trusted, TOKEN, false, now);
    let before = hook.deadline();
    assert_eq!(before.at() - now, s(594));
    for reports in [true, false] {
        hook.call = Turn::Never;
        hook.handle(failed(Denied), now + s(30));
        assert_eq!(hook.deadline().at() - now, s(54));
        let reported = due(&mut hook, now + s(30));
        assert_eq!(reported.contains(&HookEffect::ReportDenied(s(24))), reports, "once");
    }
    hook.handle(accepted(now + s(31)), now + s(31));
    assert_eq!(hook.deadline(), before);
}

#[test]
fn a_hook_that_may_be_forged_presses_no_drain() {
    let now = Instant::now();
    let mut hook = machine(Trust::Unproven, TOKEN, false, now);
    let wait = |hook: &HookMachine| (hook.wakes_at().unwrap() - now).as_secs_f64();
    // The drain ends before the expiry would.
    let short = Deadline::hard(now + s(50));
    hook.handle(HookEvent::Moved(short), now);
    assert!((50.0..=54.0).contains(&wait(&hook)), "{}", wait(&hook));
    hook.handle(HookEvent::Admitted, now);
    assert!((27.0..=30.0).contains(&wait(&hook)), "the first heartbeat comes first: {}", wait(&hook));
    hook.handle(failed(Denied), now + s(30));
    assert!(!hook.deadline().is_hard() && due(&mut hook, now + s(30)).is_empty());
    hook.handle(accepted(now + s(40)), now + s(40));
    hook.handle(HookEvent::LookedUp(Some(HookTimes::of(s(60)))), now + s(40));
    assert!(hook.deadline().is_hard(), "it is proven");
}

#[test]
fn tries_end_with_the_hooks_life() {
    let now = Instant::now();
    let mut hook = machine(Trust::Trusted, TOKEN, false, now);
    hook.handle(failed(Throttled), now + s(5999));
    assert!(hook.wakes_at().is_some());
    hook.handle(failed(Throttled), now + s(6000));
    assert_eq!((hook.wakes_at(), hook.is_at_rest()), (None, true));
}

#[test]
fn a_search_without_an_answer_is_repeated() {
    let now = Instant::now();
    let mut hook = after(Trust::Unproven, TOKEN, [over()], now);
    for _ in 0..3 {
        assert_eq!(due(&mut hook, now), [HookEffect::Search]);
        hook.handle(searched(Err(Throttled)), now - RETRY);
    }
}

#[test]
fn absences_of_the_api_server_put_the_deadline_off_within_the_hooks_life() {
    let now = Instant::now();
    let mut hook = machine(Trust::Trusted, TOKEN, false, now);
    hook.handle(HookEvent::Absent(s(100)), now);
    hook.handle(HookEvent::Absent(s(100)), now);
    assert_eq!((hook.deadline().at() - now, hook.own_deadline().at() - now), (s(694), s(694)));
    hook.handle(HookEvent::Absent(s(9000)), now);
    assert_eq!(hook.deadline().at() - now, s(5994));
    let lengthened = hook.deadline().at_least(now + s(9000));
    hook.handle(HookEvent::Lengthened(lengthened), now);
    assert_eq!((hook.deadline().at() - now, hook.ends() - now), (s(5994), s(6000)));
}
