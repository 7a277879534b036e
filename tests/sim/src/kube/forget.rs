//! Forgets what is over, so that a cluster can run for weeks.

use super::Kube;
use super::route::Resource;
use std::time::Duration;

impl Kube {
    /// Forgets evictions, and Events created, before a time since the world's start, and the history that watches would need.
    pub(crate) fn forget_before(&self, time: Duration) {
        let mut state = self.state();
        state.evicted.retain(|evicted| evicted.at >= time);
        state.evicted.shrink_to_fit();
        let wall = state.clock.now() - state.clock.elapsed().saturating_sub(time);
        let events = state.store.all(Resource::Events);
        let old = events.filter(|event| event.meta.creation_timestamp.as_ref().is_some_and(|created| created.0 < wall));
        let old: Vec<_> = old.map(|event| event.key()).collect();
        for key in old {
            state.remove(Resource::Events, &key);
        }
        state.store.compact();
    }
}
