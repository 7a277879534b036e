use super::*;
use std::sync::Arc;

#[tokio::test(start_paused = true)]
async fn wall_time_follows_tokio() {
    let noon: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
    let clock = Clock::showing(noon);
    tokio::time::advance(Duration::from_secs(90)).await;
    assert_eq!(clock.now().to_string(), "2026-11-21T12:01:30Z");
    let ahead = clock.instant_of("2026-11-21T12:02:00Z".parse().unwrap());
    assert_eq!(ahead - Instant::now(), Duration::from_secs(30));
    assert_eq!(clock.timestamp_of(ahead).to_string(), "2026-11-21T12:02:00Z");
}

#[tokio::test(start_paused = true)]
async fn a_notice_from_the_future_counts_from_now() {
    let clock = Clock::showing("2026-11-21T12:00:00Z".parse().unwrap());
    let ahead = clock.notice_instant("2026-11-21T12:01:00Z".parse().unwrap());
    assert_eq!(ahead, Instant::now());
    let behind = clock.notice_instant("2026-11-21T11:59:00Z".parse().unwrap());
    assert_eq!(Instant::now() - behind, Duration::from_mins(1));
}

/// A clock of a machine that is set by `set`, and the number of seconds by which it is set.
fn machine() -> (Clock, Arc<AtomicI64>) {
    let set = Arc::new(AtomicI64::new(0));
    let (noon, start, offset) = (noon(), Instant::now(), Arc::clone(&set));
    let machine = move || noon + start.elapsed() + SignedDuration::from_secs(offset.load(Ordering::Relaxed));
    (Clock::reading(machine), set)
}

fn noon() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_machine_whose_time_is_set_is_followed() {
    let (clock, set) = machine();
    tokio::time::advance(Duration::from_mins(1)).await;
    assert_eq!(clock.follow(), ClockChange::default());
    set.store(600, Ordering::Relaxed);
    assert!(clock.has_stepped());
    let stepped = ClockChange { stepped: Some(SignedDuration::from_mins(10)), ahead: None };
    assert_eq!(clock.follow(), stepped);
    assert!(!clock.has_stepped());
    assert_eq!(clock.now(), noon() + Duration::from_mins(11));
    assert_eq!(clock.instant_of(clock.now()), Instant::now());
    assert_eq!(clock.follow(), ClockChange::default());
}

/// AWS answers after `within` seconds, with a date that it wrote `before` the answer. Returns by how much the machine is ahead then.
async fn ask(clock: Clock, aws: impl Fn() -> Timestamp, within: u64, before: u64) -> i64 {
    let asked = clock.read();
    tokio::time::advance(Duration::from_secs(within - before)).await;
    let date = aws();
    tokio::time::advance(Duration::from_secs(before)).await;
    let _ = clock.compare(date, asked);
    clock.last().ahead.as_secs()
}

#[tokio::test(start_paused = true)]
async fn aws_s_time_counts_where_it_certainly_differs() {
    for (machine_ahead, within, before, least, most) in [
        (3, 0, 0, 0, 0),
        (-3, 0, 0, 0, 0),
        (15, 20, 0, 0, 0),
        (15, 0, 0, 14, 15),
        (600, 20, 0, 579, 600),
        (600, 20, 20, 579, 600),
        (600, 0, 0, 599, 600),
        (-600, 0, 0, -601, -600),
        (-600, 20, 0, -601, -600),
        (-600, 20, 20, -600, -579),
        (-15, 20, 0, -15, -15),
    ] {
        let (start, set) = (Instant::now(), Arc::new(AtomicI64::new(machine_ahead)));
        let aws = move || noon() + start.elapsed();
        let clock = Clock::reading(move || aws() + SignedDuration::from_secs(set.load(Ordering::Relaxed)));
        let ahead = ask(clock, aws, within, before).await;
        assert!((least..=most).contains(&ahead), "{machine_ahead} {within} {before}: {ahead}");
        assert_eq!(clock.now(), aws() + SignedDuration::from_secs(machine_ahead - ahead));
        for _ in 0..3 {
            assert_eq!(ask(clock, aws, within, before).await, ahead, "long polls don't move it");
        }
        let exact = ask(clock, aws, 0, 0).await;
        assert!((exact - machine_ahead).abs() <= 5, "{machine_ahead}: {exact}");
        for (within, before) in [(20, 0), (20, 20), (7, 0), (20, 3)] {
            assert_eq!(ask(clock, aws, within, before).await, exact, "long polls don't move it");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_correction_ends_when_the_machine_s_time_is_set() {
    let (clock, set) = machine();
    let (start, aws) = (Instant::now(), noon());
    let aws = move || aws + start.elapsed();
    set.store(600, Ordering::Relaxed);
    assert_eq!(ask(clock, aws, 0, 0).await, 600);
    set.store(0, Ordering::Relaxed);
    assert_eq!(ask(clock, aws, 20, 0).await, 0);
    assert_eq!(clock.now(), aws());
    set.store(600, Ordering::Relaxed);
    ask(clock, aws, 0, 0).await;
    set.store(0, Ordering::Relaxed);
    let ahead = Some(SignedDuration::ZERO);
    assert_eq!(clock.follow(), ClockChange { stepped: Some(-SignedDuration::from_mins(10)), ahead });
    assert_eq!(clock.now(), aws());
}

/// The machine was set, or it was suspended: the same to a long poll that was asked before.
#[tokio::test(start_paused = true)]
async fn a_step_is_judged_by_an_answer_that_says_which_it_was() {
    for suspended in [true, false] {
        let (clock, set) = machine();
        let (start, sleeps) = (Instant::now(), Arc::new(AtomicI64::new(0)));
        let aws = move || noon() + start.elapsed() + SignedDuration::from_secs(sleeps.load(Ordering::Relaxed));
        let asked = clock.read();
        tokio::time::advance(Duration::from_secs(10)).await;
        let date = aws();
        set.store(60, Ordering::Relaxed);
        assert_eq!(clock.compare(date, asked), ClockChange::default());
        assert!(clock.has_stepped());
        let now = if suspended { date + SignedDuration::from_secs(60) } else { date };
        let (mut jumped, before) = (std::pin::pin!(clock.jumped()), clock.now());
        let change = clock.compare(now, clock.read());
        assert_eq!(change.stepped, Some(SignedDuration::from_secs(60)));
        assert_eq!(change.ahead, (!suspended).then_some(SignedDuration::from_secs(60)));
        assert_eq!(clock.now().duration_since(before).as_secs(), if suspended { 60 } else { 0 });
        assert_eq!(futures_util::poll!(&mut jumped).is_ready(), suspended);
    }
}

#[tokio::test(start_paused = true)]
async fn small_steps_add_up_to_a_jump() {
    let (clock, set) = machine();
    let mut jumped = std::pin::pin!(clock.jumped());
    for (step, expected) in [(3, false), (6, true)] {
        set.store(step, Ordering::Relaxed);
        let _ = clock.follow();
        assert_eq!(futures_util::poll!(&mut jumped).is_ready(), expected, "{step}");
    }
}
