//! Paths through the steps, for notices of all sorts.

use super::super::policy::{
    Actions, Admission, AtMost, ForLoadBalancers, Heartbeats, Holds, HookSource, OnFailed, OnUncordon, PerKind,
    ShiftedResources, Verify, WaitPolicy, Wave,
};
use super::*;
use crate::pipeline::event::{
    Identity, InstanceAction, InstanceId, InstanceState, NoticeKind, NoticeTime, ScheduledChange,
};

const S: Duration = Duration::from_secs(1);

fn policy() -> Policy {
    let mut actions = Actions::default();
    actions.set(NoticeKind::AsgLaunch, Action::Ready);
    Policy {
        waits: WaitPolicy {
            delay: PerKind::all(None),
            max_replacements: AtMost::Percent(10),
            waves: Vec::new(),
            zonal_shift: ShiftedResources::default(),
            hold: PerKind::all(Holds::default()),
            complete_after: Duration::ZERO,
            volumes: Duration::ZERO,
            load_balancers: ForLoadBalancers::Nothing,
        },
        admission: Admission { max_draining: None, verify: Verify::Unusual, asks_aws: true },
        actions,
        conditions: Arc::default(),
        health_issues: [("DEGRADED".to_owned(), Action::Cordon)].into(),
        lead: Some(3600 * S),
        drain_timeout: PerKind::all(None),
        settle: Duration::ZERO,
        uncordon_after: None,
        work_signs: Arc::default(),
        mark_settings: crate::pipeline::node::mark::MarkSettings::default(),
        out_of_service_taint: false,
        on_failed_drain: OnFailed::Leave,
        on_uncordon: OnUncordon::Leave,
        on_failed_launch: OnFailed::Abandon,
        startup_taints: Vec::new(),
        heartbeats: Heartbeats::Auto,
        registration_grace: 30 * S,
        require_tag: false,
        ignored_hooks: vec!["theirs".to_owned()],
        hooks: HookSource::Messages,
        dry_run: false,
    }
}

fn node() -> Node {
    Node::for_tests("node")
}

fn hook(name: &str, pool: Option<WarmPool>) -> Hook {
    Hook {
        group: "group".to_owned(),
        name: name.to_owned(),
        token: Some("token".to_owned()),
        pool,
        replaces_root_volume: false,
        direct: false,
    }
}

const SPOT: Detail = Detail::Spot { action: InstanceAction::Terminate };

