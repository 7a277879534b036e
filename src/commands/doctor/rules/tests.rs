use super::*;
use crate::commands::doctor::Status;
use crate::commands::doctor::readings::HookConfig;
use crate::commands::doctor::tests::{QUEUE, found, hook, one, rule, sent, settings, trial};
use crate::pipeline::event;
use crate::pipeline::event::Parsed;

fn only(rules: Vec<EventRule>) -> impl FnOnce(&mut Readings) {
    move |readings: &mut Readings| readings.rules = Ok(EventRules { rules, unread: None, complete: true })
}

/// Whether a pattern matches all events like this one.
fn comes(pattern: &str, event: &Value) -> bool {
    sent(pattern, event).is_some_and(|sent| sent.narrows.is_none())
}

fn keep(kinds: &[NoticeKind]) -> Vec<String> {
    let others = NoticeKind::ALL.into_iter().filter(|kind| !kind.is_repair() && !kinds.contains(kind));
    others.map(|kind| format!("--on={kind}=ignore")).collect()
}

#[test]
fn the_recommended_pattern_matches_its_kind() {
    let settings = settings(&["--out-of-service-taint", "--health-issue=AWS_EC2_A_FAULT=drain"]);
    for kind in NoticeKind::ALL.into_iter().filter(|kind| !kind.is_repair()) {
        for sample in samples(kind, &settings) {
            assert!(comes(wanted(kind, &settings), &sample), "{kind}");
        }
    }
}

#[test]
fn samples_are_like_the_events_themselves() {
    let settings = settings(&[]);
    for (kind, text) in [
        (NoticeKind::AsgTerminate, include_str!("../../../../tests/fixtures/events/asg-terminate.json")),
        (NoticeKind::AsgLaunch, include_str!("../../../../tests/fixtures/events/asg-launch.json")),
        (NoticeKind::Spot, include_str!("../../../../tests/fixtures/events/spot.json")),
        (NoticeKind::Spot, include_str!("../../../../tests/fixtures/events/spot-hibernate.json")),
        (NoticeKind::Rebalance, include_str!("../../../../tests/fixtures/events/rebalance.json")),
        (NoticeKind::StateChange, include_str!("../../../../tests/fixtures/events/state-stopping.json")),
        (NoticeKind::ScheduledChange, include_str!("../../../../tests/fixtures/events/health-retirement.json")),
        (NoticeKind::CapacityReservation, include_str!("../../../../tests/fixtures/events/capacity-reservation.json")),
    ] {
        let Parsed::Notices(mut notices) = event::parse(text) else { panic!("{text}") };
        assert_eq!(notices.next().unwrap().kind(), kind);
        let real: Value = serde_json::from_str(text).unwrap();
        // The sample has a part of the real event's fields.
        let is_part = |sample: &Value| {
            let detail = sample["detail"].as_object().unwrap().iter().all(|(key, value)| real["detail"][key] == *value);
            sample["source"] == real["source"] && sample["detail-type"] == real["detail-type"] && detail
        };
        assert!(samples(kind, &settings).iter().any(is_part), "{kind}");
        assert!(comes(wanted(kind, &settings), &real), "{kind}");
    }
}

#[test]
fn the_recommended_pattern_has_every_name_of_its_events() {
    for text in [
        include_str!("../../../../tests/fixtures/events/fleet-termination.json"),
        include_str!("../../../../tests/fixtures/events/spot-fleet-termination.json"),
        include_str!("../../../../tests/fixtures/events/rebalance-recommended.json"),
    ] {
        let Parsed::Notices(mut notices) = event::parse(text) else { panic!("{text}") };
        let pattern = wanted(notices.next().unwrap().kind(), &settings(&[]));
        assert!(comes(pattern, &serde_json::from_str(text).unwrap()), "{text}");
    }
}

