//! The kinds of EC2 and AWS Health.

use super::super::{
    CapacityBlock, Detail, Identity, IgnoreReason, InstanceAction, InstanceState, Notice, NoticeKind, NoticeTime,
    Parsed, ScheduledChange, ZonalShift, parse,
};
use super::fixtures::*;
use super::{all, event_id, ignored, instance, one, time, with};

#[test]
fn a_spot_interruption_plain_and_through_sns() {
    let expected = Notice::new(
        event_id(NoticeKind::Spot, "4a6f9e2d-1c83-4b57-8f0e-d2b5c7a91e36"),
        instance("i-0f60718293a4b5c6d"),
        NoticeTime::Announced(time("2026-11-21T12:00:00Z")),
        Detail::Spot { action: InstanceAction::Terminate },
    );
    assert_eq!(one(SPOT), expected);
    assert_eq!(one(SPOT_SNS), expected);
    assert_eq!(expected.kind(), NoticeKind::Spot);
}

#[test]
fn a_spot_instance_may_be_stopped_or_hibernated() {
    assert_eq!(
        one(SPOT_HIBERNATE),
        Notice::new(
            event_id(NoticeKind::Spot, "91c5b7d3-0e2a-4f68-a4d9-6b8e1f3c5a70"),
            instance("i-0718293a4b5c6d7e8"),
            NoticeTime::Announced(time("2026-11-21T12:00:00Z")),
            Detail::Spot { action: InstanceAction::Hibernate }
        )
    );
    let stop = with(SPOT, "\"terminate\"", "\"stop\"");
    assert_eq!(one(&stop).detail, Detail::Spot { action: InstanceAction::Stop });
}

#[test]
fn a_spot_interruption_is_never_lost_over_its_action() {
    for action in ["\"relocate\"", "\"\"", "null", "7", "[\"stop\"]", "{\"action\": \"stop\"}"] {
        assert_eq!(one(&with(SPOT, "\"terminate\"", action)), one(SPOT), "{action}");
    }
    assert_eq!(one(&with(SPOT, ",\n    \"instance-action\": \"terminate\"", "")), one(SPOT));
}

#[test]
fn a_rebalance_recommendation() {
    assert_eq!(
        one(REBALANCE),
        Notice::new(
            event_id(NoticeKind::Rebalance, "7d2b5e90-8a4c-4c1f-b6e7-f3a9d0c84b15"),
            instance("i-0f60718293a4b5c6d"),
            NoticeTime::Announced(time("2026-11-21T11:58:13Z")),
            Detail::Rebalance
        )
    );
    assert_eq!(one(REBALANCE).kind(), NoticeKind::Rebalance);
    let other_name =
        one(REBALANCE).with_identity(event_id(NoticeKind::Rebalance, "93ad1f50-6be2-4f7c-8d04-c1b2a3948576"));
    assert_eq!(one(REBALANCE_RECOMMENDED), other_name);
}

#[test]
fn a_fleet_that_shrinks_interrupts_its_instance() {
    for (body, id, event) in [
        (FLEET_TERMINATION, "i-0d456789012ef0123", "a4be2061-7cf3-4081-9e15-d2c3b4a59687"),
        (SPOT_FLEET_TERMINATION, "i-0e56789012f012345", "c6d04283-9e15-42a3-b037-f4e5d6c7b8a9"),
    ] {
        assert_eq!(
            one(body),
            Notice::new(
                event_id(NoticeKind::Spot, event),
                instance(id),
                NoticeTime::Announced(time("2026-11-21T11:58:13Z")),
                Detail::Spot { action: InstanceAction::Terminate }
            )
        );
    }
    assert_eq!(ignored(FLEET_LAUNCHED), IgnoreReason::OtherFleetChange);
    for sub_type in ["terminated", "new-word"] {
        assert_eq!(
            ignored(&with(FLEET_LAUNCHED, "\"launched\"", &format!("\"{sub_type}\""))),
            IgnoreReason::OtherFleetChange
        );
    }
}

