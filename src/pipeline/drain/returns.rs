//! Pods that come back to a cordoned node, because they tolerate its taint or bypass the scheduler. Evicting them again and again would not
//! move them, and a hook would wait its whole life for that. Pure.

use super::grace::Grace;
use super::select::{Departure, Selection, StayReason};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of pods of one owner that are evicted after they came back.
pub const MAX_OF_OWNER: usize = 2;

/// Maximum number of pods of all owners that are evicted after they came back.
const MAX_OF_NODE: usize = 10;

/// Time after a cordon in which the scheduler may still bind a pod that does not tolerate it: its caches lag.
const SCHEDULER_LAG: Duration = Duration::from_secs(5);

/// The pods that have come back during one drain.
#[derive(Debug, Default)]
pub(super) struct Returns {
    /// Pods that were there when the cordon was accepted, or that came while there was none. They are ordinary pods.
    ordinary: HashSet<Arc<str>>,
    /// The cordon before which the ordinary pods came.
    cordon: Option<KnownCordon>,
    /// The pods that came back and are evicted all the same, by owner.
    evicted: HashMap<Arc<str>, HashSet<Arc<str>>>,
    /// The owners of pods that stay, with the grace period of one.
    staying: HashMap<Arc<str>, Option<i64>>,
    last_call: LastCall,
}

/// Whether the pods that stay are evicted once more, because the end of the node is near.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LastCall {
    /// The end is not near yet.
    #[default]
    Ahead,
    /// The pods of the next list are evicted.
    Due,
    /// They have been evicted. Later pods stay.
    Made,
}

/// A cordon, and when a list has first shown the pods after it.
#[derive(Clone, Copy, Debug)]
struct KnownCordon {
    since: Instant,
    /// Whether it has been set again after a user removed it.
    restored: bool,
}

impl Returns {
    /// Leaves alone the pods that have come back too often. `cordon` is whether the Node's cordon was restored; `None` if there is none, or
    /// if the list may be older. Returns the pods that stay, for owners that had none before.
    pub(super) fn keep(&mut self, selection: &mut Selection, cordon: Option<bool>, now: Instant) -> Vec<Departure> {
        let known = self.cordon.filter(|known| Some(known.restored) == cordon);
        let Some(known) = known else {
            self.ordinary.extend(selection.evict.iter().map(|departure| Arc::clone(&departure.pod.uid)));
            self.cordon = cordon.map(|restored| KnownCordon { since: now, restored });
            return Vec::new();
        };
        let unawares = now < known.since + SCHEDULER_LAG;
        let stays = |departure: &mut Departure| self.stays(departure, unawares);
        let stay: Vec<Departure> = selection.evict.extract_if(.., stays).collect();
        if self.last_call == LastCall::Due {
            self.last_call = LastCall::Made;
        }
        selection.left_alone.extend(stay.iter().map(|departure| (departure.pod.clone(), StayReason::ComesBack)));
        stay.into_iter().filter(|stays| self.staying.insert(owner(stays), stays.grace).is_none()).collect()
    }

    /// Has the staying pods of the next list evicted, each once, because the node's end is near.
    pub(super) const fn call_last(&mut self) {
        self.last_call = LastCall::Due;
    }

    /// Returns the longest grace period of the pods that stay and that are evicted before the node's end; `None` if there are none. `wanted`
    /// is the grace period of every pod, if the user sets one.
    pub(super) fn last_call_grace(&self, wanted: Option<Duration>) -> Option<Grace> {
        let graces = self.staying.values().map(|own| Grace { wanted, own: *own });
        graces.filter(|_| self.last_call == LastCall::Ahead).max_by_key(|grace| grace.full())
    }

    fn stays(&mut self, departure: &Departure, unawares: bool) -> bool {
        let uid = &departure.pod.uid;
        if self.ordinary.contains(uid) {
            return false;
        }
        if unawares && !departure.tolerates_cordon {
            self.ordinary.insert(Arc::clone(uid));
            return false;
        }
        let owner = owner(departure);
        let of_node: usize = self.evicted.values().map(HashSet::len).sum();
        let of_owner = self.evicted.entry(owner).or_default();
        if of_owner.contains(uid) {
            return false;
        }
        let is_full = of_owner.len() >= MAX_OF_OWNER || of_node >= MAX_OF_NODE;
        if is_full && self.last_call != LastCall::Due {
            return true;
        }
        of_owner.insert(Arc::clone(uid));
        false
    }
}

/// Returns the UID of the pod's controller; a pod without one is its own, by its name.
fn owner(departure: &Departure) -> Arc<str> {
    departure.owner.clone().unwrap_or_else(|| departure.pod.to_string().into())
}

#[cfg(test)]
mod tests {
    use super::super::tier::Tier;
    use super::super::wire::PodId;
    use super::*;

