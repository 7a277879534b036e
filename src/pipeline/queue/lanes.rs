//! The number of receives in flight, and when each starts. Pure, except for the jitter of its waits.

use super::MAX_BATCH;
use crate::clients::gate::{Backoff, Category};
use std::time::Duration;

/// SQS's longest wait: an empty queue costs one call in that time.
const LONG_POLL: Duration = Duration::from_secs(20);

/// Maximum number of receives at once: at SQS's 10–20 ms a call, they bring thousands of messages a second.
const MAX_LANES: usize = 8;

/// Wait of a receive while another one waits for long. A wait of zero would be a short poll, which asks only some of SQS's servers
/// and misses messages.
const SHORT_WAIT: Duration = Duration::from_secs(1);

/// First interval between receives that fail.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// Maximum interval between receives that fail: a spot instance has two minutes.
const MAX_RETRY: Duration = Duration::from_secs(5);

/// Maximum interval between receives that fail until a person changes something: a shorter one would only fill the log.
const MAX_DENIED_RETRY: Duration = Duration::from_secs(30);

/// A receive to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Receive {
    /// The time until it starts.
    pub pause: Duration,
    /// The time that SQS waits for a first message.
    pub wait: Duration,
}

/// The receives of one poller.
#[derive(Debug)]
pub(super) struct Lanes {
    wanted: usize,
    answered: bool,
    /// The pause before the next receive, after an error. Receives in progress continue.
    pause: Duration,
    retry: Backoff,
    denied_retry: Backoff,
}

impl Lanes {
    pub fn new() -> Self {
        Self {
            wanted: 1,
            answered: false,
            pause: Duration::ZERO,
            retry: Backoff::new(FIRST_RETRY, MAX_RETRY),
            denied_retry: Backoff::new(FIRST_RETRY, MAX_DENIED_RETRY),
        }
    }

    /// Returns the receive to start while `running` others run, if one is wanted.
    pub fn next(&mut self, running: usize) -> Option<Receive> {
        if running >= self.wanted {
            return None;
        }
        let wait = match (self.answered, running) {
            // The very first does not wait, so that a start on an empty queue is ready at once.
            (false, _) => Duration::ZERO,
            (true, 0) => LONG_POLL,
            // The others are there for a backlog, and end with it.
            (true, _) => SHORT_WAIT,
        };
        Some(Receive { pause: std::mem::take(&mut self.pause), wait })
    }

    /// A receive has brought this number of messages: a full batch doubles the lanes, and an empty one leaves a single long poll.
    pub fn received(&mut self, messages: usize) {
        self.answered = true;
        self.retry.reset();
        self.denied_retry.reset();
        self.wanted = match messages {
            MAX_BATCH => (self.wanted * 2).min(MAX_LANES),
            0 => 1,
            // SQS sometimes returns fewer messages than it has: there may still be a backlog.
            _ => (self.wanted - 1).max(1),
        };
    }

    /// A receive has failed.
    pub fn failed(&mut self, category: Category) {
        self.wanted = 1;
        // Receives that fail together are one failure.
        if self.pause.is_zero() {
            self.pause = match category {
                Category::Denied | Category::NotFound => self.denied_retry.step(),
                _ => self.retry.step(),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The waits of the receives that are started while `running` others run.
    fn starts(lanes: &mut Lanes, running: usize) -> Vec<Duration> {
        (running..).map_while(|running| lanes.next(running)).map(|receive| receive.wait).collect()
    }

    #[test]
    fn a_backlog_is_received_by_more_and_more_lanes_and_an_empty_queue_by_one() {
        let mut lanes = Lanes::new();
        assert_eq!(starts(&mut lanes, 0), [Duration::ZERO], "ready at once");
        lanes.received(0);
        assert_eq!(starts(&mut lanes, 0), [LONG_POLL]);
        lanes.received(MAX_BATCH);
        assert_eq!(starts(&mut lanes, 0), [LONG_POLL, SHORT_WAIT]);
        for _ in 0..5 {
            lanes.received(MAX_BATCH);
        }
        assert_eq!(starts(&mut lanes, 1).len(), MAX_LANES - 1);
        lanes.received(MAX_BATCH - 1);
        assert_eq!(starts(&mut lanes, MAX_LANES - 2), [SHORT_WAIT], "one lane less");
        lanes.received(0);
        assert!(starts(&mut lanes, 1).is_empty(), "one is enough");
    }

    #[test]
    fn failures_are_one_lane_with_pauses() {
        let mut lanes = Lanes::new();
        for _ in 0..3 {
            lanes.received(MAX_BATCH);
        }
        lanes.failed(Category::Unavailable);
        lanes.failed(Category::Unavailable);
        assert_eq!(lanes.next(1), None, "the others run on, and are not replaced");
        let first = lanes.next(0).unwrap();
        assert!(first.pause <= FIRST_RETRY && !first.pause.is_zero(), "two failures, one step: {first:?}");
        assert_eq!(lanes.next(0).unwrap().pause, Duration::ZERO, "paused once");
        for _ in 0..10 {
            lanes.failed(Category::Denied);
            let pause = lanes.next(0).unwrap().pause;
            assert!(pause <= MAX_DENIED_RETRY, "{pause:?}");
        }
        lanes.failed(Category::Unavailable);
        assert!(lanes.next(0).unwrap().pause <= MAX_RETRY);
    }
}
