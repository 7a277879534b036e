use super::*;
use crate::fact::NoticeKind;
use crate::telemetry::notify::PhaseChoice;
use crate::telemetry::notify::notification::BlockedPod;
use crate::telemetry::outbound::{Receiver, Secret};
use NotificationPhase::{Blocked as IsBlocked, Done as IsDone, Failed as HasFailed, Notice as IsNotice};
use tokio::time::advance;

const S: Duration = Duration::from_secs(1);

fn secret(text: &str) -> Secret {
    let Ok(secret) = text.parse();
    secret
}

/// Settings that tell of these phases.
fn settings(phases: &str, format: Format) -> Arc<NotifySettings> {
    Arc::new(NotifySettings {
        receiver: Receiver::parse(&secret("https://hooks.example/services/word")).unwrap(),
        format,
        template: None,
        headers: Vec::new(),
        timeout: 5 * S,
        signing_key: None,
        traces: false,
        routing_key: None,
        proxy: None,
        phases: PhaseChoice::all(Phases::parse(phases).unwrap()),
        cluster: Some("blue".to_owned()),
        replica: "ebbtide-1".to_owned(),
    })
}

struct Stage(Tracker);

impl Stage {
    fn telling(phases: &str) -> Self {
        Self::of(phases, Format::Json)
    }

    fn of(phases: &str, format: Format) -> Self {
        let clock = Clock::showing("2026-11-23T12:00:00Z".parse().unwrap());
        Self(Tracker::new(settings(phases, format), clock))
    }

    /// Notes an event, and returns what is told at once.
    fn note(&mut self, event: Event) -> Vec<Notification> {
        self.0.note(event);
        self.0.tick();
        self.0.take_ready()
    }

    /// Lets time pass, and returns what is told meanwhile.
    async fn pass(&mut self, time: Duration) -> Vec<Notification> {
        let end = Instant::now() + time;
        while let Some(due) = self.0.due().filter(|due| *due <= end) {
            advance(due.saturating_duration_since(Instant::now())).await;
            self.0.tick();
            // A timer that says nothing must not come back.
            assert!(self.0.due().is_none_or(|next| next > due || next > Instant::now()), "a timer that never ends");
        }
        advance(end - Instant::now()).await;
        self.0.tick();
        self.0.take_ready()
    }
}

fn about(n: usize, message: &str) -> About {
    let node = Some(format!("node-{n}").into());
    About { kind: NoticeKind::Spot, instance: format!("i-{n}").into(), node, message: message.into() }
}

fn begun(n: usize, message: &str) -> Event {
    let deadline = Some((Instant::now() + 120 * S, true));
    Event::Begun { about: about(n, message), action: Action::Drain, deadline, pool: Pool::default() }
}

fn cordoned(n: usize, message: &str, already: bool) -> Event {
    Event::Cordoned { about: about(n, message), already }
}

fn ended(n: usize, message: &str, outcome: NoticeOutcome) -> Event {
    Event::Ended { about: about(n, message), outcome, took: 42 * S, waited: "volumes: met".into() }
}

fn blocked(n: usize, pods: &[&str]) -> Event {
    let deadline = (Instant::now() + 110 * S, true);
    let (instance, node) = (format!("i-{n}"), format!("node-{n}"));
    let by = "The disruption budget db needs 2 healthy pods and has 2 currently";
    let blocked = |pod: &&str| BlockedPod { node: node.clone(), pod: format!("default/{pod}"), by: by.to_owned() };
    let pods = pods.iter().map(blocked).collect();
    Event::DrainBlocked { instance: instance.into(), node: node.into(), pods, deadline }
}

fn unblocked(n: usize) -> Event {
    Event::DrainUnblocked { instance: format!("i-{n}").into() }
}

fn phases(told: &[Notification]) -> Vec<NotificationPhase> {
    told.iter().map(|told| told.phase).collect()
}