/// The names of the steps that `detail` leads to. The instance has `node`; `answer` gives findings that differ from those of work
/// that succeeds.
fn path(
    policy: &Policy,
    detail: Detail,
    node: Option<&Arc<Node>>,
    answer: impl Fn(&Step<'_>) -> Option<Finding>,
) -> String {
    let clock = Clock::showing("2026-11-21T12:00:00Z".parse().unwrap());
    let instance = InstanceId::new("i-00000001").unwrap();
    let identity = Identity::HealthEvent { arn: "arn".to_owned(), instance: instance.clone() };
    let notice = Notice::new(identity, instance, NoticeTime::Announced(clock.now()), detail);
    let mut sequence = Sequence::new(policy, clock, &notice, "message");
    let (mut finding, mut names) = (Finding::Received, Vec::new());
    while names.len() < 40 {
        let step = sequence.next(
            finding,
            Present {
                now: Instant::now(),
                node: node.map(|node| &**node),
                deadline: None,
                shifted: false,
                waited: None,
            },
        );
        let debug = format!("{step:?}");
        if let Step::End(_) | Step::Complete(_) = step {
            names.push(debug);
        } else {
            names.extend(debug.split(|c: char| !c.is_alphabetic()).next().map(str::to_owned));
        }
        finding = match answer(&step) {
            Some(finding) => finding,
            None => match step {
                Step::FindOwner { .. } => Finding::Owner(Some(Ownership::Ours)),
                Step::MarkOutOfService { .. } => Finding::OutOfService,
                Step::LookUpHook(_) => Finding::HookTimes(HookTimes::of(300 * S)),
                Step::Begin { .. } => Finding::Begun,
                Step::AwaitReady { .. } => Finding::Launched(node.cloned()),
                Step::AskHook(node) => Finding::HookAsked(node, false),
                Step::Plan { .. } => Finding::Planned(true),
                Step::ReleaseMarks { .. } => Finding::MarksReleased(true),
                Step::FindNode { .. } => node.map_or(Finding::NoNode, |node| Finding::Node(Arc::clone(node))),
                Step::AwaitNode { .. } | Step::AwaitSuccessor(..) => Finding::NoNodeInTime,
                Step::Admit { .. } => Finding::Admitted,
                Step::Cordon { target, .. } => Finding::Cordoned(target),
                Step::Delay { target, .. } | Step::Settle { target, .. } => Finding::Delayed(target),
                Step::Drain(_) => Finding::Ended(NoticeOutcome::Drained),
                Step::Wait(..) => Finding::Waited,
                Step::Complete(_) => Finding::Completed(true),
                Step::LeaveHook | Step::LeaveUnprovenHook => Finding::HookLeft,
                Step::End(_) => return names.join(" "),
            },
        };
    }
    panic!("it does not end: {names:?}")
}

/// The same for a Node that is there and work that succeeds.
fn path_of(policy: &Policy, detail: Detail) -> String {
    path(policy, detail, Some(&Arc::new(node())), |_| None)
}

#[test]
fn a_drain_with_and_without_a_hook() {
    assert_eq!(path_of(&policy(), SPOT), "FindOwner Begin FindNode Cordon Drain End(Drained)");
    assert_eq!(
        path_of(&policy(), Detail::AsgTerminate(hook("hook", None))),
        "FindOwner LookUpHook Begin FindNode Cordon Drain Complete(Continue) End(Drained)"
    );
}

#[test]
fn waits_stand_before_the_drain_and_before_the_completion() {
    let mut policy = policy();
    policy.waits.complete_after = 20 * S;
    policy.waits.delay.set(NoticeKind::AsgTerminate, Some(10 * S));
    let detail = || Detail::AsgTerminate(hook("hook", None));
    assert_eq!(
        path_of(&policy, detail()),
        "FindOwner LookUpHook Begin FindNode Cordon Delay Drain Wait Complete(Continue) End(Drained)"
    );
    let blocked = |step: &Step<'_>| matches!(step, Step::Drain(_)).then_some(Finding::Ended(NoticeOutcome::Blocked));
    assert_eq!(
        path(&policy, detail(), Some(&Arc::new(node())), blocked),
        "FindOwner LookUpHook Begin FindNode Cordon Delay Drain LeaveHook End(Blocked)",
        "a hook is held back after a drain only"
    );
}

#[test]
fn only_what_has_time_waits_in_a_wave_of_its_node() {
    let mut policy = policy();
    policy.waits.waves = vec![Wave { label: "zone".into(), at_most: AtMost::Number(1) }];
    let terminate = Detail::AsgTerminate(hook("hook", None));
    assert!(!path_of(&policy, terminate.clone()).contains("Delay"), "the Node has no such label");
    let mut node = node();
    node.labels.insert("zone".to_owned(), "a".to_owned());
    let node = Arc::new(node);
    let waits = |policy: &Policy, detail| {
        let marked = std::cell::Cell::new(false);
        let path = path(policy, detail, Some(&node), |step| {
            marked.set(marked.get() || format!("{step:?}").contains("place: Some(Waits)"));
            None
        });
        assert_eq!(marked.get(), path.contains("Delay"), "the mark says it: {path}");
        marked.get()
    };
    assert!(waits(&policy, terminate.clone()));
    assert!(!waits(&policy, SPOT) && !waits(&policy, Detail::Rebalance), "no time, and no drain");
    policy.dry_run = true;
    assert!(!waits(&policy, terminate), "its place would be on no Node");
}

#[test]
fn a_node_is_touched_only_once_its_notice_is_admitted() {
    let mut policy = policy();
    policy.admission.verify = Verify::Always;
    assert_eq!(path_of(&policy, SPOT), "FindOwner Begin FindNode Admit FindNode Cordon Drain End(Drained)");
    policy.actions.set(NoticeKind::Rebalance, Action::Drain);
    let of_rebalance = path_of(&policy, Detail::Rebalance);
    assert_eq!(of_rebalance, "FindOwner Begin FindNode Cordon Drain End(Drained)", "AWS confirms none");
    policy.admission = Admission { max_draining: Some(AtMost::Number(3)), verify: Verify::Unusual, asks_aws: true };
    let of_rebalance = path_of(&policy, Detail::Rebalance);
    assert_eq!(of_rebalance, "FindOwner Begin FindNode Admit FindNode Cordon Drain End(Drained)");
    policy.on_failed_drain = OnFailed::Continue;
    let refused = |step: &Step<'_>| matches!(step, Step::Admit { .. }).then_some(Finding::NotAdmitted);
    assert_eq!(
        path(&policy, Detail::AsgTerminate(hook("hook", None)), Some(&Arc::new(node())), refused),
        "FindOwner LookUpHook Begin FindNode Admit LeaveHook End(NotAdmitted)",
        "whatever is done after a failed drain"
    );
    policy.actions.set(NoticeKind::Spot, Action::Cordon);
    assert_eq!(path_of(&policy, SPOT), "FindOwner Begin FindNode Cordon End(Cordoned)", "nothing is drained");
}

#[test]
fn what_is_settled_at_once_asks_nobody() {
    assert_eq!(path_of(&policy(), Detail::AsgTerminate(hook("theirs", None))), "End(NotOurs)");
    let mut policy = policy();
    policy.actions.set(NoticeKind::Spot, Action::Ignore);
    assert_eq!(path_of(&policy, SPOT), "End(Ignored)");
    policy.actions.set(NoticeKind::Spot, Action::Report);
    assert_eq!(path_of(&policy, SPOT), "FindOwner End(Reported)");
    policy.actions.set(NoticeKind::Spot, Action::Cordon);
    assert_eq!(path_of(&policy, SPOT), "FindOwner Begin FindNode Cordon End(Cordoned)");
}

#[test]
fn the_owner_decides() {
    for (owner, expected) in [(None, "FindOwner End(Failed)"), (Some(Ownership::Foreign), "FindOwner End(NotOurs)")] {
        let answer = |step: &Step<'_>| matches!(step, Step::FindOwner { .. }).then_some(Finding::Owner(owner));
        assert_eq!(path(&policy(), SPOT, None, answer), expected);
    }
}

#[test]
fn an_excluded_node_is_left_alone_and_its_hook_too() {
    let excluded = Arc::new(Node { ignored: true, ..node() });
    assert_eq!(path(&policy(), SPOT, Some(&excluded), |_| None), "FindOwner End(Excluded)");
    // It is excluded while the hook is looked up.
    let late = |step: &Step<'_>| match step {
        Step::FindNode { .. } => Some(Finding::Node(Arc::clone(&excluded))),
        _ => None,
    };
    assert_eq!(
        path(&policy(), Detail::AsgTerminate(hook("hook", None)), None, late),
        "FindOwner LookUpHook Begin FindNode LeaveHook End(Excluded)"
    );
}