    fn pod(uid: &str, owner: &str, tolerates_cordon: bool) -> Departure {
        let pod = PodId { namespace: "default".into(), name: uid.into(), uid: uid.into() };
        let owner = Some(owner.into());
        Departure {
            pod,
            grace: None,
            tier: Tier::ORDINARY,
            ready: true,
            protection: None,
            deleted: None,
            ends: None,
            runs: true,
            owner,
            replica_set: None,
            tolerates_cordon,
        }
    }

    /// The returns of a drain, one list after another.
    struct Lists(Returns, Instant);

    impl Lists {
        /// Returns the UIDs of those that are evicted and of those that stay, and the number that is new among the latter.
        fn show(&mut self, pods: &[Departure], cordon: Option<bool>) -> (Vec<String>, Vec<String>, usize) {
            self.1 += Duration::from_secs(1);
            let mut selection = Selection { evict: pods.to_vec(), ..Selection::default() };
            let new = self.0.keep(&mut selection, cordon, self.1);
            let evicted = selection.evict.iter().map(|departure| departure.pod.uid.to_string()).collect();
            let stay = selection.left_alone.iter().map(|(pod, why)| {
                assert_eq!(*why, StayReason::ComesBack);
                pod.uid.to_string()
            });
            (evicted, stay.collect(), new.len())
        }

        fn evicts(&mut self, pods: &[Departure], cordon: Option<bool>) -> bool {
            let (evicted, stay, _) = self.show(pods, cordon);
            assert_eq!(evicted.len() + stay.len(), pods.len());
            stay.is_empty()
        }
    }

    fn lists() -> Lists {
        Lists(Returns::default(), Instant::now())
    }

    #[test]
    fn the_third_pod_that_comes_back_stays() {
        let mut lists = lists();
        assert!(lists.evicts(&[pod("0", "web", true)], None));
        assert!(lists.evicts(&[pod("0", "web", true)], Some(false)), "it was there before");
        assert!(lists.evicts(&[pod("1", "web", true)], Some(false)));
        assert!(lists.evicts(&[pod("1", "web", true), pod("2", "web", true)], Some(false)), "the first waits");
        let third = [pod("3", "web", true), pod("x", "db", true)];
        assert_eq!(lists.show(&third, Some(false)), (vec!["x".to_owned()], vec!["3".to_owned()], 1));
        assert_eq!(lists.show(&third, Some(false)).2, 0, "it is told once");
        assert_eq!(lists.show(&[pod("4", "web", true)], Some(false)), (vec![], vec!["4".to_owned()], 0));
    }

    #[test]
    fn of_a_node_ten_are_evicted() {
        let mut lists = lists();
        lists.evicts(&[], Some(false));
        let pods: Vec<_> = (0..11).map(|n| pod(&n.to_string(), &format!("owner-{n}"), true)).collect();
        let (evicted, stay, new) = lists.show(&pods, Some(false));
        assert_eq!((evicted.len(), stay.len(), new), (10, 1, 1));
    }

    #[test]
    fn what_the_scheduler_binds_unawares_is_ordinary() {
        let mut lists = lists();
        lists.evicts(&[], Some(false));
        let late: Vec<_> = (0..20).map(|n| pod(&n.to_string(), "web", false)).collect();
        assert!(lists.evicts(&late, Some(false)));
        lists.1 += SCHEDULER_LAG;
        assert!(lists.evicts(&late, Some(false)), "they still wait");
        let past: Vec<_> = (20..23).map(|n| pod(&n.to_string(), "web", false)).collect();
        assert_eq!(lists.show(&past, Some(false)).1, ["22"], "nobody asked the scheduler");
    }

    #[test]
    fn what_comes_while_there_is_no_cordon_is_ordinary() {
        let mut lists = lists();
        lists.evicts(&[], Some(false));
        let some = |from: usize| (from..from + 5).map(|n| pod(&n.to_string(), "web", true)).collect::<Vec<_>>();
        assert!(lists.evicts(&some(0), None), "it is gone");
        assert!(lists.evicts(&some(5), Some(true)), "it was restored meanwhile");
        assert!(!lists.evicts(&some(10), Some(true)));
    }

    #[test]
    fn those_that_stay_are_told_once_more_before_the_node_goes() {
        let mut lists = lists();
        lists.evicts(&[], Some(false));
        let web = |uid: &str| [pod(uid, "web", true)];
        for (uid, evicted) in [("1", true), ("2", true), ("3", false)] {
            assert_eq!(lists.evicts(&web(uid), Some(false)), evicted);
        }
        assert_eq!(lists.0.last_call_grace(None).map(Grace::full), Some(Duration::from_secs(30)));
        lists.0.call_last();
        let all = ["3", "4", "5"].map(|uid| pod(uid, "web", true));
        assert!(lists.evicts(&all, Some(false)), "each that stays");
        assert!(lists.evicts(&all, Some(false)), "they still wait");
        assert!(!lists.evicts(&web("6"), Some(false)), "once");
        assert_eq!(lists.0.last_call_grace(None), None);
    }
}
