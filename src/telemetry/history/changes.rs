//! What has changed since when, for readers who know an earlier state.

use std::collections::VecDeque;

/// Maximum number of removed rows that are remembered.
const MAX_REMOVED: usize = 4096;

/// The count of changes, and the rows that are gone.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Number of changes.
    count: u64,
    /// The number of the next row.
    next: u64,
    /// The numbers of removed rows, each with the count of changes then.
    removed: VecDeque<(u64, u64)>,
    /// The count of changes up to which removed rows were forgotten.
    forgotten: u64,
}

impl Changes {
    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// Counts a change, and returns the count.
    pub(super) const fn add(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// Returns the number of a new row: rows are numbered in the order in which they began.
    pub(super) const fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Counts the removal of a row.
    pub(super) fn remove(&mut self, number: u64) {
        let count = self.add();
        self.removed.push_back((count, number));
        if self.removed.len() > MAX_REMOVED {
            self.forgotten = self.removed.pop_front().map_or(self.forgotten, |(count, _)| count);
        }
    }

    /// Whether all rows that were removed after this count are remembered.
    pub(super) const fn knows(&self, count: u64) -> bool {
        count >= self.forgotten && count <= self.count
    }

    /// Returns the rows that were removed after this count.
    pub(super) fn removed_since(&self, count: u64) -> impl Iterator<Item = u64> {
        self.removed.iter().rev().take_while(move |(at, _)| *at > count).map(|(_, number)| *number)
    }
}
