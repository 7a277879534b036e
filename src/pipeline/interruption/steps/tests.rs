//! Paths through the steps, for notices of all sorts.

use super::super::known::KnownHook;
use super::super::limits::{Admission, AtMost, DrainLimit, Verify};
use super::super::policy::{
    Actions, ForLoadBalancers, Heartbeats, Holds, HookSource, OnFailed, OnUncordon, PerKind, ShiftedResources,
    WaitPolicy, Wave,
};
use super::super::times::HookTimes;
use super::*;
use crate::fact::Remedy;
use crate::pipeline::drain::{AtDeadline, DrainTerms};
use crate::pipeline::event::{
    Identity, InstanceAction, InstanceId, InstanceState, NoticeKind, NoticeTime, ScheduledChange,
};

const S: Duration = Duration::from_secs(1);

fn policy() -> Policy {
    let mut actions = Actions::default();
    actions.set(NoticeKind::AsgLaunch, Action::Ready);
    Policy {
        pool: None,
        drain: DrainTerms { at_deadline: AtDeadline::Delete, pod_grace: None, surge: None },
        waits: WaitPolicy {
            delay: PerKind::all(None),
            max_replacements: AtMost::Percent(10),
            terminate_first: false,
            waves: Vec::new(),
            own_waves: false,
            zonal_shift: ShiftedResources::default(),
            hold: PerKind::all(Holds::default()),
            complete_after: Duration::ZERO,
            volumes: Duration::ZERO,
            load_balancers: ForLoadBalancers::Nothing,
        },
        ec2_poll_interval: None,
        admission: Admission { limit: DrainLimit::None, verify: Verify::Unusual, asks_aws: true },
        actions,
        conditions: Arc::default(),
        health_issues: [("DEGRADED".to_owned(), Action::Cordon)].into(),
        lead: Some(3600 * S),
        drain_timeout: PerKind::all(None),
        at_timeout: PerKind::all(AtDeadline::Leave),
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

/// The names of the steps that `detail` leads to. The instance has `node`; `answer` gives results that differ from those of work that
/// succeeds.
fn path(
    policy: &Policy,
    detail: Detail,
    node: Option<&Arc<Node>>,
    answer: impl Fn(&Step<'_>) -> Option<Progress>,
) -> String {
    path_from(policy, detail, node, Owner::Found(Ownership::Ours), answer)
}

/// The same for an instance with this owner.
fn path_from(
    policy: &Policy,
    detail: Detail,
    node: Option<&Arc<Node>>,
    owner: Owner,
    answer: impl Fn(&Step<'_>) -> Option<Progress>,
) -> String {
    let clock = Clock::showing("2026-11-21T12:00:00Z".parse().unwrap());
    let instance = InstanceId::new("i-00000001").unwrap();
    let identity = Identity::HealthEvent { arn: "arn".to_owned(), instance: instance.clone() };
    let notice = Notice::new(identity, instance, NoticeTime::Announced(clock.now()), detail);
    let steps = Steps { policy, clock, notice: &notice, message: "message" };
    let mut known = Known { node: node.cloned(), ..Known::received(Instant::now()) };
    let mut names = Vec::new();
    while names.len() < 40 {
        let now = Instant::now();
        let step = steps.next(&known, now);
        assert_eq!(steps.next(&known, now), step, "it follows from what is known");
        let debug = format!("{step:?}");
        match step {
            Step::End(_) | Step::EndHook(_) => names.push(debug),
            // The outcome shows in the end.
            Step::EndWork(_) => {}
            _ => names.extend(debug.split(|c: char| !c.is_alphabetic()).next().map(str::to_owned)),
        }
        let progress = answer(&step).unwrap_or_else(|| match step {
            Step::MarkOutOfService { .. } => Progress::Ended(NoticeOutcome::NothingToDrain),
            Step::FindOwner { .. } | Step::End(_) => known.progress.clone(),
            Step::Begin(hook) => {
                let times = hook.map(|_| HookTimes::of(300 * S));
                let deadline = policy.deadline(&notice, None, times, &clock, now);
                known.hook = times.map(|times| KnownHook { deadline, times });
                Progress::Begun
            }
            Step::AwaitReady { .. } => node.cloned().map_or(Progress::NoNodeInTime, Progress::Found),
            Step::AskHook(node) => Progress::Waiting(node),
            Step::Plan { .. } => Progress::Ended(NoticeOutcome::Planned),
            Step::ReleaseMarks { .. } => Progress::Released(true),
            Step::FindNode(NodeSearch { awaits: AwaitedNode::None, .. }) => {
                node.cloned().map_or(Progress::NoNode, Progress::Found)
            }
            Step::FindNode(_) => Progress::NoNodeInTime,
            Step::Admit { .. } => Progress::Admitted,
            Step::Cordon { target, .. } => Progress::Cordoned(target),
            Step::Delay { target, .. } => Progress::Delayed(target),
            Step::Drain { .. } => Progress::Ended(NoticeOutcome::Drained),
            Step::EndWork(outcome) => Progress::Ended(outcome),
            Step::Wait(_) => Progress::Waited,
            Step::EndHook(HookEnding::LeaveUnproven) => Progress::HookEnded(NoticeOutcome::NotOurs),
            Step::EndHook(_) => Progress::HookEnded(known.outcome),
            Step::Remedy { remedy, .. } => Progress::Remedied(remedy),
        });
        if names.last().is_some_and(|name| name.starts_with("End(")) {
            return names.join(" ");
        }
        if names.last().is_some_and(|name| name == "FindOwner") {
            known.owner = owner;
        }
        known.advance(progress, now);
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
        "FindOwner Begin FindNode Cordon Drain EndHook(Complete(Continue)) End(Drained)"
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
        "FindOwner Begin FindNode Cordon Delay Drain Wait EndHook(Complete(Continue)) End(Drained)"
    );
    let blocked =
        |step: &Step<'_>| matches!(step, Step::Drain { .. }).then_some(Progress::Ended(NoticeOutcome::Blocked));
    assert_eq!(
        path(&policy, detail(), Some(&Arc::new(node())), blocked),
        "FindOwner Begin FindNode Cordon Delay Drain EndHook(Leave) End(Blocked)",
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
    let limit = DrainLimit::Strict(AtMost::Number(3));
    policy.admission = Admission { limit, verify: Verify::Unusual, asks_aws: true };
    let of_rebalance = path_of(&policy, Detail::Rebalance);
    assert_eq!(of_rebalance, "FindOwner Begin FindNode Admit FindNode Cordon Drain End(Drained)");
    policy.on_failed_drain = OnFailed::Continue;
    let refused =
        |step: &Step<'_>| matches!(step, Step::Admit { .. }).then_some(Progress::Ended(NoticeOutcome::NotAdmitted));
    assert_eq!(
        path(&policy, Detail::AsgTerminate(hook("hook", None)), Some(&Arc::new(node())), refused),
        "FindOwner Begin FindNode Admit EndHook(Leave) End(NotAdmitted)",
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
    let unproven = Ownership::Unproven { launched: None };
    for (owner, detail, expected) in [
        (Owner::NotFound, SPOT, "FindOwner End(Failed)"),
        (Owner::Found(Ownership::Foreign), SPOT, "FindOwner End(NotOurs)"),
        (Owner::Found(unproven), SPOT, "FindOwner Begin FindNode FindNode End(NothingToDrain)"),
        (
            Owner::Found(unproven),
            Detail::AsgTerminate(hook("hook", None)),
            "FindOwner EndHook(LeaveUnproven) End(NotOurs)",
        ),
    ] {
        assert_eq!(path_from(&policy(), detail, None, owner, |_| None), expected);
    }
}

#[test]
fn an_excluded_node_is_left_alone_and_its_hook_too() {
    let excluded = Arc::new(Node { ignored: true, ..node() });
    assert_eq!(path(&policy(), SPOT, Some(&excluded), |_| None), "FindOwner End(Excluded)");
    // It is excluded while the hook is looked up.
    let late = |step: &Step<'_>| match step {
        Step::FindNode(_) => Some(Progress::Found(Arc::clone(&excluded))),
        _ => None,
    };
    assert_eq!(
        path(&policy(), Detail::AsgTerminate(hook("hook", None)), None, late),
        "FindOwner Begin FindNode EndHook(Leave) End(Excluded)"
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
    let (begin, end) = ("FindOwner Begin FindNode", "EndHook(Complete(Continue)) End(NothingToDrain)");
    assert_eq!(terminating(None), format!("{begin} FindNode {end}"));
    assert_eq!(terminating(Some(WarmPool::From)), format!("{begin} {end}"));
}

#[test]
fn a_node_that_is_replaced_is_followed_for_a_while() {
    let there = Arc::new(node());
    let gone = |step: &Step<'_>| match step {
        Step::Drain { target, .. } => Some(Progress::Gone(Arc::clone(&target.node), NoticeOutcome::Drained)),
        _ => None,
    };
    let once = "Cordon Drain FindNode";
    assert_eq!(path(&policy(), SPOT, Some(&there), gone), format!("FindOwner Begin FindNode {once} End(Drained)"));
    let for_ever = |step: &Step<'_>| match step {
        Step::FindNode(NodeSearch { awaits: AwaitedNode::Successor(node), .. }) => {
            Some(Progress::Found(Arc::clone(node)))
        }
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
    let (ready, begin) = (Arc::new(node()), "FindOwner Begin AwaitReady");
    assert_eq!(launch(None, Some(&ready)), format!("{begin} EndHook(Complete(Continue)) End(Ready)"));
    assert_eq!(
        launch(Some(WarmPool::From), Some(&ready)),
        format!("{begin} ReleaseMarks EndHook(Complete(Continue)) End(Ready)")
    );
    assert_eq!(launch(None, None), format!("{begin} EndHook(Complete(Abandon)) End(NotReady)"));
    assert_eq!(launch(Some(WarmPool::To), None), format!("{begin} EndHook(Complete(Continue)) End(NotReady)"));
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
    assert_eq!(path(&policy(), ahead, None, |_| None), "FindNode FindOwner FindNode End(Withdrawn)");
    let fails = |step: &Step<'_>| matches!(step, Step::ReleaseMarks { .. }).then_some(Progress::Released(false));
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
    let crash = |step: &Step<'_>| matches!(step, Step::Drain { .. }).then_some(Progress::Ended(NoticeOutcome::Crashed));
    let detail = Detail::AsgTerminate(hook("hook", None));
    assert_eq!(
        path(&policy(), detail, Some(&Arc::new(node())), crash),
        "FindOwner Begin FindNode Cordon Drain End(Crashed)"
    );
}

#[test]
fn a_hook_that_could_not_be_completed_is_the_outcome() {
    let fails =
        |step: &Step<'_>| matches!(step, Step::EndHook(_)).then_some(Progress::HookEnded(NoticeOutcome::HookFailed));
    let path = path(&policy(), Detail::AsgTerminate(hook("hook", None)), Some(&Arc::new(node())), fails);
    assert!(path.ends_with("EndHook(Complete(Continue)) End(HookFailed)"), "{path}");
}

#[test]
fn work_that_starts_again_asks_for_the_owner_once() {
    let mut known = Known::received(Instant::now());
    for (owner, kept) in [
        (Owner::Found(Ownership::Ours), true),
        (Owner::Found(Ownership::Unproven { launched: None }), false),
        (Owner::NotFound, false),
    ] {
        known.owner = owner;
        known.advance(Progress::Begun, Instant::now());
        let again = known.restarted(Instant::now());
        assert_eq!(again.progress, Progress::Received);
        assert_eq!(again.owner == owner, kept, "a copy of the message or another try may find more about {owner:?}");
    }
}

/// Returns the results that a step may have.
fn results(step: &Step<'_>, nodes: &[Arc<Node>], known: &Known) -> Vec<Progress> {
    let ended = [NoticeOutcome::Drained, NoticeOutcome::Blocked, NoticeOutcome::Crashed, NoticeOutcome::Uncordoned];
    let ended = || ended.into_iter().map(Progress::Ended);
    let found = || nodes.iter().cloned().map(Progress::Found);
    let gone = |node: &Arc<Node>| Progress::Gone(Arc::clone(node), NoticeOutcome::NothingToDrain);
    match step.clone() {
        Step::FindOwner { .. } => vec![known.progress.clone()],
        Step::MarkOutOfService { .. } => vec![Progress::Ended(NoticeOutcome::NothingToDrain)],
        Step::Begin(_) => vec![Progress::Begun],
        Step::AwaitReady { .. } => found().chain([Progress::NoNodeInTime, Progress::Begun]).collect(),
        Step::FindNode(NodeSearch { awaits: AwaitedNode::None, .. }) => {
            found().chain([Progress::NoNode, Progress::NodesUnknown]).collect()
        }
        Step::FindNode(_) => found().chain([Progress::NoNodeInTime, Progress::NodesUnknown]).collect(),
        Step::AskHook(node) => vec![Progress::Waiting(node), Progress::ActionOver],
        Step::ReleaseMarks { .. } => vec![Progress::Released(true), Progress::Released(false)],
        Step::Plan { node, .. } => vec![Progress::Ended(NoticeOutcome::Planned), Progress::Received, gone(&node)],
        Step::Admit { node, .. } => {
            let refused = Progress::Ended(NoticeOutcome::NotAdmitted);
            [Progress::Admitted, refused].into_iter().chain(node.as_ref().map(gone)).collect()
        }
        Step::Cordon { target, .. } => {
            let gone = gone(&target.node);
            ended().chain([Progress::Cordoned(target), gone]).collect()
        }
        Step::Delay { target, .. } => {
            ended().chain([Progress::Cordoned(target.clone()), Progress::Delayed(target)]).collect()
        }
        Step::Drain { target, .. } => ended().chain([gone(&target.node)]).collect(),
        Step::EndWork(outcome) => vec![Progress::Ended(outcome)],
        Step::Wait(_) => vec![Progress::Waited, known.progress.clone(), Progress::Ended(NoticeOutcome::Uncordoned)],
        Step::EndHook(_) => vec![Progress::HookEnded(known.outcome), Progress::HookEnded(NoticeOutcome::HookFailed)],
        Step::Remedy { remedy, .. } => vec![Progress::Remedied(remedy), Progress::Ended(NoticeOutcome::Uncordoned)],
        Step::End(_) => Vec::new(),
    }
}

/// A policy with any of the settings that make steps.
fn any_policy(random: &mut fastrand::Rng) -> Policy {
    let mut policy = policy();
    let actions = [Action::Drain, Action::Cordon, Action::Report, Action::Ignore, Action::Replace, Action::Reboot];
    for kind in NoticeKind::ALL.into_iter().filter(|kind| *kind != NoticeKind::AsgLaunch) {
        policy.actions.set(kind, actions[random.usize(..actions.len())]);
    }
    let limits = [DrainLimit::None, DrainLimit::Shaping, DrainLimit::Strict(AtMost::Number(1))];
    policy.admission.limit = limits[random.usize(..limits.len())];
    policy.admission.verify = if random.bool() { Verify::Always } else { Verify::Unusual };
    policy.out_of_service_taint = random.bool();
    policy.waits.terminate_first = random.bool();
    policy.dry_run = random.u8(..4) == 0;
    policy.settle = u32::from(random.u8(..2)) * S;
    policy.waits.complete_after = u32::from(random.u8(..2)) * S;
    policy.waits.delay = PerKind::all(random.bool().then_some(S));
    policy
}

fn any_detail(random: &mut fastrand::Rng) -> Detail {
    let pool = [None, Some(WarmPool::From), Some(WarmPool::To)][random.usize(..3)];
    let start = [None, Some("2026-11-21T12:10:00Z"), Some("2026-11-23T12:00:00Z")][random.usize(..3)];
    match random.u8(..9) {
        0 => SPOT,
        1 => Detail::Rebalance,
        2 => Detail::AsgLaunch(hook("hook", pool)),
        3 => Detail::StateChange { state: InstanceState::Stopped },
        4 => Detail::AsgTermination { sought: random.bool() },
        5 => Detail::ScheduledChange(ScheduledChange {
            code: "AWS_EC2_SYSTEM_REBOOT_SCHEDULED".to_owned(),
            start: start.map(|start| start.parse().unwrap()),
            hard: random.bool(),
            withdrawn: random.bool(),
            is_issue: false,
        }),
        6 => Detail::StatusCheck("system"),
        _ => Detail::AsgTerminate(Hook { replaces_root_volume: random.u8(..4) == 0, ..hook("hook", pool) }),
    }
}

/// Returns what is done about a drained node, and for how long.
fn remedy(action: Action, outcome: NoticeOutcome, notes: &[(&str, &str)]) -> Option<(Remedy, u64)> {
    remedy_after(None, action, outcome, notes)
}

/// The same after this remedy.
fn remedy_after(
    tried: Option<Remedy>,
    action: Action,
    outcome: NoticeOutcome,
    notes: &[(&str, &str)],
) -> Option<(Remedy, u64)> {
    let mut policy = policy();
    policy.waits.terminate_first = true;
    policy.actions.set(NoticeKind::StatusCheck, action);
    let mut node = node();
    for (name, value) in notes {
        node.record.insert(*name, *value);
    }
    let instance = InstanceId::new("i-00000001").unwrap();
    let identity = Identity::StatusCheck { check: "system", since: None, instance: instance.clone() };
    let now = "2026-11-21T12:00:00Z".parse().unwrap();
    let notice = Notice::new(identity, instance, NoticeTime::Seen(now), Detail::StatusCheck("system"));
    super::remedy(&policy, &notice, &node, outcome, tried, now).map(|(remedy, at_most)| (remedy, at_most.as_secs()))
}

#[test]
fn a_repair_ends_with_a_reboot_and_within_an_hour_with_a_termination() {
    let reboot = |ago: &str| {
        let at = format!("2026-11-21T{ago}Z");
        remedy(Action::Reboot, NoticeOutcome::Drained, &[("ebbtide/reboot", &at)])
    };
    assert_eq!(remedy(Action::Reboot, NoticeOutcome::Drained, &[]), Some((Remedy::Reboot, 600)));
    assert_eq!(remedy(Action::Reboot, NoticeOutcome::NodeDead, &[]), Some((Remedy::Reboot, 600)));
    for (noted, expected) in [
        // By the clock of another replica.
        ("12:00:30", (Remedy::Reboot, 600)),
        ("11:51:00", (Remedy::Reboot, 60)),
        ("11:50:00", (Remedy::Terminate, 600)),
        ("11:00:01", (Remedy::Terminate, 600)),
        ("11:00:00", (Remedy::Reboot, 600)),
    ] {
        assert_eq!(reboot(noted), Some(expected), "{noted}");
    }
    let asked = [("ebbtide/replacement", r#"{"group":"workers","since":"2026-11-21T11:55:00Z"}"#)];
    for action in [Action::Reboot, Action::Replace] {
        assert_eq!(remedy(action, NoticeOutcome::Drained, &asked), None, "its group terminates it");
        for outcome in [NoticeOutcome::Blocked, NoticeOutcome::Uncordoned, NoticeOutcome::Failed] {
            assert_eq!(remedy(action, outcome, &[]), None, "pods may be left: {outcome:?}");
        }
    }
    let asking = [("ebbtide/replacement", r#"{"group":"workers","since":"2026-11-21T11:55:00Z","asking":true}"#)];
    let expected = Some((Remedy::Terminate, 600));
    assert_eq!(remedy(Action::Replace, NoticeOutcome::Drained, &asking), expected, "its replica may have ended");
    let record = |kind: &str| format!(r#"{{"v":1,"kind":"{kind}","deadline":"2026-11-21T13:00:00Z"}}"#);
    for (kind, expected) in [("spot", None), ("asg-terminate", None), ("status-check", Some((Remedy::Reboot, 600)))] {
        let record = record(kind);
        let notes = [("ebbtide/notice.0123456789abcdef", record.as_str())];
        assert_eq!(remedy(Action::Reboot, NoticeOutcome::Drained, &notes), expected, "{kind}");
    }
    assert_eq!(remedy(Action::Replace, NoticeOutcome::Drained, &[]), Some((Remedy::Terminate, 600)));
    assert_eq!(remedy(Action::Drain, NoticeOutcome::Drained, &[]), None);
}

/// The clock may have been corrected, or the reboot been noted late in its wait.
#[test]
fn after_the_wait_for_a_reboot_the_node_is_terminated_whatever_time_it_was_noted_at() {
    let after = |tried, notes: &[(&str, &str)]| remedy_after(tried, Action::Reboot, NoticeOutcome::Drained, notes);
    for noted in ["10:49:00", "11:49:00", "11:50:00", "11:51:00", "12:00:30"] {
        let noted = format!("2026-11-21T{noted}Z");
        let notes = [("ebbtide/reboot", noted.as_str())];
        assert_eq!(after(Some(Remedy::Reboot), &notes), Some((Remedy::Terminate, 600)), "{noted}");
        assert_eq!(after(Some(Remedy::Terminate), &notes), None, "{noted}");
    }
    assert_eq!(after(Some(Remedy::Reboot), &[]), None, "EC2 has refused it");
}

#[test]
fn any_course_of_the_work_ends_and_keeps_to_its_order() {
    let mut random = fastrand::Rng::with_seed(52);
    let clock = Clock::showing("2026-11-21T12:00:00Z".parse().unwrap());
    let excluded = Node { ignored: true, ..node() };
    let ready_since = "2026-11-21T12:00:30Z".parse().ok();
    let restarted = Node { boot: "other".into(), has_volumes: true, ready_since, ..node() };
    let nodes = [node(), excluded, restarted].map(Arc::new);
    let owners = [Ownership::Ours, Ownership::Foreign, Ownership::Unproven { launched: None }].map(Owner::Found);
    let mut seen = std::collections::BTreeSet::new();
    for course in 0..20_000 {
        let (policy, detail) = (any_policy(&mut random), any_detail(&mut random));
        let instance = InstanceId::new("i-00000001").unwrap();
        let identity = Identity::HealthEvent { arn: "arn".to_owned(), instance: instance.clone() };
        let notice = Notice::new(identity, instance, NoticeTime::Announced(clock.now()), detail);
        let steps = Steps { policy: &policy, clock, notice: &notice, message: "message" };
        let mut now = Instant::now();
        let mut known = Known::received(now);
        let (mut names, mut is_admitted, mut is_cordoned) = (Vec::new(), false, false);
        let (mut kept, mut hook_ends) = (false, 0);
        loop {
            known.node = random.bool().then(|| Arc::clone(&nodes[random.usize(..nodes.len())]));
            let step = steps.next(&known, now);
            let name: String = format!("{step:?}").chars().take_while(|c| c.is_alphabetic()).collect();
            seen.insert(name.clone());
            names.push(name);
            let about = || format!("course {course} of {notice:?}: {names:?}");
            assert!(names.len() < 400, "it does not end: {}", about());
            match &step {
                Step::Begin(hook) => kept = hook.is_some(),
                Step::Cordon { target, .. } => {
                    assert!(!target.node.is_excluded() && !notice.is_withdrawn(), "{}", about());
                    assert!(is_admitted || !policy.admits(&notice), "{}", about());
                }
                Step::Delay { .. } | Step::Drain { .. } => {
                    assert!(is_cordoned && policy.action(&notice).drains(), "{}", about());
                }
                Step::EndHook(_) => hook_ends += 1,
                Step::End(outcome) => {
                    let unproven = names.iter().any(|name| name == "EndHook") && !kept;
                    assert!(!unproven || *outcome != NoticeOutcome::Drained, "{}", about());
                    let is_left_over = kept && *outcome == NoticeOutcome::Crashed;
                    assert_eq!(hook_ends, usize::from((kept || unproven) && !is_left_over), "{}", about());
                    break;
                }
                _ => assert_eq!(hook_ends, 0, "nothing comes after it: {}", about()),
            }
            let asks = matches!(step, Step::FindOwner { .. });
            let mut results = results(&step, &nodes, &known);
            let progress = results.swap_remove(random.usize(..results.len()));
            is_admitted |= matches!(progress, Progress::Admitted | Progress::ActionOver);
            is_cordoned = match progress {
                Progress::Cordoned(_) => true,
                Progress::Gone(..) | Progress::Found(_) => false,
                _ => is_cordoned,
            };
            now += Duration::from_millis(random.u64(..2000));
            known.advance(progress, now);
            if asks {
                known.owner = if random.u8(..9) == 0 { Owner::NotFound } else { owners[random.usize(..owners.len())] };
            }
        }
    }
    assert_eq!(seen.len(), 17, "each step was taken: {seen:?}");
}
