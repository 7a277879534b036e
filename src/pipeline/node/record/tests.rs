//! The table of transitions, as the patches of all writers make them.

use super::*;
use crate::fact::UndoReason;
use crate::pipeline::event::{Detail, Identity, InstanceId, Notice, NoticeTime, ScheduledChange};
use crate::pipeline::node::handled::{KnownNotice, Standing};
use crate::pipeline::node::mark::{Mark, MarkSettings};
use crate::pipeline::node::release::NodeRelease;
use crate::pipeline::node::{Node, agent_notices, confirmation, handled, plan};
use By::{Cancel, Cordon, End, EndOfPlan, Forget, Plan, Release, Uncordon};

/// What changes a record. Numbers are hours: of AWS's time of the notice, and of the start of its change.
#[derive(Clone, Copy, Debug)]
enum By {
    /// A copy of the notice is planned.
    Plan(i64, i64),
    /// A copy of the notice cordons.
    Cordon(i64, i64),
    /// Nothing is left to do for the change that starts then.
    End(i64),
    /// The same, for a change that was planned by a copy of that time.
    EndOfPlan(i64, i64),
    /// The source no longer reports the change that starts then.
    Forget(i64),
    /// The Node is released.
    Release,
    /// A user removes the cordon.
    Uncordon,
    /// AWS's message of that time cancels the notice.
    Cancel(i64),
}

fn at(hour: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + hour * 3600).unwrap()
}

fn notice(since: i64, start: i64, withdrawn: bool) -> Notice {
    let instance = InstanceId::new("i-0123456789abcdef0").unwrap();
    let code = "AWS_EC2_INSTANCE_STOP_SCHEDULED".to_owned();
    let change = ScheduledChange { code, start: Some(at(start)), hard: true, withdrawn, is_issue: false };
    let identity = Identity::of_change("arn:aws:health:eu-west-1::event/EC2/STOP/1".to_owned(), instance.clone());
    Notice::new(identity, instance, NoticeTime::Announced(at(since)), Detail::ScheduledChange(change))
}

/// Returns the patch of the writer, if it writes anything.
fn patch(node: &Node, by: By) -> Option<Value> {
    let (key, settings) = (notice(0, 0, false).key(), MarkSettings::default());
    match by {
        Plan(since, start) => plan::patch(&plan::of(&notice(since, start, false), "m-1")?, node),
        Cordon(since, start) => {
            let mark = Mark::new(key, "scheduled-change", at(since), "m-1").with_start(Some(at(start)), true);
            mark.patch(node, &settings)
        }
        End(start) => handled::patch(node, &notice(0, start, false), "m-1", None),
        EndOfPlan(since, start) => {
            let notice = notice(since, start, false);
            handled::patch(node, &notice, "m-1", plan::of(&notice, "m-1").as_ref())
        }
        Forget(start) => handled::removal(node, &notice(0, start, false)),
        Release => Some(NodeRelease::of_notice(node, key, UndoReason::Expired)?.patch(node, &settings).body),
        Uncordon => {
            let node = Node { cordoned: false, ..node.clone() };
            Some(NodeRelease::after_uncordon(&node)?.patch(&node, &settings).body)
        }
        Cancel(since) => {
            let by = Withdrawal::of(&notice(since, 0, true));
            Some(NodeRelease::of_withdrawn(node, key, by, true)?.patch(node, &settings).body)
        }
    }
}

/// Applies the patch as the API server does, and returns the state of the record after it.
fn apply(node: &mut Node, patch: &Value) {
    for (name, value) in patch["metadata"]["annotations"].as_object().unwrap() {
        match value.as_str() {
            Some(text) => node.record.insert(name, text),
            None => node.record.remove(name),
        }
    }
    if let Some(unschedulable) = patch["spec"].get("unschedulable") {
        node.cordoned = *unschedulable == true;
    }
}

