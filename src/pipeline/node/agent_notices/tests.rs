use super::*;
use crate::pipeline::event::{NoticeKey, NoticeTime};
use crate::pipeline::node::mark::Mark;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

const NOW: &str = "2026-11-24T22:00:00Z";
const ENDS: &str = "2026-11-24T22:01:30Z";

fn node(said: &[(&str, &str)]) -> Node {
    let mut node = Node::for_tests("node-1");
    for (kind, text) in said {
        node.record.insert(format!("ebbtide/says.{kind}"), *text);
    }
    node
}

fn given(node: &Node) -> Vec<Result<NodeNotice, InvalidAgentNotice>> {
    notices_of(node, at(NOW)).map(|(_, notice)| notice).collect()
}

fn spot() -> Node {
    node(&[("spot", &format!("{{\"what\":\"terminate\",\"at\":\"{ENDS}\"}}"))])
}

/// Puts the mark of a notice on the Node, as if a message with this id had brought it.
fn mark(node: &mut Node, key: NoticeKey, kind: &str, since: &str, message: &str) {
    let patch = Mark::new(key, kind, at(since), message).patch(node, &crate::pipeline::MarkSettings::default());
    let patch = patch.unwrap();
    for (name, value) in patch["metadata"]["annotations"].as_object().unwrap() {
        node.record.insert(name.clone(), value.as_str().unwrap());
    }
}

