//! The quiet time between cordons and evictions.
//!
//! Capacity goes in bursts, and the messages of one burst come in several receives. A pod that is evicted after the first may be moved to
//! the node of the next. So evictions wait until no notice of a drain has come for a while, and all cordons are set.

use parking_lot::Mutex;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Maximum time from the first notice of a burst to its evictions.
pub const MAX_SETTLE: Duration = Duration::from_secs(5);

/// The burst of notices that goes on.
#[derive(Debug, Default)]
pub struct Settling {
    burst: Mutex<Burst>,
    /// Notified when no cordon is under way any more.
    cordoned: Notify,
}

#[derive(Debug, Default)]
struct Burst {
    /// The first and the last notice of a drain.
    notices: Option<(Instant, Instant)>,
    /// Number of cordons under way.
    cordons: usize,
}

impl Settling {
    /// Reports a notice of a drain, whose Node is cordoned while the guard lives. One that comes after `quiet`, or when the burst has
    /// lasted long enough, begins a burst.
    pub(super) fn cordoning(&self, quiet: Duration) -> Cordoning<'_> {
        let now = Instant::now();
        let mut burst = self.burst.lock();
        let goes_on = |(first, last): &(Instant, Instant)| now < *last + quiet && now < *first + MAX_SETTLE;
        let first = burst.notices.filter(goes_on).map_or(now, |(first, _)| first);
        burst.notices = Some((first, now));
        burst.cordons += 1;
        Cordoning(self)
    }

    /// Waits until no notice of a drain has come for `quiet`, and no cordon is under way; no longer than `at_most`, or than a burst may
    /// last. `elsewhere` returns when another replica has last cordoned a Node.
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

/// A cordon under way.
pub(super) struct Cordoning<'a>(&'a Settling);

impl Drop for Cordoning<'_> {
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

    async fn settles_after(settling: &Settling, quiet: Duration, at_most: Duration) -> u64 {
        let begun = Instant::now();
        settling.settled(quiet, at_most, || None).await;
        u64::try_from(begun.elapsed().as_millis()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn evictions_wait_for_a_quiet_time_and_for_cordons() {
        let settling = Settling::default();
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
        let settling = Settling::default();
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