#[test]
fn the_writers_make_the_transitions_of_the_table_and_no_others() {
    use Work::{Ended, Handled, Open, Planned, Withdrawn};
    let key = notice(0, 0, false).key();
    // Each row: what happens, and the state after each; `None` is no record.
    let rows: &[&[(By, Option<Work>)]] = &[
        &[(Plan(0, 9), Some(Planned)), (Cordon(0, 9), Some(Open)), (End(9), Some(Ended)), (Release, Some(Handled))],
        &[(Cordon(0, 9), Some(Open)), (Release, None)],
        // AWS moves the start while the Node is drained.
        &[(Cordon(0, 9), Some(Open)), (Cordon(1, 20), Some(Open)), (End(20), Some(Ended))],
        // A user ends it, until AWS moves the start.
        &[(Cordon(0, 9), Some(Open)), (Uncordon, Some(Handled)), (Cordon(1, 20), Some(Open))],
        &[(Plan(0, 9), Some(Planned)), (Uncordon, Some(Planned))],
        // It is ended for one start only.
        &[(Cordon(0, 9), Some(Open)), (End(9), Some(Ended)), (Cordon(1, 20), Some(Open)), (Release, None)],
        &[(End(9), Some(Handled)), (Cordon(1, 20), Some(Open))],
        // Another replica cordons for what has ended meanwhile.
        &[(End(9), Some(Handled)), (Cordon(0, 9), Some(Ended)), (Release, Some(Handled))],
        // A change that is moved is planned again; an older copy that comes last is not.
        &[(Plan(0, 9), Some(Planned)), (Plan(1, 20), Some(Planned)), (End(20), Some(Planned))],
        &[(Plan(1, 20), Some(Planned)), (EndOfPlan(1, 20), Some(Handled)), (Plan(0, 9), Some(Handled))],
        &[(Plan(1, 20), Some(Planned)), (EndOfPlan(1, 20), Some(Handled)), (Plan(2, 20), Some(Handled))],
        &[(End(9), Some(Handled)), (Plan(1, 20), Some(Planned))],
        // A cancellation ends all but a newer copy, and older copies come too late.
        &[(Plan(0, 9), Some(Planned)), (Cancel(1), Some(Withdrawn)), (Plan(0, 9), Some(Withdrawn))],
        &[(Cordon(0, 9), Some(Open)), (Cancel(1), Some(Withdrawn)), (End(9), Some(Withdrawn))],
        &[(Cordon(0, 9), Some(Open)), (End(9), Some(Ended)), (Cancel(1), Some(Withdrawn)), (Cordon(2, 9), Some(Open))],
        &[(End(9), Some(Handled)), (Cancel(1), Some(Withdrawn)), (Plan(2, 9), Some(Planned))],
        &[(Cordon(2, 9), Some(Open)), (Cancel(1), Some(Open))],
        &[(Cancel(1), Some(Withdrawn)), (Cancel(1), Some(Withdrawn)), (Forget(9), Some(Withdrawn))],
        &[(Plan(1, 9), Some(Planned)), (Cancel(1), Some(Withdrawn)), (Plan(1, 9), Some(Withdrawn))],
        // What no longer reports it leaves nothing that ends it, and no cordon is undone by that.
        &[(End(9), Some(Handled)), (Forget(9), None)],
        &[(Cordon(0, 9), Some(Open)), (End(9), Some(Ended)), (Forget(9), Some(Open))],
        &[(Plan(0, 9), Some(Planned)), (Forget(9), Some(Planned))],
    ];
    for row in rows {
        let mut node = Node::for_tests("node-1");
        for (number, (by, after)) in row.iter().enumerate() {
            if let Some(patch) = patch(&node, *by) {
                apply(&mut node, &patch);
            }
            let (found, holds) = (node.record.get(key).map(|known| known.work), node.record.is_held());
            assert_eq!(found, *after, "{number} of {row:?}");
            assert_eq!(holds, after.is_some_and(Work::holds), "{number} of {row:?}");
            assert!(!holds || node.cordoned, "{number} of {row:?}");
            assert_eq!(&node.record.written(), node.record.texts(), "{number} of {row:?}");
        }
    }
}