/// A rule from before AWS announced an event lacks it, and so does one with its first name alone.
#[test]
fn events_that_a_rule_of_their_kind_lacks_are_named() {
    for (kind, first, lacks) in [
        (NoticeKind::Spot, "EC2 Spot Instance Interruption Warning", &["EC2 Fleet Instance Change"][..]),
        (NoticeKind::Spot, "EC2 Spot Instance Interruption Warning", &["EC2 Spot Fleet Instance Change"]),
        (NoticeKind::Rebalance, "EC2 Instance Rebalance Recommendation", &["EC2 Spot Instance Rebalance Recommended"]),
        (
            NoticeKind::CapacityReservation,
            "EC2 Capacity Reservation Instance Interruption Warning",
            &["Capacity Block Expiration Warning", "Capacity Block Reservation Expiration Warning"],
        ),
    ] {
        let flags = keep(&[kind]);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let has = json!(
            [first]
                .into_iter()
                .chain(variants(kind).iter().map(|(_, name)| *name).filter(|name| !lacks.contains(name)))
                .collect::<Vec<_>>()
        );
        let old = rule("old", &json!({ "detail-type": has }).to_string());
        let (name, status, text) = one(&flags, only(vec![old.clone()]));
        assert_eq!((name, status), (kind.as_str(), Status::Warning), "{text}");
        assert!(text.contains(&format!("no rule sends: {}.", lacks.join(", "))), "{text}");
        // The pattern to copy has these alone, so that nothing comes twice.
        let pattern = text.split('\'').nth(1).unwrap();
        let pattern: Value = serde_json::from_str(pattern).unwrap();
        assert_eq!((&pattern["detail-type"], text.contains(&format!("ebbtide-{kind}-more"))), (&json!(lacks), true));
        let rules = vec![old.clone(), rule("more", &pattern.to_string())];
        assert_eq!(found(&flags, only(rules)), Vec::new(), "{kind}");
        let off = vec![old.clone(), EventRule { enabled: false, ..rule("more", &pattern.to_string()) }];
        assert_eq!(one(&flags, only(off)).1, Status::Warning, "{kind}");
        // What is not read, or not judged, may send them.
        let partly = EventRules { rules: vec![old.clone()], unread: None, complete: false };
        assert_eq!(found(&flags, |readings| readings.rules = Ok(partly)), Vec::new(), "{kind}");
        let narrow = rule("narrow", r#"{"resources": [{"suffix": "0"}]}"#);
        assert_eq!(found(&flags, only(vec![old, narrow])), Vec::new(), "{kind}");
    }
    let spot_only = rule("spot", r#"{"detail-type": ["EC2 Spot Instance Interruption Warning"]}"#);
    assert_eq!(
        found(&["--on=spot=ignore"], |readings| readings.rules.as_mut().unwrap().rules.push(spot_only)),
        Vec::new()
    );
}

#[test]
fn a_kind_without_a_rule_says_how_to_make_one() {
    for (kind, status) in [
        (NoticeKind::AsgTerminate, Status::Failure),
        (NoticeKind::Spot, Status::Failure),
        (NoticeKind::Rebalance, Status::Warning),
        (NoticeKind::StateChange, Status::Warning),
        (NoticeKind::ScheduledChange, Status::Warning),
        (NoticeKind::CapacityReservation, Status::Warning),
    ] {
        let flags = keep(&[kind]);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let (name, found, text) = one(&flags, only(Vec::new()));
        assert_eq!((name, found), (kind.as_str(), status), "{text}");
        assert!(text.contains(&format!("put-rule --name ebbtide-{kind}")) && text.contains(QUEUE), "{text}");
        assert!(text.contains(&format!("--on {kind}=ignore")), "{text}");
    }
    assert_eq!(
        found(&["--on", "spot=ignore"], |readings| drop(readings.rules.as_mut().unwrap().rules.remove(1))).len(),
        1
    );
}

#[test]
fn a_rule_that_is_off_or_sends_too_little_is_named() {
    let flags = keep(&[NoticeKind::Spot]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let off = EventRule { enabled: false, ..rule("mine", r#"{"source": ["aws.ec2"]}"#) };
    let (_, status, text) = one(&flags, only(vec![off]));
    assert_eq!(status, Status::Failure);
    assert!(text.contains("disabled") && text.contains("enable-rule --name mine"), "{text}");
    let part = rule("mine", r#"{"source": ["aws.ec2"], "detail": {"instance-action": ["terminate"]}}"#);
    let (_, _, text) = one(&flags, only(vec![part]));
    assert!(text.contains("those with instance-action stop are missing"), "{text}");
    let both = vec![
        rule("one", r#"{"detail": {"instance-action": ["terminate"]}}"#),
        rule("two", r#"{"detail": {"instance-action": ["stop", "hibernate"]}}"#),
    ];
    assert_eq!(found(&flags, only(both)), Vec::new());
}

#[test]
fn a_rule_with_further_conditions_is_not_judged() {
    let flags = keep(&[NoticeKind::AsgTerminate]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let narrow = rule("mine", r#"{"source": ["aws.autoscaling"], "detail": {"AutoScalingGroupName": ["workers"]}}"#);
    let (name, status, text) = one(&flags, only(vec![narrow]));
    assert_eq!((name, status), ("asg-terminate", Status::Skipped));
    assert!(text.contains("rule mine may send these events, but it narrows detail.AutoScalingGroupName"), "{text}");
    let schedule = EventRule { sends: Ok(Vec::new()), ..rule("hourly", "{}") };
    assert_eq!(one(&flags, only(vec![schedule])).1, Status::Failure);
}

#[test]
fn hooks_that_notify_the_queue_need_no_rule() {
    let flags = keep(&[NoticeKind::AsgTerminate]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let with = |target: Option<&str>| {
        let hook = HookConfig { notifies: target.map(str::to_owned), ..hook("drain", 300) };
        move |readings: &mut Readings| {
            readings.rules = Ok(EventRules { complete: true, ..EventRules::default() });
            readings.groups.as_mut().unwrap().groups[0].hooks = Ok(vec![hook]);
        }
    };
    assert_eq!(found(&flags, with(Some(QUEUE))), Vec::new());
    let elsewhere = found(&flags, with(Some("arn:aws:sns:eu-west-1:123456789012:topic")));
    let names: Vec<_> = elsewhere.iter().map(|check| (check.name, check.status)).collect();
    assert_eq!(names, [("asg-terminate", Status::Failure), ("target", Status::Warning)]);
    // Without a hook there are no events, and none are missing.
    let (_, status, _) = one(&flags, |readings| {
        readings.rules = Ok(EventRules { complete: true, ..EventRules::default() });
        readings.groups.as_mut().unwrap().groups.clear();
        readings.trials.clear();
        readings.trials.push(trial("complete", Vec::new()));
    });
    assert_eq!(status, Status::Warning);
}

#[test]
fn the_faults_that_are_asked_for_need_a_rule_of_their_category() {
    let flags = [keep(&[]), vec!["--health-issue=AWS_EC2_A_FAULT=drain".to_owned()]].concat();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let health = |categories: &str| {
        let pattern = format!(r#"{{"source": ["aws.health"], "detail": {{"eventTypeCategory": [{categories}]}}}}"#);
        only(vec![rule("health", &pattern)])
    };
    let (name, status, text) = one(&flags, health("\"scheduledChange\""));
    assert_eq!((name, status), ("scheduled-change", Status::Warning), "{text}");
    assert!(text.contains(r#"["scheduledChange", "issue"]"#), "{text}");
    assert_eq!(found(&flags, health("\"scheduledChange\", \"issue\"")), Vec::new());
}

#[test]
fn zonal_shifts_have_a_rule_if_the_settings_ask_for_them() {
    let flags = keep(&[NoticeKind::AsgTerminate]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(["--zonal-shift=any"]).collect();
    let terminate = || rule("hooks", wanted(NoticeKind::AsgTerminate, &settings(&[])));
    let (name, status, text) = one(&flags, only(vec![terminate()]));
    assert_eq!((name, status), ("zonal-shift", Status::Warning), "{text}");
    let pattern = text.split('\'').find(|part| part.starts_with('{')).unwrap();
    let shifts = || rule("shifts", pattern);
    assert_eq!(found(&flags, only(vec![terminate(), shifts()])), Vec::new());
    let off = EventRule { enabled: false, ..shifts() };
    assert_eq!(one(&flags, only(vec![terminate(), off])).1, Status::Warning);
    let without = &flags[..flags.len() - 1];
    assert_eq!(found(without, only(vec![terminate()])), Vec::new());
}
