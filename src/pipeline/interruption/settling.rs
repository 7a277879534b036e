//! The quiet time between cordons and evictions.
//!
//! Capacity is reclaimed in bursts, and one burst's messages come in several receives. A pod evicted after the first could be moved to the
//! next interrupted node, so evictions wait until no drain notice has come for a while and all cordons are set.

use parking_lot::Mutex;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Time without a new drain notice after which evictions start: the messages of a burst come closer together.
pub const QUIET_TIME: Duration = Duration::from_secs(1);

/// Maximum time between the first notice of a burst and its evictions.
pub(super) const MAX_SETTLE: Duration = Duration::from_secs(5);

/// The current burst of notices.
#[derive(Debug, Default)]
pub struct NoticeBurst {
    burst: Mutex<Burst>,
    /// Notified when the last cordon in progress is done.
    cordoned: Notify,
}

#[derive(Debug, Default)]
struct Burst {
    /// The first and the last notice of a drain.
    notices: Option<(Instant, Instant)>,
    /// Number of cordons in progress.
    cordons: usize,
}

impl NoticeBurst {
    /// Counts a drain notice, whose cordon is in progress while the guard lives. A notice that comes after `quiet`, or after the burst's
    /// maximum time, starts a new burst.
    pub(super) fn cordoning(&self, quiet: Duration) -> CordonGuard<'_> {
        let now = Instant::now();
        let mut burst = self.burst.lock();
        let continues = |(first, last): &(Instant, Instant)| now < *last + quiet && now < *first + MAX_SETTLE;
        let first = burst.notices.filter(continues).map_or(now, |(first, _)| first);
        burst.notices = Some((first, now));
        burst.cordons += 1;
        CordonGuard(self)
    }

    /// Waits until no drain notice has come for `quiet` and no cordon is in progress; no longer than `at_most`, or than a burst may last.
    /// `elsewhere` returns the time of the last cordon by another replica.
    pub(super) async fn settled(
        &self,
        quiet: Duration,
        at_most: Duration,
        elsewhere: impl Fn() -> Option<Instant> + Send,
    ) {
        let now = Instant::now();
        let first = self.burst.lock().notices.map_or(now, |(first, _)| first);
        let give_up = (now + at_most).min(first + MAX_SETTLE);
        loop {
            let mut cordoned = pin!(self.cordoned.notified());
            cordoned.as_mut().enable();
            let (last, cordons) = {
                let burst = self.burst.lock();
                (burst.notices.map_or(now, |(_, last)| last), burst.cordons)
            };
            let last = elsewhere().map_or(last, |elsewhere| last.max(elsewhere));
            let until = (last + quiet).min(give_up);
            if Instant::now() < until {
                sleep_until(until).await;
            } else if cordons == 0 || until == give_up {
                return;
            } else {
                tokio::select! {
                    biased;
                    () = cordoned => {}
                    () = sleep_until(give_up) => return,
                }
            }
        }
    }
}

/// A cordon in progress.
pub(super) struct CordonGuard<'a>(&'a NoticeBurst);

impl Drop for CordonGuard<'_> {
    fn drop(&mut self) {
        let mut burst = self.0.burst.lock();
        burst.cordons -= 1;
        if burst.cordons == 0 {
            self.0.cordoned.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::sleep;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    async fn settles_after(settling: &NoticeBurst, quiet: Duration, at_most: Duration) -> u64 {
        let begun = Instant::now();
        settling.settled(quiet, at_most, || None).await;
        u64::try_from(begun.elapsed().as_millis()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn evictions_wait_for_a_quiet_time_and_for_cordons() {
        let settling = NoticeBurst::default();
        drop(settling.cordoning(ms(1000)));
        assert_eq!(settles_after(&settling, ms(1000), MAX_SETTLE).await, 1000);
        assert_eq!(settles_after(&settling, ms(1000), MAX_SETTLE).await, 0, "it is quiet");
        let cordoning = settling.cordoning(ms(1000));
        let slow = async {
            sleep(ms(1800)).await;
            drop(cordoning);
        };
        assert_eq!(tokio::join!(settles_after(&settling, ms(1000), MAX_SETTLE), slow).0, 1800);
    }

    #[tokio::test(start_paused = true)]
    async fn evictions_wait_no_longer_than_a_burst_may_last() {
        let settling = NoticeBurst::default();
        let stuck = settling.cordoning(ms(1000));
        assert_eq!(settles_after(&settling, ms(1000), ms(300)).await, 300, "little time is left");
        assert_eq!(settles_after(&settling, ms(1000), MAX_SETTLE).await, 4700);
        drop(stuck);
        let trickle = async {
            for _ in 0..20 {
                drop(settling.cordoning(ms(1000)));
                sleep(ms(500)).await;
            }
        };
        let first = async {
            sleep(ms(1)).await;
            settles_after(&settling, ms(1000), MAX_SETTLE).await
        };
        assert_eq!(tokio::join!(trickle, first).1, 4999);
    }
}
