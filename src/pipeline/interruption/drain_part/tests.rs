use super::*;
use crate::pipeline::drain::HookEnd;
use std::time::Duration;

const MINUTE: Duration = Duration::from_mins(1);

const RETURNS: ActionEnd = ActionEnd { has_other_hook: false, has_restarted: false, returns: true };

/// The deadline under a hook, which leaves room for pods.
fn hook_deadline(ends: Instant) -> Deadline {
    Deadline::Hook(HookEnd { ends, latest: ends + 100 * MINUTE, grace_from: Some(ends), assumed: false })
}

/// What is seen of a drain that ends at `plan`.
fn view(deadline: Deadline, plan: Deadline, hook: Option<HookView>) -> PartView {
    PartView { deadline, plan: Plan::of([deadline, plan].into_iter(), None, None).unwrap(), hook }
}

fn hook(deadline: Deadline) -> HookView {
    HookView { times: HookTimes::of(5 * MINUTE), own_deadline: deadline, deadline, over: None }
}

#[test]
fn a_notice_leaves_at_its_soft_deadline_if_the_drain_continues_for_others() {
    let now = Instant::now();
    let (soft, later) = (Deadline::soft(now + MINUTE), Deadline::soft(now + 3 * MINUTE));
    let mut part = DrainPart::new(now + MINUTE, true);
    let shared = view(soft, later, None);
    assert_eq!(part.handle(&shared, now), []);
    assert_eq!(part.wakes_at(&shared), Some(now + MINUTE));
    assert_eq!(part.handle(&shared, now + MINUTE), [PartEffect::Leave]);
    assert_eq!((part.handle(&shared, now + MINUTE), part.wakes_at(&shared)), (Vec::new(), None), "it has left");
    for alone in [view(soft, soft, None), view(Deadline::hard(now + MINUTE), later, None)] {
        let mut part = DrainPart::new(now + MINUTE, true);
        assert_eq!((part.handle(&alone, now + 9 * MINUTE), part.wakes_at(&alone)), (Vec::new(), None));
    }
}

#[test]
fn the_deadline_in_the_drain_follows_the_hook_and_the_hook_lives_until_its_pods_are_gone() {
    let now = Instant::now();
    let (first, nearer) = (hook_deadline(now + 10 * MINUTE), hook_deadline(now + 4 * MINUTE));
    let mut part = DrainPart::new(now + 10 * MINUTE, true);
    let mut seen = hook(first);
    assert_eq!(part.handle(&view(first, first, Some(seen)), now), [PartEffect::SetDeadline(first)]);
    // Its pods need more time.
    let longer = hook_deadline(now + 12 * MINUTE);
    assert_eq!(part.handle(&view(longer, longer, Some(seen)), now), [PartEffect::KeepHook(longer)]);
    assert_eq!(part.handle(&view(longer, longer, Some(seen)), now), [], "once, even if the hook can't live as long");
    // The hook's times have changed.
    (seen.times, seen.own_deadline, seen.deadline) = (HookTimes::of(2 * MINUTE), nearer, nearer);
    assert_eq!(
        part.handle(&view(longer, longer, Some(seen)), now),
        [PartEffect::SetDeadline(nearer), PartEffect::MoveMark(now + 4 * MINUTE)]
    );
    // The API server was away.
    seen.own_deadline = nearer.put_off(MINUTE / 2);
    assert_eq!(
        part.handle(&view(nearer, nearer, Some(seen)), now),
        [PartEffect::SetDeadline(seen.own_deadline)],
        "the Node shows it when that is needed"
    );
    let mut second = DrainPart::new(now + 4 * MINUTE, false);
    let seen = hook(nearer);
    assert_eq!(second.handle(&view(nearer, nearer, Some(seen)), now).len(), 1);
    let earlier = hook_deadline(now + 3 * MINUTE);
    assert_eq!(second.handle(&view(earlier, earlier, Some(seen)), now), [], "another Node needs more");
    assert_eq!(second.handle(&view(longer, longer, Some(seen)), now), [PartEffect::KeepHook(longer)]);
}

#[test]
fn an_outage_moves_no_end_past_the_life_of_the_hook() {
    let now = Instant::now();
    let ends = now + 10 * MINUTE;
    let last = HookEnd { ends, latest: ends, grace_from: Some(now), assumed: false };
    let mut part = DrainPart::new(ends, true);
    for second in 0..900 {
        let at = now + Duration::from_secs(second);
        let grace_from = Some(at);
        let deadline = Deadline::Hook(HookEnd { grace_from, ..last });
        for effect in part.handle(&view(deadline, deadline, Some(hook(deadline))), at) {
            assert_eq!(effect, PartEffect::SetDeadline(deadline), "after {second} s");
        }
    }
}