#[test]
fn a_record_of_another_version_holds_its_node_and_no_writer_changes_it() {
    let mut node = Node::for_tests("node-1");
    let name = name(NOTICE_PREFIX, notice(0, 0, false).key());
    node.record.insert(&name, r#"{"v":2,"work":"handled"}"#);
    node.cordoned = true;
    for by in [Plan(1, 9), Cordon(1, 9), End(9), EndOfPlan(1, 9), Forget(9), Cancel(1)] {
        let annotations = patch(&node, by).map(|patch| patch["metadata"]["annotations"].clone());
        assert!(annotations.is_none_or(|all| all.get(&name).is_none()), "{by:?}");
    }
    assert!(node.record.is_held());
}

/// An attacker who floods one state with forged messages pushes nothing out of another.
#[test]
fn each_state_has_a_room_of_its_own_and_what_is_remembered_gives_way_to_the_newest() {
    let mut node = Node::for_tests("node-1");
    let record = |work, hour| NoticeRecord {
        work,
        ..NoticeRecord::new("scheduled-change".to_owned(), at(hour), "m".to_owned())
    };
    for hour in 0..64 {
        let key = NoticeKey::of(&format!("handled-{hour}"));
        node.record.insert(name(NOTICE_PREFIX, key), text(&record(Work::Handled, hour)));
    }
    assert!(node.record.is_full_of(Work::Handled));
    assert!(![Work::Open, Work::Planned, Work::Withdrawn].into_iter().any(|work| node.record.is_full_of(work)));
    let change = |work| {
        let changes = [RecordChange { key: NoticeKey::of("new"), left: Some(record(work, 99)) }];
        node.record.annotations(&changes)
    };
    assert_eq!(change(Work::Withdrawn).len(), 1);
    let oldest = name(NOTICE_PREFIX, NoticeKey::of("handled-0"));
    assert_eq!(change(Work::Handled).get(&oldest), Some(&Value::Null));
}

#[test]
fn records_that_cannot_be_read_take_no_room() {
    let mut node = Node::for_tests("node-1");
    for number in 0..64 {
        node.record.insert(name(NOTICE_PREFIX, NoticeKey::of(&format!("edited-{number}"))), "{");
    }
    assert!(node.record.is_held() && !node.record.is_full_of(Work::Open));
}

/// The id of the change in EC2's list and in the metadata.
const LISTED: &str = "instance-event-1";

/// What the sources of one change do, and a user. Numbers as above.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// A message of that time announces the change.
    Message(i64, i64),
    /// What EC2 has answered at that time lists it.
    List(i64, i64),
    /// The agent reports it.
    Agent(i64),
    /// The agent no longer does.
    Silence,
    /// AWS's message of that time cancels what it announced for this start.
    Call(i64, i64),
    /// A user removes the cordon.
    Free,
}

fn listed(asked: i64, start: i64) -> Notice {
    let instance = InstanceId::new("i-0123456789abcdef0").unwrap();
    Notice::listed((LISTED, "instance-stop"), instance, Some(at(start)), false, at(asked))
}

/// Returns the patch of a notice that is worked on, as of one that starts over if another source has the record by now.
fn cordon(node: &Node, notice: &Notice, message: &str) -> Option<Value> {
    let mark = Mark::new(notice.key(), "scheduled-change", notice.at(), message).with_start(notice.start(), true);
    assert!(!mark.is_of_another(node), "{notice:?} would have a record of its own");
    mark.patch(node, &MarkSettings::default())
}

