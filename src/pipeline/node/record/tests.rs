//! The table of transitions, as the patches of all writers make them.

use super::*;
use crate::fact::UndoReason;
use crate::pipeline::event::{Detail, Identity, InstanceId, Notice, NoticeTime, ScheduledChange};
use crate::pipeline::node::mark::{Mark, MarkSettings};
use crate::pipeline::node::release::NodeRelease;
use crate::pipeline::node::{Node, handled, plan};
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
