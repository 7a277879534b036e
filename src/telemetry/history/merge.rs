//! The reports of several replicas as one.

use super::report::{Basis, ELSEWHERE, Interruption, Last, MARKED, RecordedDrain, Replica, Report};
use super::words;
use std::collections::HashSet;

impl Interruption {
    /// Whether it is known from the record on its Node only.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.phase == ELSEWHERE || self.phase == MARKED
    }
}

impl Report {
    /// Takes it as that of all replicas: a drain on record is another's only if none of them knows it.
    pub fn is_of_all(&mut self) {
        let mut basis = std::mem::take(&mut self.health.basis);
        basis.unasked = false;
        let own = |row: &&Interruption| !row.is_recorded();
        let known: HashSet<String> = self.interruptions.iter().filter(own).map(|row| row.instance.clone()).collect();
        let unknown: HashSet<&str> = basis.recorded.iter().map(|drain| &*drain.instance).collect();
        let is_unknown = |row: &Interruption| match &*row.phase {
            ELSEWHERE => unknown.contains(&*row.instance),
            MARKED => !known.contains(&row.instance),
            _ => true,
        };
        self.interruptions.retain(is_unknown);
        self.health = words::health(basis);
    }

    /// Adds what another replica reports, but what both have read from Nodes. The rows keep their order: what runs comes before what has ended.
    pub fn add(&mut self, other: Self) {
        self.replicas.extend(other.replicas.into_iter().map(|replica| Replica { here: false, ..replica }));
        let mine = std::mem::take(&mut self.health.basis);
        self.health = words::health(added(mine, other.health.basis));
        self.interruptions.extend(other.interruptions.into_iter().filter(|row| !row.is_recorded()));
        let ended = |at: &Self, row: usize| at.interruptions[row].ended.as_ref().map(|end| std::cmp::Reverse(end.at));
        let mut order: Vec<usize> = (0..self.interruptions.len()).collect();
        order.sort_by_key(|row| ended(self, *row));
        let mut rows: Vec<_> = std::mem::take(&mut self.interruptions).into_iter().map(Some).collect();
        self.interruptions = order.into_iter().filter_map(|row| rows[row].take()).collect();
        self.storms.extend(other.storms);
        self.storms.sort_by_key(|storm| std::cmp::Reverse(storm.since));
        if self.day.since == other.day.since {
            let sum = |mine: &mut Vec<u32>, its: &[u32]| {
                mine.iter_mut().zip(its).for_each(|(mine, its)| *mine = mine.saturating_add(*its));
            };
            sum(&mut self.day.notices, &other.day.notices);
            sum(&mut self.day.failed, &other.day.failed);
        }
        for pool in other.pools {
            let same = |known: &&mut super::report::Pool| {
                (&known.kind, &known.instance_type, &known.zone, &known.group)
                    == (&pool.kind, &pool.instance_type, &pool.zone, &pool.group)
            };
            match self.pools.iter_mut().find(same) {
                Some(known) => known.interruptions = known.interruptions.saturating_add(pool.interruptions),
                None => self.pools.push(pool),
            }
        }
        self.pools.sort_by_key(|pool| std::cmp::Reverse(pool.interruptions));
    }

    /// Adds a replica that does not answer.
    pub fn add_silent(&mut self, name: &str, why: &str) {
        let mine = std::mem::take(&mut self.health.basis);
        // It knows no drain.
        let recorded = mine.recorded.clone();
        self.health = words::health(added(mine, Basis { replicas: 1, silent: 1, recorded, ..Basis::default() }));
        let (name, silent) = (name.to_owned(), Some(why.to_owned()));
        self.replicas.push(Replica { name, here: false, ready: None, started: None, nodes: None, queue: None, silent });
    }
}

/// Adds what the first lines of two reports are made of.
fn added(one: Basis, two: Basis) -> Basis {
    let later = |one: Option<Last>, two: Option<Last>| [one, two].into_iter().flatten().max_by_key(|last| last.at);
    Basis {
        replicas: one.replicas.saturating_add(two.replicas),
        starting: one.starting.saturating_add(two.starting),
        stopping: one.stopping.saturating_add(two.stopping),
        silent: one.silent.saturating_add(two.silent),
        unasked: one.unasked,
        queue: one.queue.or(two.queue),
        unwatched: one.unwatched.saturating_add(two.unwatched),
        acted: one.acted.saturating_add(two.acted),
        troubled: one.troubled.saturating_add(two.troubled),
        denied: one.denied.saturating_add(two.denied),
        draining: one.draining.saturating_add(two.draining),
        blocked: one.blocked.saturating_add(two.blocked),
        held: one.held.or(two.held),
        recorded: known_to_both(one.recorded, &two.recorded),
        failed: one.failed.saturating_add(two.failed),
        last_failed: later(one.last_failed, two.last_failed),
        last_end: later(one.last_end, two.last_end),
    }
}

/// Returns the drains on record that neither of two replicas acts on or has ended: all watch the same Nodes.
fn known_to_both(one: Vec<RecordedDrain>, two: &[RecordedDrain]) -> Vec<RecordedDrain> {
    let two: HashSet<&str> = two.iter().map(|drain| &*drain.instance).collect();
    one.into_iter().filter(|drain| two.contains(&*drain.instance)).collect()
}