#[test]
fn a_state_change_in_every_state() {
    assert_eq!(
        one(STATE_STOPPING),
        Notice::new(
            event_id(NoticeKind::StateChange, "2f8e1a6c-5b0d-4973-9ac4-e1d7b3f60258"),
            instance("i-018293a4b5c6d7e8f"),
            NoticeTime::Announced(time("2026-11-21T12:30:45Z")),
            Detail::StateChange { state: InstanceState::Stopping }
        )
    );
    assert_eq!(one(STATE_STOPPING).kind(), NoticeKind::StateChange);
    let in_state = |state: &str| with(STATE_STOPPING, "\"stopping\"", &format!("\"{state}\""));
    for (word, state) in [
        ("stopped", InstanceState::Stopped),
        ("shutting-down", InstanceState::ShuttingDown),
        ("terminated", InstanceState::Terminated),
    ] {
        assert_eq!(one(&in_state(word)).detail, Detail::StateChange { state }, "{word}");
    }
    for word in ["pending", "running"] {
        assert_eq!(ignored(&in_state(word)), IgnoreReason::HarmlessState, "{word}");
    }
}

#[test]
fn a_capacity_reservation_says_when_it_ends() {
    assert_eq!(
        one(CAPACITY_RESERVATION),
        Notice::new(
            event_id(NoticeKind::CapacityReservation, "8b3d7f15-a29e-4c60-91f8-5e0c4d6b2a97"),
            instance("i-03a4b5c6d7e8f9012"),
            NoticeTime::Announced(time("2026-11-21T13:00:00Z")),
            Detail::CapacityReservation { terminates_at: Some(time("2026-11-21T13:02:00Z")) }
        )
    );
    assert_eq!(one(CAPACITY_RESERVATION).kind(), NoticeKind::CapacityReservation);
    let former_name = with(CAPACITY_RESERVATION, "EC2 Capacity", "EC2 Interruptible Capacity");
    assert_eq!(one(&former_name), one(CAPACITY_RESERVATION));
}

#[test]
fn a_capacity_reservations_end_is_best_effort() {
    let ends = |end: &str| one(&with(CAPACITY_RESERVATION, "\"2026-11-21T13:02:00Z\"", end)).detail;
    let at = |end| Detail::CapacityReservation { terminates_at: Some(time(end)) };
    let unknown = Detail::CapacityReservation { terminates_at: None };
    assert_eq!(ends("\"2026-11-21T13:02:00.5Z\""), at("2026-11-21T13:02:00.5Z"));
    assert_eq!(ends("\"2026-11-21T14:02:00+01:00\""), at("2026-11-21T13:02:00Z"));
    assert_eq!(ends("\"Sat, 21 Nov 2026 13:02:00 GMT\""), at("2026-11-21T13:02:00Z"));
    for end in ["\"soon\"", "\"2026-11-21T13:02:00\"", "\"\"", "null", "1795266120", "{}"] {
        assert_eq!(ends(end), unknown, "{end}");
    }
    // The boundary: an end that is not after the notice says nothing.
    assert_eq!(ends("\"2026-11-21T13:00:00Z\""), unknown);
    assert_eq!(ends("\"2026-11-21T12:59:59Z\""), unknown);
    assert_eq!(ends("\"2026-11-21T13:00:00.001Z\""), at("2026-11-21T13:00:00.001Z"));
    assert_eq!(one(CAPACITY_BLOCK).detail, unknown);
    assert_eq!(one(CAPACITY_BLOCK).instance, instance("i-04b5c6d7e8f901234"));
}

