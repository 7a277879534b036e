//! The reports of several replicas as one.

use super::report::{Basis, Last, Replica, Report};
use super::words;
use std::collections::HashSet;

/// The phase of an interruption that is known from the mark on its Node only.
const MARKED: &str = "marked";

impl Report {
    /// Adds what another replica reports. The rows keep their order: what runs comes before what has ended.
    pub fn add(&mut self, other: Self) {
        self.replicas.extend(other.replicas.into_iter().map(|replica| Replica { here: false, ..replica }));
        let mine = std::mem::take(&mut self.health.basis);
        self.health = words::health(added(mine, other.health.basis));
        self.interruptions.extend(other.interruptions);
        // A replica that starts finds the marks of what the others do, or have done.
        let known: HashSet<(String, String)> = self
            .interruptions
            .iter()
            .filter(|row| row.phase != MARKED)
            .map(|row| (row.message.clone(), row.instance.clone()))
            .collect();
        self.interruptions
            .retain(|row| row.phase != MARKED || !known.contains(&(row.message.clone(), row.instance.clone())));
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
        self.health = words::health(added(mine, Basis { replicas: 1, silent: 1, ..Basis::default() }));
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
        queue: one.queue.or(two.queue),
        acted: one.acted.saturating_add(two.acted),
        troubled: one.troubled.saturating_add(two.troubled),
        draining: one.draining.saturating_add(two.draining),
        blocked: one.blocked.saturating_add(two.blocked),
        held: one.held.or(two.held),
        failed: one.failed.saturating_add(two.failed),
        last_failed: later(one.last_failed, two.last_failed),
        last_end: later(one.last_end, two.last_end),
    }
}