/// Returns what a replica that learns of this patches.
fn act(node: &mut Node, act: Act) -> Option<Value> {
    let settings = MarkSettings::default();
    let by_standing = |standing, notice: &Notice, message: &str, node: &Node| match standing {
        Standing::Settled => None,
        Standing::Announced => handled::patch(node, notice, message, None),
        Standing::Open => cordon(node, notice, message),
    };
    match act {
        Act::Message(since, start) => {
            let notice = notice(since, start, false);
            let own = node.record.get(notice.key()).filter(|known| known.work == Work::Withdrawn);
            match handled::known(node, &notice) {
                Some(KnownNotice::Handled) => None,
                Some(KnownNotice::Same(_)) => confirmation::patch(node, &notice, "m-1"),
                None if own.is_some_and(|own| own.since > Some(notice.at())) => None,
                None => cordon(node, &notice, "m-1"),
            }
        }
        Act::List(asked, start) => {
            let notice = listed(asked, start);
            by_standing(handled::standing(node, &notice, Some(LISTED)), &notice, LISTED, node)
        }
        Act::Agent(start) => {
            let notice = format!(r#"{{"what":"instance-stop","at":"{}","id":"{LISTED}"}}"#, at(start));
            node.record.insert(agent_notices::AgentNoticeKind::Maintenance.annotation(), notice);
            let reported = agent_notices::notices_of(node, at(0)).next().unwrap().1.unwrap();
            by_standing(agent_notices::standing_of(node, &reported), &reported.notice, &reported.message, node)
        }
        Act::Silence => {
            node.record.remove(&agent_notices::AgentNoticeKind::Maintenance.annotation());
            let gone = agent_notices::taken_back(node, &[], at(5)).pop()?.notice;
            let release = agent_notices::taken_back_marks(node, &gone.identity);
            release.map(|release| release.patch(node, &settings).body).or_else(|| handled::removal(node, &gone))
        }
        Act::Call(since, start) => {
            let notice = notice(since, start, true);
            let notice = match handled::known(node, &notice) {
                Some(KnownNotice::Same(identity)) => notice.with_identity(identity),
                _ => notice,
            };
            Some(agent_notices::withdrawn_marks(node, &notice)?.patch(node, &settings).body)
        }
        Act::Free => {
            node.cordoned = false;
            Some(NodeRelease::after_uncordon(node)?.patch(node, &settings).body)
        }
    }
}

#[test]
fn a_change_has_one_record_whichever_source_reports_it_and_is_over_when_none_does() {
    use Act::{Agent, Call, Free, List, Message, Silence};
    use Work::{Handled, Open, Withdrawn};
    /// The states of the records under the message's id, and under that in EC2's list.
    type States = (Option<Work>, Option<Work>);
    let by_message = |work| (Some(work), None);
    let by_list = |work| (None, Some(work));
    let rows: Vec<Vec<(Act, States)>> = vec![
        // AWS's message calls it off while EC2's last poll still lists it, a copy comes last, and a later poll lists it again.
        vec![
            (Message(0, 9), by_message(Open)),
            (List(0, 9), by_message(Open)),
            (Call(1, 9), by_message(Withdrawn)),
            (List(0, 9), by_message(Withdrawn)),
            (Message(0, 9), by_message(Withdrawn)),
            (List(2, 9), (Some(Withdrawn), Some(Open))),
            (Message(3, 9), by_list(Open)),
        ],
        vec![
            (List(0, 9), by_list(Open)),
            (Message(0, 9), by_list(Open)),
            (Call(1, 9), by_list(Withdrawn)),
            (List(0, 9), by_list(Withdrawn)),
        ],
        // The same while the agent still reports it, which only the agent ends.
        vec![
            (Message(0, 9), by_message(Open)),
            (Agent(9), by_message(Open)),
            (Call(1, 9), (Some(Withdrawn), Some(Open))),
            (Message(0, 9), (Some(Withdrawn), Some(Open))),
            (Agent(9), (Some(Withdrawn), Some(Open))),
            (Silence, by_message(Withdrawn)),
        ],
        vec![
            (Agent(9), by_list(Open)),
            (Message(0, 9), by_list(Open)),
            (Call(1, 9), (Some(Withdrawn), Some(Open))),
            (Message(0, 9), (Some(Withdrawn), Some(Open))),
            (Silence, by_message(Withdrawn)),
        ],
        // A message has moved it and called it off before the agent's metadata changed.
        vec![
            (Agent(9), by_list(Open)),
            (Message(0, 9), by_list(Open)),
            (Free, by_list(Handled)),
            (Message(2, 20), (Some(Open), Some(Handled))),
            (Call(3, 20), (Some(Withdrawn), Some(Handled))),
            (Silence, by_message(Withdrawn)),
        ],
        // What a message has announced too, the agent does not end.
        vec![
            (Agent(9), by_list(Open)),
            (Message(0, 9), by_list(Open)),
            (Silence, by_list(Open)),
            (Call(1, 9), by_list(Withdrawn)),
        ],
        vec![(Message(0, 9), by_message(Open)), (Agent(9), by_message(Open)), (Silence, by_message(Open))],
        vec![(Agent(9), by_list(Open)), (Silence, (None, None))],
        // A user ends it for all sources, until AWS moves it.
        vec![
            (Message(0, 9), by_message(Open)),
            (List(0, 9), by_message(Open)),
            (Free, by_message(Handled)),
            (List(1, 9), by_message(Handled)),
            (Agent(9), by_message(Handled)),
            (Message(2, 20), by_message(Open)),
            (List(3, 20), by_message(Open)),
        ],
        vec![
            (List(0, 9), by_list(Open)),
            (Message(0, 9), by_list(Open)),
            (Free, by_list(Handled)),
            (Message(0, 9), by_list(Handled)),
            (Message(2, 20), (Some(Open), Some(Handled))),
            (List(3, 20), by_message(Open)),
        ],
    ];
    for row in rows {
        let mut node = Node { instance: listed(0, 0).instance, ..Node::for_tests("node-1") };
        for (number, (by, after)) in row.iter().enumerate() {
            if let Some(patch) = act(&mut node, *by) {
                apply(&mut node, &patch);
            }
            let work = |key| node.record.get(key).map(|known| known.work);
            let found = (work(notice(0, 0, false).key()), work(listed(0, 0).key()));
            assert_eq!(found, *after, "{number} of {row:?}\n{:?}", node.record.texts());
            assert_eq!((node.record.is_held(), &node.record.written()), (node.cordoned, node.record.texts()));
        }
    }
}

/// Both were received before either had a mark.
#[test]
fn a_message_and_a_list_that_cordon_at_once_have_one_record() {
    let mut node = Node { instance: listed(0, 0).instance, ..Node::for_tests("node-1") };
    let of = |notice: &Notice| {
        let message = notice.identity.ec2_id().map_or("m-1".into(), |id| id.to_string());
        Mark::new(notice.key(), "scheduled-change", at(0), &message).with_start(notice.start(), true)
    };
    let (message, list) = (notice(0, 9, false), listed(0, 9));
    for (first, second) in [(&message, &list), (&list, &message)] {
        assert!(!of(first).is_of_another(&node));
        let patch = of(first).patch(&node, &MarkSettings::default()).unwrap();
        let mut marked = node.clone();
        apply(&mut marked, &patch);
        assert!(of(second).is_of_another(&marked) && !of(first).is_of_another(&marked));
        assert!(!of(&listed(0, 20)).is_of_another(&marked), "it is another change");
        let other = Identity::of_change("arn:aws:health:eu-west-1::event/EC2/STOP/2".to_owned(), node.instance.clone());
        let other = message.clone().with_identity(other);
        assert_eq!(of(&other).is_of_another(&marked), first == &list, "a message joins no other message's record");
    }
    let planned = plan::patch(&plan::of(&list, LISTED).unwrap(), &node).unwrap();
    apply(&mut node, &planned);
    let joined = plan::patch(&plan::of(&message, "m-1").unwrap(), &node).unwrap();
    apply(&mut node, &joined);
    assert_eq!(node.record.all().count(), 1, "{:?}", node.record.texts());
    assert!(plan::fits(&plan::of(&message, "m-1").unwrap(), &node));
}

/// Work that finds another source's record at its cordon starts over: what asks before must then know that record, or the two would repeat
/// each other for ever.
#[test]
fn what_the_cordon_leaves_to_another_source_is_known_before() {
    let health = notice(5, 9, false);
    let change = ScheduledChange {
        code: "instance-stop".to_owned(),
        start: Some(at(9)),
        hard: true,
        withdrawn: false,
        is_issue: false,
    };
    let instance = health.instance.clone();
    let identity = Identity::of_change("instance-event-1".to_owned(), instance.clone());
    let listed = Notice::new(identity, instance, NoticeTime::Seen(at(5)), Detail::ScheduledChange(change));
    let states = [Work::Planned, Work::Open, Work::Ended, Work::Handled, Work::Withdrawn];
    let records = |message: &str| {
        let all = states.into_iter().flat_map(|work| [4, 5, 6].map(|since| (work, since)));
        let all = all.flat_map(|(work, since)| [8, 9].map(|start| (work, since, start)));
        let record = |(work, since, start)| NoticeRecord {
            work,
            start: Some(at(start)),
            ..NoticeRecord::new("scheduled-change".to_owned(), at(since), message.to_owned())
        };
        all.map(record).map(Some).chain([None]).collect::<Vec<_>>()
    };
    let mut found = 0;
    for first in records("m-1") {
        for second in records("instance-event-1") {
            let mut node = Node::for_tests("node-1");
            node.cordoned = true;
            for (key, record) in [(health.key(), &first), (listed.key(), &second)] {
                if let Some(record) = record {
                    node.record.insert(name(NOTICE_PREFIX, key), text(record));
                }
            }
            let is_of_another = |key, message: &str| {
                let mark = Mark::new(key, "scheduled-change", at(5), message).with_start(Some(at(9)), true);
                mark.is_of_another(&node)
            };
            let about = || format!("{first:?}\n{second:?}");
            // A copy that is older than the cancellation is late before.
            let is_late =
                first.as_ref().is_some_and(|first| first.work == Work::Withdrawn && first.since > Some(at(5)));
            if !is_late && is_of_another(health.key(), "m-1") {
                found += 1;
                assert!(handled::known(&node, &health).is_some(), "{}", about());
            }
            if is_of_another(listed.key(), "instance-event-1") {
                found += 1;
                let standing = handled::standing(&node, &listed, Some("instance-event-1"));
                assert_ne!(standing, Standing::Open, "{}", about());
            }
        }
    }
    assert!(found > 20, "{found}");
}

#[test]
fn a_record_with_more_sources_than_there_are_holds_its_node_as_it_is() {
    let mut node = Node::for_tests("node-1");
    let also: Vec<_> =
        (0..4).map(|n| format!(r#"{{"key":"000000000000000{n}","by":"node/maintenance/{n}"}}"#)).collect();
    let value = |also: &[String]| format!(r#"{{"v":1,"kind":"scheduled-change","also":[{}]}}"#, also.join(","));
    let name = name(NOTICE_PREFIX, notice(0, 0, false).key());
    node.record.insert(&name, value(&also[..3]));
    assert!(!node.record.notices().next().unwrap().1.is_unreadable());
    node.record.insert(&name, value(&also));
    assert!(node.record.notices().next().unwrap().1.is_unreadable());
}