#[test]
fn a_capacity_block_ends_for_all_its_instances() {
    let block = |body: &str| match parse(body) {
        Parsed::Block(block) => block,
        other => panic!("{other:?}"),
    };
    let expected = CapacityBlock {
        reservation: "cr-0123456789abcdef0".to_owned(),
        ends: Some(time("2026-11-21T11:30:00Z")),
        terminates_at: time("2026-11-21T11:00:00Z"),
        time: NoticeTime::Announced(time("2026-11-21T10:50:00Z")),
    };
    assert_eq!(block(CAPACITY_BLOCK_EXPIRATION), expected);
    assert_eq!(block(CAPACITY_BLOCK_EXPIRATION_OLD_NAME), expected);
    let ends = |end: &str| block(&with(CAPACITY_BLOCK_EXPIRATION, "\"2026-11-21T11:30:00Z\"", end)).terminates_at;
    assert_eq!(ends("\"2026-11-21T12:00:00Z\""), time("2026-11-21T11:00:00Z"), "UltraServers go an hour before");
    for end in ["\"2026-11-21T11:20:00Z\"", "\"soon\"", "null"] {
        assert_eq!(ends(end), time("2026-11-21T11:00:00Z"), "{end}: ten minutes after the warning");
    }
    let (one, two) = (instance("i-03a4b5c6d7e8f9012"), instance("i-04b5c6d7e8f901234"));
    let notices: Vec<_> = expected.notices(vec![one.clone(), two]).collect();
    assert_eq!(notices[0].identity.to_string(), format!("cr-0123456789abcdef0/2026-11-21T11:30:00Z/{one}"));
    assert_ne!(notices[0].identity, notices[1].identity);
    assert_eq!(notices[1].detail, Detail::CapacityReservation { terminates_at: Some(expected.terminates_at) });
}

#[test]
fn a_scheduled_change_is_one_notice_for_each_instance_once() {
    let arn = "arn:aws:health:eu-central-1::event/EC2/AWS_EC2_INSTANCE_POWER_MAINTENANCE_SCHEDULED/\
               AWS_EC2_INSTANCE_POWER_MAINTENANCE_SCHEDULED_EXAMPLE-0001";
    let notice = |id| {
        Notice::new(
            Identity::HealthEvent { arn: arn.to_owned(), instance: instance(id) },
            instance(id),
            NoticeTime::Announced(time("2026-11-21T07:00:05Z")),
            Detail::ScheduledChange(ScheduledChange {
                code: "AWS_EC2_INSTANCE_POWER_MAINTENANCE_SCHEDULED".to_owned(),
                start: Some(time("2026-12-05T02:00:00Z")),
                hard: false,
                withdrawn: false,
                is_issue: false,
            }),
        )
    };
    assert_eq!(
        all(HEALTH_MAINTENANCE_THREE),
        [notice("i-05c6d7e8f90123456"), notice("i-06d7e8f9012345678"), notice("i-07e8f901234567890")]
    );
    assert_eq!(notice("i-05c6d7e8f90123456").kind(), NoticeKind::ScheduledChange);
    assert_eq!(notice("i-05c6d7e8f90123456").identity.to_string(), format!("{arn}/i-05c6d7e8f90123456"));
}

#[test]
fn the_code_decides_whether_the_capacity_goes() {
    for (body, id, code, hard) in [
        (HEALTH_RETIREMENT, "i-08f90123456789abc", "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED", true),
        (HEALTH_RETIREMENT_PERSISTENT, "i-0901234567890abcd", "AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED", true),
        (HEALTH_STOP, "i-0a12345678901bcde", "AWS_EC2_INSTANCE_STOP_SCHEDULED", true),
        (HEALTH_TERMINATION, "i-0b2345678901cdef0", "AWS_EC2_INSTANCE_TERMINATION_SCHEDULED", true),
        (HEALTH_REBOOT, "i-0c345678901def012", "AWS_EC2_SYSTEM_REBOOT_MAINTENANCE_SCHEDULED", false),
    ] {
        let notice = one(body);
        assert_eq!(notice.instance, instance(id));
        let start = Some(time("2026-12-09T18:30:00Z"));
        assert_eq!(
            notice.detail,
            Detail::ScheduledChange(ScheduledChange {
                code: code.to_owned(),
                start,
                hard,
                withdrawn: false,
                is_issue: false
            })
        );
    }
    let hard = |code| {
        let body = with(HEALTH_STOP, "\"AWS_EC2_INSTANCE_STOP_SCHEDULED\"", &format!("\"{code}\""));
        matches!(one(&body).detail, Detail::ScheduledChange(ScheduledChange { hard: true, .. }))
    };
    assert!(hard("AWS_EC2_INSTANCE_RETIREMENT_EXPEDITED"));
    assert!(hard("AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_EXPEDITED"));
    assert!(hard("AWS_EC2_DEDICATED_HOST_RETIREMENT_SCHEDULED"));
    assert!(!hard("AWS_EC2_INSTANCE_REBOOT_FLEXIBLE_MAINTENANCE_SCHEDULED"));
    assert!(!hard("AWS_EC2_INSTANCE_NETWORK_MAINTENANCE_SCHEDULED"));
    assert!(!hard("AWS_EC2_INSTANCE_STORE_MAINTENANCE_SCHEDULED"));
    assert!(!hard("SOMETHING_NEW"));
}