#[test]
fn a_later_end_is_recorded_when_the_recorded_one_is_there() {
    let now = Instant::now();
    let (own, other) = (hook_deadline(now + 2 * MINUTE), hook_deadline(now + 9 * MINUTE));
    let mut part = DrainPart::new(now + 2 * MINUTE, true);
    let seen = view(own, other, Some(hook(own)));
    assert_eq!(part.handle(&seen, now), [PartEffect::SetDeadline(own)]);
    assert_eq!((part.handle(&seen, now), part.wakes_at(&seen)), (Vec::new(), Some(now + 2 * MINUTE)));
    let at = now + 2 * MINUTE;
    assert_eq!(part.handle(&seen, at), [PartEffect::PutOffMark(now + 9 * MINUTE)], "AWS waits for the other hook");
    assert_eq!((part.handle(&seen, at), part.wakes_at(&seen)), (Vec::new(), None), "one write at a time");
    part.marked(now + 9 * MINUTE);
    assert_eq!((part.handle(&seen, at), part.wakes_at(&seen)), (Vec::new(), None));
    let ends = |at: Instant| view(Deadline::hard(at), Deadline::hard(at), None);
    assert_eq!(DrainPart::new(now, true).handle(&ends(now + MINUTE / 2), now), [], "half a minute more is no return");
    // After a minute a restart would count as the return, while the hook is about to be completed.
    let put_off = [PartEffect::PutOffMark(now + MINUTE)];
    assert_eq!(DrainPart::new(now, true).handle(&ends(now + MINUTE), now), put_off);
}

#[test]
fn the_end_of_the_action_ends_the_capacity_or_only_the_notices_part() {
    let now = Instant::now();
    let deadline = hook_deadline(now + 9 * MINUTE);
    let hard = PartEffect::SetDeadline(Deadline::hard(now + LAST_CALL));
    let (noted, leaves) = (PartEffect::MoveMark(now), PartEffect::Leave);
    for (end, expected) in [
        (RETURNS, vec![hard, noted]),
        (ActionEnd { returns: false, ..RETURNS }, vec![hard]),
        (ActionEnd { has_other_hook: true, ..RETURNS }, vec![noted, leaves]),
        (ActionEnd { has_restarted: true, ..RETURNS }, vec![noted, leaves]),
    ] {
        let mut part = DrainPart::new(now + 9 * MINUTE, true);
        let seen = view(deadline, deadline, Some(HookView { over: Some(end), ..hook(deadline) }));
        assert_eq!(part.handle(&seen, now), expected, "{end:?}");
        let capacity = Deadline::hard(now + LAST_CALL);
        let after = PartView { deadline: capacity, ..seen };
        let rest = part.handle(&after, now + LAST_CALL);
        assert!(rest.iter().all(|effect| matches!(effect, PartEffect::PutOffMark(_))), "{end:?}: {rest:?}");
    }
}

#[test]
fn any_course_comes_to_rest_and_leaves_once() {
    let mut random = fastrand::Rng::with_seed(8);
    for course in 0..5_000 {
        let begin = Instant::now();
        let mut now = begin;
        let any = |random: &mut fastrand::Rng| begin + Duration::from_secs(random.u64(0..1200));
        let mut seen_hook = random.bool().then(|| hook(hook_deadline(any(&mut random))));
        let mut deadline = match seen_hook {
            Some(hook) => hook.own_deadline,
            None if random.bool() => Deadline::soft(any(&mut random)),
            None => Deadline::hard(any(&mut random)),
        };
        let mut part = DrainPart::new(any(&mut random), random.bool());
        let (mut left, mut marking, mut others) = (false, None, Deadline::soft(any(&mut random)));
        for _ in 0..40 {
            for turn in 0.. {
                let seen = view(deadline, others, seen_hook);
                let effects = part.handle(&seen, now);
                assert!(!left || effects.is_empty(), "course {course}: {effects:?} after it has left");
                if effects.is_empty() {
                    let wakes_at = part.wakes_at(&seen);
                    assert!(wakes_at.is_none_or(|at| at > now), "course {course}: what is due is done");
                    break;
                }
                assert!(turn < 5, "course {course}: no rest, {effects:?}");
                for effect in effects {
                    match effect {
                        PartEffect::SetDeadline(set) => deadline = set,
                        PartEffect::KeepHook(deadline) => {
                            seen_hook = seen_hook.map(|hook| HookView { deadline, ..hook });
                        }
                        PartEffect::MoveMark(_) => marking = None,
                        PartEffect::PutOffMark(at) => {
                            assert!(marking.replace(at).is_none(), "course {course}: two writes at once");
                        }
                        PartEffect::Leave => left = true,
                    }
                }
            }
            now += Duration::from_secs(random.u64(0..90));
            match random.u8(..6) {
                0 => others = hook_deadline(any(&mut random)),
                1 => deadline = deadline.put_off(Duration::from_secs(random.u64(0..300))),
                2 => {
                    let own_deadline = hook_deadline(any(&mut random));
                    seen_hook = seen_hook.map(|hook| HookView { own_deadline, ..hook });
                }
                3 if random.bool() => {
                    let [has_other_hook, has_restarted, returns] = std::array::from_fn(|_| random.bool());
                    let over = Some(ActionEnd { has_other_hook, has_restarted, returns });
                    seen_hook = seen_hook.map(|hook| HookView { over, ..hook });
                }
                4 => {
                    if let Some(at) = marking.take() {
                        part.marked(at);
                    }
                }
                _ => {}
            }
        }
    }
}
