//! The last day, in slots: how many interruptions began, and how many failed.

use super::report;
use jiff::{SignedDuration, Timestamp};

const SLOTS: usize = 144;

const MINUTES: u32 = 10;

/// Counts in a ring of slots.
#[derive(Debug)]
pub(super) struct Day {
    notices: [u32; SLOTS],
    failed: [u32; SLOTS],
    /// The number of the newest slot since 1970.
    newest: i64,
}

impl Day {
    pub(super) fn new(now: Timestamp) -> Self {
        Self { notices: [0; SLOTS], failed: [0; SLOTS], newest: slot(now) }
    }

    pub(super) fn begins(&mut self, now: Timestamp) {
        let place = self.place(now);
        self.notices[place] += 1;
    }

    pub(super) fn fails(&mut self, now: Timestamp) {
        let place = self.place(now);
        self.failed[place] += 1;
    }

    /// Moves the ring to the slot of `now`, and returns its place. A clock that was set back stays in the newest slot.
    fn place(&mut self, now: Timestamp) -> usize {
        let number = slot(now).max(self.newest);
        let passed = usize::try_from(number - self.newest).unwrap_or(SLOTS).min(SLOTS);
        for number in (number + 1 - i64::try_from(passed).unwrap_or(0))..=number {
            let place = place(number);
            (self.notices[place], self.failed[place]) = (0, 0);
        }
        self.newest = number;
        place(number)
    }

    pub(super) fn report(&mut self, now: Timestamp) -> report::Day {
        let newest = self.place(now);
        let in_order = |counts: &[u32; SLOTS]| {
            let (later, earlier) = counts.split_at(newest + 1);
            [earlier, later].concat()
        };
        let first = self.newest + 1 - i64::try_from(SLOTS).unwrap_or(0);
        let since = Timestamp::UNIX_EPOCH + SignedDuration::from_mins(first * i64::from(MINUTES));
        let (notices, failed) = (in_order(&self.notices), in_order(&self.failed));
        report::Day { since, minutes_per_slot: MINUTES, notices, failed }
    }
}

fn slot(at: Timestamp) -> i64 {
    at.as_second().div_euclid(i64::from(MINUTES) * 60)
}

fn place(number: i64) -> usize {
    usize::try_from(number.rem_euclid(SLOTS.try_into().unwrap_or(i64::MAX))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_move_on_and_old_ones_are_forgotten() {
        let start: Timestamp = "2026-11-23T10:05:00Z".parse().unwrap();
        let mut day = Day::new(start);
        day.begins(start);
        day.begins(start);
        let later = start + SignedDuration::from_mins(25);
        day.fails(later);
        let shown = day.report(later);
        assert_eq!(shown.since, "2026-11-22T10:40:00Z".parse().unwrap());
        assert_eq!((shown.notices.len(), shown.notices[140], shown.failed[143]), (144, 2, 1));
        // A clock that is set back counts in the newest slot.
        day.begins(start);
        assert_eq!(day.report(start).notices[143], 1);
        let next_day = later + SignedDuration::from_hours(23);
        assert_eq!(day.report(next_day).notices.iter().sum::<u32>(), 3);
        let after = later + SignedDuration::from_hours(100);
        let empty = day.report(after);
        assert_eq!((empty.notices.iter().sum::<u32>(), empty.failed.iter().sum::<u32>()), (0, 0));
    }
}