#[test]
fn a_scheduled_changes_start_is_read_or_left_out() {
    let start = |value: &str| match one(&HEALTH_STOP.replace("\"Wed, 09 Dec 2026 18:30:00 GMT\"", value)).detail {
        Detail::ScheduledChange(change) => change.start,
        other => panic!("{other:?}"),
    };
    // As in AWS's own example, the weekday may be wrong.
    assert_eq!(start("\"Sat, 05 Jun 2016 15:10:09 GMT\""), Some(time("2016-06-05T15:10:09Z")));
    assert_eq!(start("\"Wed, 9 Dec 2026 18:30:00 +0000\""), Some(time("2026-12-09T18:30:00Z")));
    assert_eq!(start("\"2026-12-09T18:30:00Z\""), Some(time("2026-12-09T18:30:00Z")));
    for value in ["\"tomorrow\"", "\"Wed, 31 Nov 2026 18:30:00 GMT\"", "null", "0"] {
        assert_eq!(start(value), None, "{value}");
    }
}

#[test]
fn a_health_event_that_is_closed_withdraws_its_notices() {
    assert!(one(&with(HEALTH_STOP, "\"upcoming\"", "\"closed\"")).is_withdrawn());
    assert!(one(HEALTH_CLOSED).is_withdrawn());
    assert_eq!(ignored(&with(HEALTH_NO_INSTANCE, "\"upcoming\"", "\"closed\"")), IgnoreReason::Closed);
    for status in ["\"open\"", "\"upcoming\"", "\"new-word\"", "null"] {
        assert_eq!(one(&with(HEALTH_STOP, "\"upcoming\"", status)), one(HEALTH_STOP), "{status}");
    }
}