#[test]
fn an_instance_that_runs_no_more_is_not_drained() {
    let stopped = || Detail::StateChange { state: InstanceState::Stopped };
    assert_eq!(path_of(&policy(), stopped()), "FindOwner End(NothingToDrain)");
    let tainting = Policy { out_of_service_taint: true, ..policy() };
    assert_eq!(path_of(&tainting, stopped()), "FindOwner MarkOutOfService End(NothingToDrain)");
}

#[test]
fn an_instance_without_a_node_is_waited_for_unless_it_is_in_a_warm_pool() {
    let terminating = |pool| path(&policy(), Detail::AsgTerminate(hook("hook", pool)), None, |_| None);
    let (begin, end) = ("FindOwner LookUpHook Begin FindNode", "Complete(Continue) End(NothingToDrain)");
    assert_eq!(terminating(None), format!("{begin} AwaitNode {end}"));
    assert_eq!(terminating(Some(WarmPool::From)), format!("{begin} {end}"));
}

#[test]
fn a_node_that_is_replaced_is_followed_for_a_while() {
    let there = Arc::new(node());
    let gone = |step: &Step<'_>| match step {
        Step::Drain(target) => Some(Finding::NodeGone(Arc::clone(&target.node), NoticeOutcome::Drained)),
        _ => None,
    };
    let once = "Cordon Drain AwaitSuccessor";
    assert_eq!(path(&policy(), SPOT, Some(&there), gone), format!("FindOwner Begin FindNode {once} End(Drained)"));
    let for_ever = |step: &Step<'_>| match step {
        Step::AwaitSuccessor(node, _) => Some(Finding::Node(Arc::clone(node))),
        step => gone(step),
    };
    let followed = [once; MAX_NODES - 1].join(" ");
    assert_eq!(
        path(&policy(), SPOT, Some(&there), for_ever),
        format!("FindOwner Begin FindNode {followed} Cordon Drain End(Drained)")
    );
}