#[test]
fn each_kind_is_a_notice() {
    let change = r#"{"what":"instance-retirement","at":"2026-12-01T10:00:00Z","id":"instance-event-0123"}"#;
    let node = node(&[
        ("maintenance", change),
        ("rebalance", r#"{"what":"rebalance","at":"2026-11-24T21:00:00Z"}"#),
        ("spot", &format!("{{\"what\":\"hibernate\",\"at\":\"{ENDS}\"}}")),
        ("termination", r#"{"what":"terminate"}"#),
    ]);
    let given: Vec<_> = given(&node).into_iter().map(Result::unwrap).collect();
    let [maintenance, rebalance, spot, termination] = given.as_slice() else { panic!("{given:?}") };
    let listed = ("instance-event-0123", "instance-retirement");
    let as_listed = Notice::listed(listed, node.instance.clone(), Some(at("2026-12-01T10:00:00Z")), false, at(NOW));
    assert_eq!(maintenance.notice, as_listed, "as EC2 lists it");
    assert_eq!(maintenance.message, "node/maintenance/instance-event-0123");
    assert_eq!((&rebalance.notice.detail, rebalance.notice.at()), (&Detail::Rebalance, at("2026-11-24T21:00:00Z")));
    assert_eq!(spot.notice.detail, Detail::Spot { action: InstanceAction::Hibernate });
    assert_eq!((spot.notice.at(), &*spot.message), (at("2026-11-24T21:59:30Z"), "node/spot/2026-11-24T22:01:30Z"));
    assert_eq!(
        (&termination.notice.detail, &*termination.message),
        (&Detail::AsgTermination { sought: false }, "node/termination/")
    );
}

#[test]
fn what_is_not_as_the_agent_writes_it_is_no_notice() {
    let long = format!("{{\"what\":\"{}\"}}", "x".repeat(2000));
    for (kind, text) in [
        ("spot", ""),
        ("spot", "null"),
        ("spot", "[]"),
        ("spot", "{}"),
        ("spot", r#"{"what":"terminate"}"#),
        ("spot", r#"{"what":"reboot","at":"2026-11-24T22:01:30Z"}"#),
        ("spot", r#"{"what":"terminate","at":"soon"}"#),
        ("spot", r#"{"what":"terminate","at":"2026-11-24T22:01:30Z","id":"x"}"#),
        ("spot", r#"{"what":"terminate","at":"2026-11-24T22:01:30Z","more":1}"#),
        ("spot", r#"{"what":"terminate","what":"stop","at":"2026-11-24T22:01:30Z"}"#),
        ("spot", r#"{"what":"terminate","at":"2026-11-24T21:44:00Z"}"#),
        ("rebalance", r#"{"what":"rebalance"}"#),
        ("maintenance", r#"{"what":"instance-stop","at":"2026-12-01T10:00:00Z"}"#),
        ("maintenance", r#"{"what":"a b","at":"2026-12-01T10:00:00Z","id":"x"}"#),
        ("maintenance", r#"{"what":"instance-stop","at":"2026-12-01T10:00:00Z","id":"x/y"}"#),
        ("maintenance", r#"[{"what":"instance-stop","at":"2026-12-01T10:00:00Z","id":"x"},{}]"#),
        ("termination", r#"{"what":"terminate\n"}"#),
        ("termination", &long),
        ("weather", r#"{"what":"rain"}"#),
        ("", "{}"),
    ] {
        let node = node(&[(kind, text)]);
        let [Err(error)] = &given(&node)[..] else { panic!("{kind} {text}") };
        let error = error.to_string();
        assert!(!error.is_empty() && error.len() < 200 && !error.contains('\n'), "{error}");
    }
}

#[test]
fn a_time_ahead_is_now() {
    let node = node(&[("spot", r#"{"what":"terminate","at":"2036-11-24T22:01:30Z"}"#)]);
    assert_eq!(given(&node)[0].as_ref().unwrap().notice.at(), at(NOW));
}

#[test]
fn what_was_written_is_read() {
    let said = AgentNotice { what: "instance-stop".to_owned(), at: Some(at(ENDS)), id: "instance-event-1".to_owned() };
    let text = r#"{"what":"instance-stop","at":"2026-11-24T22:01:30Z","id":"instance-event-1"}"#;
    assert_eq!(AgentNotice::text(std::slice::from_ref(&said)), text);
    assert_eq!(AgentNotice::text(&[said.clone(), said.clone()]), format!("[{text},{text}]"));
    for all in [vec![said.clone()], vec![said.clone(), said.clone()]] {
        assert_eq!(AgentNotice::parse(AgentNoticeKind::Maintenance, &AgentNotice::text(&all)), Ok(all));
    }
    let many = AgentNotice::parse(AgentNoticeKind::Maintenance, &AgentNotice::text(&vec![said.clone(); 100])).unwrap();
    assert!(many.len() > 10 && many.iter().all(|one| *one == said), "{many:?}");
}

#[test]
fn a_notice_that_a_message_brought_is_only_noted() {
    let mut node = spot();
    let own = given(&node).remove(0).unwrap();
    assert_eq!(standing_of(&node, &own), Standing::Open);
    mark(&mut node, NoticeKey::of("event-1"), "spot", "2026-11-24T21:50:00Z", "m-1");
    assert_eq!(standing_of(&node, &own), Standing::Open, "another interruption, of ten minutes ago");
    mark(&mut node, NoticeKey::of("event-2"), "rebalance", "2026-11-24T21:59:25Z", "m-2");
    assert_eq!(standing_of(&node, &own), Standing::Open, "another kind");
    let key = own.notice.key();
    mark(&mut node, key, "spot", "2026-11-24T21:59:30Z", &own.message);
    assert_eq!(standing_of(&node, &own), Standing::Open, "its own: a takeover goes on");
    mark(&mut node, NoticeKey::of("event-3"), "spot", "2026-11-24T21:59:25Z", "m-3");
    assert_eq!(standing_of(&node, &own), Standing::Announced);
}

#[test]
fn a_node_that_a_renamed_kubelet_has_left_says_nothing_for_the_new_one() {
    let own = given(&spot()).remove(0).unwrap();
    let mut node = node(&[]);
    mark(&mut node, own.notice.key(), "spot", "2026-11-24T21:59:30Z", &own.message);
    for (ready, gone) in [(true, 0), (false, 1)] {
        let other = Arc::new(Node { ready, ..spot() });
        assert_eq!(taken_back(&node, &[other], at(NOW)).len(), gone, "it is ready: {ready}");
    }
}

#[test]
fn a_node_that_registers_again_withdraws_nothing_before_its_agent_speaks() {
    let own = given(&spot()).remove(0).unwrap();
    let condition = "node/condition/KernelReady=False";
    // The notices are of 21:59:30.
    for (created, now, gone) in [
        ("2026-11-24T21:59:30Z", "2026-11-24T21:59:40Z", 2),
        ("2026-11-24T21:59:31Z", "2026-11-24T21:59:40Z", 1),
        ("2026-11-24T21:59:31Z", "2026-11-24T22:11:30Z", 1),
        ("2026-11-24T21:59:31Z", "2026-11-24T22:11:31Z", 2),
    ] {
        let mut node = Node { created: Some(at(created)), ..node(&[]) };
        mark(&mut node, own.notice.key(), "spot", "2026-11-24T21:59:30Z", &own.message);
        mark(&mut node, NoticeKey::of("condition"), "node-condition", "2026-11-24T21:59:30Z", condition);
        assert_eq!(taken_back(&node, &[], at(now)).len(), gone, "{created} {now}");
    }
}

#[test]
fn what_is_no_longer_said_is_withdrawn_by_its_mark_alone() {
    let mut node = spot();
    let own = given(&node).remove(0).unwrap();
    mark(&mut node, own.notice.key(), "spot", "2026-11-24T21:59:30Z", &own.message);
    mark(&mut node, NoticeKey::of("event-1"), "spot", "2026-11-24T21:59:25Z", "m-1");
    assert_eq!(taken_back(&node, &[], at(NOW)), []);
    node.record.remove("ebbtide/says.spot");
    let gone = taken_back(&node, &[], at(NOW));
    assert_eq!(gone.len(), 1, "not that of the message");
    assert_eq!((&gone[0].notice.identity, gone[0].notice.is_withdrawn()), (&own.notice.identity, true));
    let others = [Arc::new(spot())];
    assert_eq!(taken_back(&node, &others, at(NOW)), [], "another Node of the instance says it");
    node.record.insert("ebbtide/says.spot", "{");
    assert_eq!(taken_back(&node, &[], at(NOW)), [], "what can't be read may be what is said");
    let change = Notice::listed(("instance-event-1", "instance-stop"), node.instance.clone(), None, false, at(NOW));
    let mut node = Node::for_tests("node-1");
    mark(&mut node, change.key(), "scheduled-change", NOW, "node/maintenance/instance-event-1");
    let gone = taken_back(&node, &[], at(NOW));
    assert_eq!((&gone[0].notice.identity, gone[0].notice.is_withdrawn()), (&change.identity, true));
}

/// Whatever the clocks say.
#[test]
fn a_withdrawal_removes_the_mark_of_the_node_s_word_unless_it_is_said_again() {
    let mut node = spot();
    let own = given(&node).remove(0).unwrap();
    let identity = own.notice.identity.clone();
    mark(&mut node, identity.key(), "spot", "2036-11-24T21:59:30Z", &own.message);
    assert_eq!(taken_back_marks(&node, &identity), None, "it says so");
    node.record.remove("ebbtide/says.spot");
    assert!(taken_back_marks(&node, &identity).is_some());
    node.record.edit(|texts| {
        let message = texts.iter_mut().find(|(name, _)| name.starts_with("ebbtide/notice.")).unwrap().1;
        *message = message.replace(&own.message, "m-1");
    });
    assert_eq!(taken_back_marks(&node, &identity), None, "a message has left it");
}

#[test]
fn an_event_about_the_same_is_known() {
    let node = spot();
    let own = given(&node).remove(0).unwrap().notice;
    let identity = Identity::Event { kind: NoticeKind::Spot, id: "event-1".to_owned() };
    let event =
        |at: Timestamp| own.revised(NoticeTime::Announced(at), own.detail.clone()).with_identity(identity.clone());
    assert_eq!(reported_copy(&node, &event(at("2026-11-24T21:59:28Z")), at(NOW)), Some(own.clone()));
    assert_eq!(reported_copy(&node, &event(at("2026-11-24T21:50:00Z")), at(NOW)), None);
}