fn ids(told: &[Notification]) -> Vec<&str> {
    told.iter().map(|told| told.id.as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn each_phase_is_told_once_in_words() {
    let mut stage = Stage::telling("all");
    assert!(stage.note(begun(1, "m1")).is_empty(), "the cordon may say that somebody was here");
    assert!(stage.note(cordoned(1, "m1", false)).is_empty(), "others may follow");
    assert!(stage.pass(HOLD - Duration::from_millis(1)).await.is_empty());
    let told = stage.pass(Duration::from_millis(1)).await;
    assert_eq!(ids(&told), ["i-1/m1/notice"]);
    assert_eq!((told[0].key.as_str(), told[0].title.as_str()), ("ebbtide/i-1", "Draining: node-1"));
    let text = "Node node-1 is drained, because of a notice of the kind spot; the node goes at 2026-11-23T12:02:00Z.";
    assert_eq!(told[0].text, text);
    assert_eq!((told[0].cluster.as_deref(), told[0].replica.as_str()), (Some("blue"), "ebbtide-1"));

    // A second notice of the node, of another kind, and a copy of the first.
    assert!(stage.note(begun(1, "m2")).is_empty() && stage.note(begun(1, "m1")).is_empty());
    assert!(stage.pass(4 * S).await.is_empty());

    let told = stage.note(blocked(1, &["db-0", "db-1"]));
    assert_eq!(ids(&told), ["i-1/m1/blocked"]);
    let pods: Vec<_> = told[0].blocked.iter().map(|pod| (pod.node.as_str(), pod.pod.as_str())).collect();
    assert_eq!(pods, [("node-1", "default/db-0"), ("node-1", "default/db-1")]);
    assert!(told[0].text.starts_with("The drain of node node-1 (spot) is blocked. default/db-0 is held back: "));
    assert!(stage.note(blocked(1, &["db-2"])).is_empty() && stage.pass(20 * S).await.is_empty(), "once");

    stage.note(Event::DrainEnded { instance: "i-1".into(), report: "3 of 3 pods gone".into() });
    assert!(stage.note(ended(1, "m1", NoticeOutcome::Drained)).is_empty(), "the other notice goes on");
    let told = stage.note(ended(1, "m2", NoticeOutcome::NothingToDrain));
    assert_eq!((ids(&told), told[0].outcome), (vec!["i-1/m1/done"], Some("drained")));
    assert_eq!(told[0].text, "Node node-1 (spot): drained after 42s: 3 of 3 pods gone; waits: volumes: met.");
    assert_eq!((told[0].seconds, told[0].deadline), (Some(42.0), None));

    // AWS announces the same end once more.
    stage.note(begun(1, "m3"));
    assert!(stage.note(cordoned(1, "m3", true)).is_empty());
    assert!(stage.note(ended(1, "m3", NoticeOutcome::Drained)).is_empty());
    assert!(stage.pass(10 * S).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn only_what_is_chosen_is_told() {
    let mut stage = Stage::telling("blocked+failed");
    stage.note(begun(1, "m"));
    assert!(stage.note(cordoned(1, "m", false)).is_empty() && stage.pass(5 * S).await.is_empty());
    let told = stage.note(ended(1, "m", NoticeOutcome::Blocked));
    assert_eq!((phases(&told), told[0].outcome), (vec![HasFailed], Some("blocked")));
    stage.note(begun(2, "m"));
    stage.note(ended(2, "m", NoticeOutcome::Drained));
    assert!(stage.pass(10 * S).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_is_not_ours_is_never_told() {
    for outcome in [NoticeOutcome::NotOurs, NoticeOutcome::HandedOver, NoticeOutcome::Planned, NoticeOutcome::Excluded]
    {
        let mut stage = Stage::telling("all");
        stage.note(begun(1, "m"));
        assert!(stage.note(ended(1, "m", outcome)).is_empty(), "{outcome}");
        assert!(stage.pass(10 * S).await.is_empty(), "{outcome}");
    }
    // What never began for us does not end for us.
    let mut stage = Stage::telling("all");
    assert!(stage.note(ended(1, "m", NoticeOutcome::Failed)).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_block_that_is_over_is_not_told() {
    let mut stage = Stage::telling("blocked");
    stage.note(begun(1, "m"));
    stage.note(blocked(1, &["db-0"]));
    stage.note(unblocked(1));
    assert!(stage.pass(10 * S).await.is_empty(), "it was kept back, and is over");
    assert_eq!(phases(&stage.note(blocked(1, &["db-0"]))), [IsBlocked]);
    stage.note(unblocked(1));
    assert!(stage.note(blocked(1, &["db-0"])).is_empty(), "once for each drain");
    stage.note(begun(2, "m"));
    stage.note(blocked(2, &["db-0"]));
    stage.note(ended(2, "m", NoticeOutcome::Drained));
    assert!(stage.pass(10 * S).await.is_empty(), "it has ended");
}

#[tokio::test(start_paused = true)]
async fn a_redelivered_notice_is_told_unless_somebody_got_as_far_as_its_cordon() {
    for (again, already, expected) in [(true, true, 0), (true, false, 1), (false, true, 1)] {
        let mut stage = Stage::telling("all");
        if again {
            stage.note(Event::Redelivered { message: "m".into() });
        }
        stage.note(begun(1, "m"));
        stage.note(cordoned(1, "m", already));
        let told = stage.pass(10 * S).await;
        assert_eq!(told.len(), expected, "received before: {again}, cordoned before: {already}");
        assert_eq!(phases(&stage.note(ended(1, "m", NoticeOutcome::Drained))), [IsDone]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_notice_without_a_cordon_is_told_later_or_with_the_end() {
    let mut stage = Stage::telling("all");
    stage.note(begun(1, "m"));
    assert!(stage.pass(Duration::from_millis(2900)).await.is_empty());
    assert_eq!(phases(&stage.pass(S).await), [IsNotice]);
    stage.note(begun(2, "m"));
    assert!(stage.note(ended(2, "m", NoticeOutcome::Failed)).is_empty());
    assert_eq!(phases(&stage.pass(3 * S).await), [IsNotice, HasFailed]);
    // Nothing is lost because what was kept back is over, and begins once more.
    stage.note(begun(4, "m"));
    stage.note(ended(4, "m", NoticeOutcome::Drained));
    let told = stage.note(Event::Released { instance: "i-4".into() });
    assert_eq!(ids(&told), ["i-4/m/notice", "i-4/m/done"]);
    stage.note(begun(4, "n"));
    stage.note(ended(4, "n", NoticeOutcome::Drained));
    assert_eq!(ids(&stage.note(begun(4, "o"))), ["i-4/n/notice", "i-4/n/done"]);
    stage.note(begun(3, "m"));
    stage.0.finish();
    assert_eq!(ids(&stage.0.take_ready()), ["i-3/m/notice"], "nobody tells it after this process");
}

#[tokio::test(start_paused = true)]
async fn a_drain_after_a_cordon_is_told_and_so_is_a_later_interruption() {
    let mut stage = Stage::telling("all");
    stage.note(Event::Begun {
        about: about(1, "rebalance"),
        action: Action::Cordon,
        deadline: None,
        pool: Pool::default(),
    });
    stage.note(cordoned(1, "rebalance", false));
    stage.note(ended(1, "rebalance", NoticeOutcome::Cordoned));
    let told = stage.pass(3 * S).await;
    assert_eq!(phases(&told), [IsNotice, IsDone]);
    assert_eq!(told[0].text, "Node node-1 gets no new pods, because of a notice of the kind spot.");
    stage.note(begun(1, "spot"));
    stage.note(cordoned(1, "spot", true));
    assert_eq!(ids(&stage.pass(3 * S).await), ["i-1/spot/notice"]);
    stage.note(ended(1, "spot", NoticeOutcome::Drained));
    stage.note(Event::Released { instance: "i-1".into() });
    stage.note(begun(1, "later"));
    assert_eq!(ids(&stage.pass(3 * S).await), ["i-1/later/notice"]);
    stage.note(ended(1, "later", NoticeOutcome::Drained));
    stage.pass(16 * 60 * S).await;
    assert!(stage.0.nodes.is_empty(), "nothing is remembered for ever");
}

#[tokio::test(start_paused = true)]
async fn pager_duty_hears_of_the_end_of_what_alarmed_somebody() {
    let mut stage = Stage::of("blocked+done+failed", Format::PagerDuty);
    stage.note(begun(1, "m"));
    stage.note(ended(1, "m", NoticeOutcome::Drained));
    assert!(stage.pass(3 * S).await.is_empty(), "no alert is open");
    stage.note(Event::Redelivered { message: "again".into() });
    stage.note(begun(2, "again"));
    stage.note(ended(2, "again", NoticeOutcome::Drained));
    assert_eq!(ids(&stage.pass(3 * S).await), ["i-2/again/done"], "another replica may have told");
    stage.note(begun(3, "m"));
    stage.note(blocked(3, &["db-0"]));
    assert_eq!(phases(&stage.pass(6 * S).await), [IsBlocked]);
    assert_eq!(phases(&stage.note(ended(3, "m", NoticeOutcome::NothingToDrain))), [IsDone], "the node is gone");
}

#[tokio::test(start_paused = true)]
async fn a_test_message_is_marked() {
    let mut stage = Stage::telling("all");
    stage.note(Event::Test { message: "m".into() });
    stage.note(begun(1, "m"));
    let told = stage.pass(3 * S).await;
    assert!(told[0].test && told[0].title.starts_with("[test] "), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_storm_is_told_at_its_begin_when_blocked_and_at_its_end() {
    let mut stage = Stage::telling("all");
    for n in 0..100 {
        assert!(stage.note(begun(n, "m")).is_empty());
        if n > 30 {
            assert!(stage.note(cordoned(n, "m", false)).is_empty());
        }
    }
    assert!(stage.pass(9 * S).await.is_empty(), "others may follow");
    let told = stage.pass(2 * S).await;
    assert_eq!((phases(&told), told[0].id.as_str()), (vec![IsNotice], "ebbtide-1/storm-1795435200/notice"));
    assert_eq!(told[0].title, "Many nodes are interrupted: 100 notices");
    assert!(told[0].text.starts_with("100 notices (100 spot) since 12:00:00Z."), "{}", told[0].text);

    stage.note(blocked(7, &["db-7"]));
    stage.note(blocked(8, &["db-8"]));
    let told = stage.pass(30 * S).await;
    assert_eq!(phases(&told), [IsBlocked]);
    assert!(told[0].text.contains("Blocked drains: 2. default/db-7 is held back: "), "{}", told[0].text);
    stage.note(blocked(9, &["db-9"]));
    assert!(stage.pass(30 * S).await.is_empty(), "once");

    for n in 0..75 {
        assert!(stage.note(ended(n, "m", NoticeOutcome::Drained)).is_empty());
    }
    for n in 75..99 {
        assert!(stage.note(ended(n, "m", NoticeOutcome::TimedOut)).is_empty());
    }
    assert!(stage.pass(60 * S).await.is_empty(), "one goes on");
    let told = stage.note(ended(99, "m", NoticeOutcome::Drained));
    assert_eq!(phases(&told), [HasFailed]);
    let storm = told[0].storm.as_ref().unwrap();
    assert_eq!((storm.notices, storm.in_time, storm.failed, storm.running), (100, 76, 24, 0));
    assert_eq!((storm.failures.len(), storm.failures_more), (20, 4));
    assert!(told[0].text.contains("76 ended well, 24 failed: node-75 (timed-out), "), "{}", told[0].text);
    assert!(told[0].text.contains(" and 4 more; the slowest was node-"), "{}", told[0].text);

    // Late copies say nothing, and what comes later is told by itself.
    stage.note(begun(3, "late"));
    assert!(stage.note(cordoned(3, "late", true)).is_empty());
    stage.note(begun(200, "m"));
    assert_eq!(ids(&stage.pass(3 * S).await), ["i-200/m/notice"]);
}

#[tokio::test(start_paused = true)]
async fn five_nodes_in_a_minute_are_no_storm_and_six_are() {
    let mut stage = Stage::telling("notice");
    for n in 0..MAX_CALM {
        stage.note(begun(n, "m"));
    }
    let told = stage.pass(WINDOW + S).await;
    assert_eq!(ids(&told), ["i-0/m/notice", "i-1/m/notice", "i-2/m/notice", "i-3/m/notice", "i-4/m/notice"]);
    for n in 10..16 {
        stage.note(begun(n, "m"));
    }
    let told = stage.pass(WINDOW + S).await;
    assert_eq!((told.len(), told[0].storm.as_ref().unwrap().notices), (1, 6), "{:?}", ids(&told));
}

/// Whatever comes in which order: none of many nodes is told by itself, even if its drain takes no time.
#[tokio::test(start_paused = true)]
async fn many_nodes_at_once_are_two_messages() {
    for (nodes, at_once) in [(40, true), (40, false), (1000, true), (1000, false)] {
        let (mut stage, mut told) = (Stage::telling("all"), Vec::new());
        for n in 0..nodes {
            told.extend(stage.note(begun(n, "m")));
            told.extend(stage.note(cordoned(n, "m", false)));
            if at_once {
                told.extend(stage.note(ended(n, "m", NoticeOutcome::Drained)));
            }
            told.extend(stage.pass(Duration::from_millis(2)).await);
        }
        for n in 0..nodes {
            let outcome = if n % 20 == 7 { NoticeOutcome::TimedOut } else { NoticeOutcome::Drained };
            told.extend(stage.note(ended(n, "m", outcome)));
        }
        told.extend(stage.pass(20 * 60 * S).await);
        let last = if at_once { IsDone } else { HasFailed };
        assert_eq!(phases(&told), [IsNotice, last], "{nodes}, {at_once}: {:?}", ids(&told));
        let storms: Vec<_> = told.iter().map(|told| told.storm.as_ref().unwrap()).collect();
        assert_eq!([storms[0].notices, storms[1].notices, storms[1].ended], [nodes; 3]);
        let failed: Vec<&str> = storms[1].failures.iter().map(|failure| failure.node.as_str()).collect();
        if !at_once {
            assert_eq!((storms[1].failed, &failed[..2]), (nodes / 20, &["node-7", "node-27"][..]));
            assert_eq!(failed.len() + storms[1].failures_more, nodes / 20);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_with_nothing_to_tell_of_are_no_part_of_a_storm() {
    for (others, expected) in [(0, 0), (2, 2)] {
        let (mut stage, mut told) = (Stage::telling("all"), Vec::new());
        for n in 0..30 {
            told.extend(stage.note(begun(n, "m")));
        }
        for n in others..30 {
            told.extend(stage.note(ended(n, "m", NoticeOutcome::Planned)));
        }
        told.extend(stage.pass(60 * S).await);
        for n in 0..others {
            told.extend(stage.note(ended(n, "m", NoticeOutcome::Drained)));
        }
        told.extend(stage.pass(60 * S).await);
        assert_eq!(told.len(), expected, "{told:?}");
        let storms: Vec<_> = told.iter().map(|told| told.storm.as_ref().unwrap()).collect();
        assert!(storms.iter().all(|storm| (storm.notices, storm.kinds["spot"]) == (2, 2)));
        assert!(storms.last().is_none_or(|storm| storm.until.is_some() && storm.in_time == 2));
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_storm_is_one_after_its_first_nodes_and_tells_its_failures_before_its_end() {
    let (mut stage, mut told) = (Stage::telling("all"), Vec::new());
    for n in 0..200 {
        told.extend(stage.note(begun(n, "m")));
        told.extend(stage.pass(2 * S).await);
        let outcome = if n == 20 || n == 60 { NoticeOutcome::Blocked } else { NoticeOutcome::Drained };
        told.extend(stage.note(ended(n, "m", outcome)));
    }
    told.extend(stage.pass(10 * 60 * S).await);
    let (storm, alone): (Vec<_>, Vec<_>) = told.into_iter().partition(|told| told.storm.is_some());
    assert_eq!(phases(&storm), [IsNotice, HasFailed, HasFailed], "{:?}", ids(&storm));
    let text = "2 failed: node-20 (blocked), node-60 (blocked)";
    assert!(storm[1].text.contains(text) && storm[2].text.contains(text), "{storm:?}");
    assert_eq!(storm[1].title, "Nodes of a storm failed: 167 notices");
    assert_eq!(storm[2].title, "A storm is over, with failures: 196 notices");
    assert!(storm[1].id != storm[2].id && storm[1].id.starts_with("ebbtide-1/storm-1795435208/failed-"));
    let nodes: Vec<_> = alone.iter().map(|told| told.node.as_deref().unwrap()).collect();
    let first = ["node-0", "node-0", "node-1", "node-1", "node-2", "node-2", "node-3", "node-3"];
    assert_eq!(nodes, first, "each of those that came before the storm has both");
}

#[tokio::test(start_paused = true)]
async fn a_notice_that_is_kept_back_is_told_before_another_replica_continues() {
    for is_cordoned in [false, true] {
        let mut stage = Stage::telling("all");
        stage.note(begun(1, "m"));
        if is_cordoned {
            stage.note(cordoned(1, "m", false));
        }
        let told = stage.note(ended(1, "m", NoticeOutcome::HandedOver));
        assert_eq!(told.len(), usize::from(is_cordoned), "the next one sees the cordon: {is_cordoned}");
        stage.0.finish();
        assert!(stage.0.take_ready().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_storm_with_a_long_hook_is_told_and_the_rest_by_itself() {
    let mut stage = Stage::telling("done+failed");
    for n in 0..30 {
        stage.note(begun(n, "m"));
    }
    for n in 1..30 {
        stage.note(ended(n, "m", NoticeOutcome::Drained));
    }
    assert!(stage.pass(14 * 60 * S).await.is_empty());
    let told = stage.pass(2 * 60 * S).await;
    assert_eq!(phases(&told), [IsDone]);
    assert!(told[0].text.contains("29 ended well, 0 failed, 1 still running"), "{}", told[0].text);
    assert_eq!(ids(&stage.note(ended(0, "m", NoticeOutcome::Failed))), ["i-0/m/failed"]);
}

#[tokio::test(start_paused = true)]
async fn a_storm_that_the_end_of_the_process_cuts_is_told() {
    let mut stage = Stage::telling("done");
    for n in 0..30 {
        stage.note(begun(n, "m"));
    }
    for n in 0..30 {
        stage.note(ended(n, "m", NoticeOutcome::Drained));
    }
    stage.0.finish();
    assert_eq!(phases(&stage.0.take_ready()), [IsDone], "its minute is not over, and all has ended");
}

#[tokio::test(start_paused = true)]
async fn memory_is_bounded() {
    let mut stage = Stage::telling("failed");
    for n in 0..2 * MAX_NODES {
        let message = format!("m{n}");
        stage.note(Event::Redelivered { message: message.as_str().into() });
        stage.note(begun(n, &message));
        stage.note(ended(n, &message, NoticeOutcome::Drained));
    }
    assert!(stage.0.nodes.len() <= MAX_NODES && stage.0.ended.len() <= MAX_NODES, "{}", stage.0.nodes.len());
    assert_eq!((stage.0.redelivered.0.len(), stage.0.take_untracked()), (MAX_MESSAGES, 0));
    let mut stage = Stage::telling("notice");
    for n in 0..MAX_NODES + 10 {
        stage.note(begun(n, "m"));
    }
    let told = stage.pass(20 * S).await;
    let counted = told[0].storm.as_ref().map(|storm| storm.notices);
    assert_eq!((counted, stage.0.take_untracked(), stage.0.take_untracked()), (Some(MAX_NODES), 10, 0));
}

#[tokio::test(start_paused = true)]
async fn a_restart_in_a_storm_does_not_say_that_the_storm_is_over() {
    let mut stage = Stage::telling("all");
    for n in 0..30 {
        drop(stage.note(begun(n, &format!("m{n}"))));
    }
    drop(stage.pass(15 * S).await);
    stage.0.finish();
    let told = stage.0.take_ready();
    let said: Vec<_> = told.iter().map(|it| format!("{} | {} | {}", it.phase, it.title, it.text)).collect();
    assert!(told.iter().all(|it| it.phase != IsDone), "all 30 still run: {said:?}");
}

#[tokio::test(start_paused = true)]
async fn a_storm_counts_all_its_blocked_drains() {
    let mut stage = Stage::telling("blocked");
    for n in 0..30 {
        drop(stage.note(begun(n, &format!("m{n}"))));
        let pods: Vec<_> = (0..5).map(|pod| format!("db-{n}-{pod}")).collect();
        drop(stage.note(blocked(n, &pods.iter().map(String::as_str).collect::<Vec<_>>())));
    }
    let told = stage.pass(30 * S).await;
    assert_eq!(told.len(), 1);
    assert!(told[0].text.contains("Blocked drains: 30"), "30 drains are blocked: {}", told[0].text);
}

#[tokio::test(start_paused = true)]
async fn an_alert_of_an_earlier_receiver_is_resolved_whatever_the_good_end() {
    let mut missing = Vec::new();
    for outcome in
        [NoticeOutcome::Drained, NoticeOutcome::NothingToDrain, NoticeOutcome::Withdrawn, NoticeOutcome::Stale]
    {
        let mut stage = Stage::of("blocked+done+failed", Format::PagerDuty);
        // The earlier receiver told `blocked` of i-1, crashed, and left the Node cordoned.
        drop(stage.note(Event::Redelivered { message: "m".into() }));
        drop(stage.note(begun(1, "m")));
        // No cordon is heard of: the Node is gone already, or was excluded or withdrawn meanwhile.
        drop(stage.note(ended(1, "m", outcome)));
        let told = stage.pass(3 * S).await;
        if told.iter().all(|it| it.phase != IsDone) {
            missing.push(outcome);
        }
    }
    assert!(missing.is_empty(), "the alert stays open for ever after {missing:?}");
}

#[tokio::test(start_paused = true)]
async fn alerts_of_an_earlier_receiver_are_resolved_after_a_restart_in_a_storm() {
    let mut stage = Stage::of("blocked+done+failed", Format::PagerDuty);
    for n in 0..30 {
        let m = format!("m{n}");
        drop(stage.note(Event::Redelivered { message: m.clone().into() }));
        drop(stage.note(begun(n, &m)));
        drop(stage.note(cordoned(n, &m, true)));
    }
    let mut told = Vec::new();
    for n in 0..30 {
        told.extend(stage.note(ended(n, &format!("m{n}"), NoticeOutcome::Drained)));
    }
    told.extend(stage.pass(120 * S).await);
    // i-29 was told as blocked by the earlier receiver, before the storm: key ebbtide/i-29.
    let keys: Vec<_> = told.iter().map(|it| (it.phase, it.key.clone())).collect();
    assert!(keys.contains(&(IsDone, "ebbtide/i-29".to_owned())), "{keys:?}");
}

#[tokio::test(start_paused = true)]
async fn a_failure_in_a_storm_is_not_lost_because_another_notice_of_the_node_runs_on() {
    let mut stage = Stage::telling("all");
    let mut told = Vec::new();
    for n in 0..30 {
        told.extend(stage.note(begun(n, &format!("m{n}"))));
    }
    // AWS announces one end in several ways: node 0 has two notices. The first fails, the second runs on.
    told.extend(stage.note(begun(0, "x")));
    told.extend(stage.note(ended(0, "m0", NoticeOutcome::Failed)));
    for n in 1..30 {
        told.extend(stage.note(ended(n, &format!("m{n}"), NoticeOutcome::Drained)));
    }
    told.extend(stage.pass(20 * 60 * S).await);
    told.extend(stage.note(ended(0, "x", NoticeOutcome::Drained)));
    told.extend(stage.pass(60 * S).await);
    let said: Vec<_> = told.iter().map(|it| format!("{} | {} | {}", it.phase, it.title, it.text)).collect();
    assert!(told.iter().any(|it| it.phase == HasFailed), "node-0 failed, nobody was told: {said:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_storm_that_is_handed_over_is_not_done() {
    let mut stage = Stage::telling("all");
    for n in 0..30 {
        drop(stage.note(begun(n, &format!("m{n}"))));
    }
    drop(stage.pass(15 * S).await);
    for n in 0..30 {
        drop(stage.note(ended(n, &format!("m{n}"), NoticeOutcome::HandedOver)));
    }
    stage.0.finish();
    let told = stage.0.take_ready();
    let said: Vec<_> = told.iter().map(|it| format!("{} | {} | {}", it.phase, it.title, it.text)).collect();
    assert!(told.iter().all(|it| it.phase != IsDone), "all 30 go on elsewhere: {said:?}");
}

/// Lets a replica see the start of a storm of blocked drains. Returns the key of the alert.
async fn alarm(first: &mut Stage) -> String {
    for n in 0..30 {
        drop(first.note(begun(n, "m")));
        drop(first.note(blocked(n, &["db"])));
    }
    let told = first.pass(30 * S).await;
    assert_eq!(phases(&told), [IsBlocked]);
    told[0].key.clone()
}

/// Returns the keys of the alerts that this replica ends, after it has taken over this number of nodes.
async fn resolved(second: &mut Stage, nodes: usize) -> Vec<String> {
    let mut told = Vec::new();
    for n in 0..nodes {
        drop(second.note(Event::Redelivered { message: "m".into() }));
        told.extend(second.note(begun(n, "m")));
        told.extend(second.note(cordoned(n, "m", true)));
    }
    told.extend(second.pass(100 * S).await);
    let (own, storms): (Vec<_>, Vec<_>) = told.iter().partition(|told| told.key.starts_with("ebbtide/i-"));
    assert!(own.is_empty() && storms.is_empty(), "they still run: {told:?}");
    for n in 0..nodes {
        told.extend(second.note(ended(n, "m", NoticeOutcome::Drained)));
    }
    told.extend(second.pass(2 * 60 * S).await);
    let keys = told.into_iter().map(|told| (told.phase, told.key)).filter(|(_, key)| !key.starts_with("ebbtide/i-"));
    keys.map(|(phase, key)| if phase == IsDone { key } else { format!("{phase} {key}") }).collect()
}

#[tokio::test(start_paused = true)]
async fn the_alert_of_a_storm_is_ended_by_another_replica() {
    for (nodes, is_killed) in [(30, true), (30, false), (3, true)] {
        let mut first = Stage::of("blocked+done+failed", Format::PagerDuty);
        let mut second = Stage::of("blocked+done+failed", Format::PagerDuty);
        second.pass(20 * 60 * S).await;
        let alert = alarm(&mut first).await;
        assert_eq!(alert, "ebbtide/storm/blue");
        if !is_killed {
            first.0.finish();
            assert!(first.0.take_ready().is_empty(), "the others continue, and the alert with them");
        }
        assert_eq!(resolved(&mut second, nodes).await, [alert], "{nodes}, {is_killed}");
        assert!(second.pass(30 * 60 * S).await.is_empty(), "once");
    }
    // Nobody was left to take over: the process that replaces the dead one ends the alert.
    let mut third = Stage::of("blocked+done+failed", Format::PagerDuty);
    assert!(third.pass(MAX_TAIL - S).await.is_empty());
    let told = third.pass(S).await;
    assert_eq!((phases(&told), told[0].key.as_str()), (vec![IsDone], "ebbtide/storm/blue"));
    assert!(third.pass(60 * 60 * S).await.is_empty());
    let mut other = Stage::of("blocked+failed", Format::PagerDuty);
    assert!(other.pass(60 * 60 * S).await.is_empty(), "the user does not want it");
    let mut other = Stage::telling("all");
    assert!(other.pass(60 * 60 * S).await.is_empty(), "there are no alerts");
}

#[tokio::test(start_paused = true)]
async fn failures_of_a_storm_have_an_alert_that_its_end_does_not_resolve() {
    let mut stage = Stage::of("blocked+done+failed", Format::PagerDuty);
    let alert = alarm(&mut stage).await;
    let mut told = stage.pass(60 * S).await;
    for n in 0..30 {
        told.extend(stage.note(ended(n, "m", NoticeOutcome::TimedOut)));
    }
    let failed = ("ebbtide/ebbtide-1/storm-1795435200".to_owned(), HasFailed);
    let keys: Vec<_> = told.into_iter().map(|told| (told.key, told.phase)).collect();
    assert_eq!(keys, [failed, (alert, IsDone)]);
}