#[test]
fn a_launch_ends_with_its_node_in_service() {
    let launch = |pool, node| path(&policy(), Detail::AsgLaunch(hook("hook", pool)), node, |_| None);
    let (ready, begin) = (Arc::new(node()), "FindOwner LookUpHook Begin AwaitReady");
    assert_eq!(launch(None, Some(&ready)), format!("{begin} Complete(Continue) End(Ready)"));
    assert_eq!(
        launch(Some(WarmPool::From), Some(&ready)),
        format!("{begin} ReleaseMarks Complete(Continue) End(Ready)")
    );
    assert_eq!(launch(None, None), format!("{begin} Complete(Abandon) End(NotReady)"));
    assert_eq!(launch(Some(WarmPool::To), None), format!("{begin} Complete(Continue) End(NotReady)"));
}

#[test]
fn a_withdrawn_change_takes_its_mark_back() {
    let change = ScheduledChange { code: String::new(), start: None, hard: true, withdrawn: true, is_issue: false };
    let withdrawn = || Detail::ScheduledChange(change.clone());
    assert_eq!(path_of(&policy(), withdrawn()), "FindNode ReleaseMarks End(Withdrawn)");
    assert_eq!(path(&policy(), withdrawn(), None, |_| None), "FindNode End(Withdrawn)");
    // Another replica may wait for its Node.
    let start = Some("2026-11-21T12:10:00Z".parse().unwrap());
    let ahead = Detail::ScheduledChange(ScheduledChange { start, ..change.clone() });
    assert_eq!(path(&policy(), ahead, None, |_| None), "FindNode FindOwner AwaitNode End(Withdrawn)");
    let fails = |step: &Step<'_>| matches!(step, Step::ReleaseMarks { .. }).then_some(Finding::MarksReleased(false));
    let node = Arc::new(node());
    assert_eq!(path(&policy(), withdrawn(), Some(&node), fails), "FindNode ReleaseMarks End(Failed)");
}

#[test]
fn a_change_is_drained_for_shortly_before_it_begins() {
    let change = |code: &str, start: &str| {
        let (code, start) = (code.to_owned(), start.parse().ok());
        Detail::ScheduledChange(ScheduledChange { code, start, hard: false, withdrawn: false, is_issue: false })
    };
    let (now, later) =
        ("FindOwner Begin FindNode Cordon Drain End(Drained)", "FindOwner Begin FindNode Plan End(Planned)");
    assert_eq!(path_of(&policy(), change("AWS_EC2_SYSTEM_REBOOT_SCHEDULED", "2026-11-21T13:00:01Z")), later);
    assert_eq!(path_of(&policy(), change("AWS_EC2_SYSTEM_REBOOT_SCHEDULED", "2026-11-21T13:00:00Z")), now);
    assert_eq!(path_of(&policy(), change("AWS_EC2_SYSTEM_REBOOT_SCHEDULED", "unknown")), now);
    assert_eq!(path_of(&policy(), change("AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED", "2026-12-21T13:00:00Z")), now);
    let at_once = Policy { lead: None, ..policy() };
    assert_eq!(path_of(&at_once, change("AWS_EC2_SYSTEM_REBOOT_SCHEDULED", "2026-12-21T13:00:00Z")), now);
}

#[test]
fn the_code_of_a_fault_decides_its_action() {
    let fault = |code: &str| {
        let code = code.to_owned();
        Detail::ScheduledChange(ScheduledChange { code, start: None, hard: false, withdrawn: false, is_issue: true })
    };
    assert_eq!(path_of(&policy(), fault("DEGRADED")), "FindOwner Begin FindNode Cordon End(Cordoned)");
    assert_eq!(path_of(&policy(), fault("OTHER")), "End(Ignored)");
}

#[test]
fn a_crash_leaves_the_hook_to_the_next_receiver() {
    let crash = |step: &Step<'_>| matches!(step, Step::Drain(_)).then_some(Finding::Ended(NoticeOutcome::Crashed));
    let detail = Detail::AsgTerminate(hook("hook", None));
    assert_eq!(
        path(&policy(), detail, Some(&Arc::new(node())), crash),
        "FindOwner LookUpHook Begin FindNode Cordon Drain End(Crashed)"
    );
}

#[test]
fn a_hook_that_could_not_be_completed_is_the_outcome() {
    let fails = |step: &Step<'_>| matches!(step, Step::Complete(_)).then_some(Finding::Completed(false));
    let path = path(&policy(), Detail::AsgTerminate(hook("hook", None)), Some(&Arc::new(node())), fails);
    assert!(path.ends_with("Complete(Continue) End(HookFailed)"), "{path}");
}