/// Each notice is made from the one before: nothing of that one's instance may be left in it.
#[test]
fn every_instance_of_a_health_event_has_its_own_notice() {
    let ids = ["i-05c6d7e8f90123456", "i-06d7e8f9012345678", "i-07e8f901234567890"];
    for settled in 0..3 {
        let entity = |id: &str, status: &str| format!(r#"{{ "entityValue": "{id}", "status": "{status}" }}"#);
        let status = |n| if n == settled { "RESOLVED" } else { "IMPAIRED" };
        let entities: Vec<String> = ids.iter().enumerate().map(|(n, id)| entity(id, status(n))).collect();
        let (begin, entity) = HEALTH_STOP.split_once("\"affectedEntities\": [").unwrap();
        let (_, end) = entity.split_once(']').unwrap();
        let body = format!("{begin}\"affectedEntities\": [{}]{end}", entities.join(","));
        let Parsed::Notices(mut notices) = parse(&body) else { panic!("{body}") };
        assert_eq!(notices.size_hint(), (3, Some(3)));
        notices.not_after(time("2026-11-21T07:00:00Z"));
        for (n, id) in ids.into_iter().enumerate() {
            let notice = notices.next().unwrap();
            let Identity::HealthEvent { instance: of, .. } = &notice.identity else { panic!("{notice:?}") };
            assert_eq!((of, &notice.instance), (&instance(id), &instance(id)));
            assert_eq!((notice.is_withdrawn(), notice.at()), (n == settled, time("2026-11-21T07:00:00Z")));
        }
        assert_eq!((notices.next(), notices.size_hint()), (None, (0, Some(0))));
    }
}

#[test]
fn a_health_event_names_an_instance_by_its_id_or_its_arn() {
    assert_eq!(one(HEALTH_RETIREMENT_ARN), one(HEALTH_RETIREMENT));
    let id = "\"i-08f90123456789abc\"";
    for partition in ["aws", "aws-cn", "aws-us-gov"] {
        let arn = format!("\"arn:{partition}:ec2:eu-central-1:123456789012:instance/i-08f90123456789abc\"");
        let entity = |value: &str| format!("\"entityValue\": {value}");
        assert_eq!(one(&with(HEALTH_RETIREMENT, &entity(id), &entity(&arn))), one(HEALTH_RETIREMENT), "{arn}");
    }
}

/// Returns the event with these entities.
fn with_entities(values: &[&str]) -> String {
    let (begin, entity) = HEALTH_STOP.split_once("\"affectedEntities\": [").unwrap();
    let (_, end) = entity.split_once(']').unwrap();
    let entities: Vec<String> = values.iter().map(|value| format!(r#"{{ "entityValue": "{value}" }}"#)).collect();
    format!("{begin}\"affectedEntities\": [{}]{end}", entities.join(","))
}

#[test]
fn each_entity_of_a_health_event_is_read_for_itself() {
    let others = [
        "vol-0a1b2c3d4e5f60718",
        "h-0a1b2c3d4e5f60718",
        "arn:aws:ec2:eu-central-1:123456789012:volume/vol-0a1b2c3d4e5f60718",
        "arn:aws:ec2:eu-central-1:123456789012:network-interface/eni-0a1b2c3d4e5f60718",
        "arn:aws:rds:eu-central-1:123456789012:instance/i-05c6d7e8f90123456",
        "arn:aws:ec2",
        "123456789012",
    ];
    assert_eq!(ignored(&with_entities(&others)), IgnoreReason::NotScheduledChange);
    for bad in [
        "i-05C6D7E8F90123456",
        "i-",
        "arn:aws:ec2:eu-central-1:123456789012:instance/i-05c6",
        "arn:aws:ec2:r:a:instance/",
    ] {
        let Parsed::Notices(mut notices) = parse(&with_entities(&[bad, "i-05c6d7e8f90123456", others[0]])) else {
            panic!("{bad}")
        };
        let unreadable = notices.take_unreadable().expect("it must be told");
        assert_eq!((unreadable.at.as_str(), notices.count()), ("detail.affectedEntities.entityValue", 1), "{bad}");
        let Parsed::Malformed(error) = parse(&with_entities(&[others[0], bad])) else { panic!("{bad}") };
        assert_eq!(error, *unreadable);
        assert!(error.what.ends_with(" is not an instance ID"), "{error}");
    }
}

#[test]
fn the_notice_of_an_instance_that_a_health_event_no_longer_concerns_is_withdrawn() {
    for status in ["RESOLVED", "UNIMPAIRED"] {
        let settled = one(&with(HEALTH_STOP, "\"IMPAIRED\"", &format!("\"{status}\"")));
        assert!(settled.is_withdrawn() && settled.identity == one(HEALTH_STOP).identity, "{status}");
    }
    for status in ["\"PENDING\"", "\"UNKNOWN\"", "\"new-word\"", "null"] {
        assert_eq!(one(&with(HEALTH_STOP, "\"IMPAIRED\"", status)), one(HEALTH_STOP), "{status}");
    }
}

#[test]
fn a_fault_that_names_instances_is_a_notice_without_a_time() {
    let expected = ScheduledChange {
        code: "AWS_EC2_INSTANCE_STORE_DRIVE_PERFORMANCE_DEGRADED".to_owned(),
        start: None,
        hard: false,
        withdrawn: false,
        is_issue: true,
    };
    assert_eq!(one(HEALTH_ISSUE).detail, Detail::ScheduledChange(expected.clone()));
    let retired = with(HEALTH_ISSUE, "\"AWS_EC2_INSTANCE_STORE_DRIVE_PERFORMANCE_DEGRADED\"", "\"AWS_EC2_A_STOP\"");
    assert!(matches!(one(&retired).detail, Detail::ScheduledChange(ScheduledChange { hard: false, .. })));
    let over = with(HEALTH_ISSUE, "\"IMPAIRED\"", "\"UNIMPAIRED\"");
    assert_eq!(one(&over).detail, Detail::ScheduledChange(ScheduledChange { withdrawn: true, ..expected }));
}

#[test]
fn a_newer_copy_that_says_something_else_revises_a_notice() {
    let (first, later) =
        (one(HEALTH_STOP), |body: &str| one(&with(body, "2026-11-21T07:00:05Z", "2026-11-22T07:00:05Z")));
    let postponed = HEALTH_STOP.replace("Wed, 09 Dec 2026 18:30:00 GMT", "Thu, 10 Dec 2026 18:30:00 GMT");
    assert!(later(&postponed).revises(&first) && !first.revises(&later(&postponed)));
    assert!(later(&with(HEALTH_STOP, "\"upcoming\"", "\"closed\"")).revises(&first));
    assert!(!later(HEALTH_STOP).revises(&first), "it says the same");
}

#[test]
fn entities_that_are_no_instances_are_passed_over() {
    let list = HEALTH_STOP.find("\"affectedEntities\"").unwrap();
    let end = list + HEALTH_STOP[list..].find("\n    ]").unwrap() + "\n    ]".len();
    let with_entities =
        |value: &str| format!("{}\"affectedEntities\": {value}{}", &HEALTH_STOP[..list], &HEALTH_STOP[end..]);
    for value in ["null", "[]", "[null, 5, [\"i-0a12345678901bcde\"], {}, {\"entityValue\": null}]"] {
        assert_eq!(ignored(&with_entities(value)), IgnoreReason::NotScheduledChange, "{value}");
    }
    let mixed = r#"["x", {"entityValue": "i-0a12345678901bcdX"}, {"entityValue": "i-1a2b3c4d", "entityValue2": 1}]"#;
    assert_eq!(one(&with_entities(mixed)).instance, instance("i-1a2b3c4d"));
}

#[test]
fn a_zonal_shift_names_zone_and_resources() {
    let text = include_str!("../../../../tests/fixtures/events/zonal-shift.json");
    let cluster = "arn:aws:eks:eu-west-1:123456789012:cluster/blue";
    let of = |kind: &str| parse(&text.replace("Manual Shift Started", kind));
    let expected = |begins| {
        let (away_from, at) = ("euw1-az2".to_owned(), "2026-11-21T12:00:00Z".parse().unwrap());
        Parsed::Shift(ZonalShift { away_from, resources: vec![cluster.to_owned()], at, begins })
    };
    for kind in [
        "Autoshift In Progress",
        "FIS Experiment Autoshift In Progress",
        "Manual Shift Started",
        "Manual Shift Updated",
    ] {
        assert_eq!(of(kind), expected(true), "{kind}");
    }
    let ends = [
        "Autoshift Completed",
        "FIS Experiment Autoshift Completed",
        "FIS Experiment Autoshift Canceled",
        "Manual Shift Canceled",
    ];
    for kind in ends {
        assert_eq!(of(kind), expected(false), "{kind}");
    }
    for kind in ["Practice Run Started", "Practice Run Succeeded", "Practice Run Interrupted", "Practice Run Failed"] {
        assert_eq!(of(kind), Parsed::Ignored(IgnoreReason::UnknownType), "{kind}");
    }
    let observed = parse(&text.replace(&format!("\"{cluster}\""), ""));
    assert_eq!(observed, Parsed::Ignored(IgnoreReason::OtherShift), "an observer's notification");
    for (what, with) in
        [("euw1-az2", "euw1 az2"), ("euw1-az2", ""), ("euw1-az2", "Euw1-az2"), ("awayFrom", "from"), (cluster, "")]
    {
        assert!(matches!(parse(&text.replace(what, with)), Parsed::Malformed(_)), "{what} {with}");
    }
}
