//! How old a list of pods may be. Pure.

use crate::clients::watch as versions;

/// How old a list of pods may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Age {
    /// As old as the API server's cache, but not older than what the watch has told.
    Cached,
    /// Not older than this version, which the watch has told since the drain's last list. The API server has it in its cache, or it
    /// could not have told it, and need not ask etcd; which, with its cache behind in a storm, would read the pods of all nodes for
    /// each of these lists.
    Seen(String),
    /// Of now. Kubernetes 1.31 and newer answers that from its cache, too, once that has caught up.
    Now,
}

impl Age {
    /// How old the list may be that follows one of this version: what the watch has told since is new enough only if that came after
    /// the Node's cordon, too. The watch and the lists may come from one cache, which is behind: it might not know yet what was bound
    /// just before the cordon. Versions of Nodes and pods are one row of numbers, as long as one etcd keeps both; where they aren't
    /// numbers, nothing is newer.
    pub fn next(listed: &str, seen: Option<String>, cordoned: Option<&str>) -> Self {
        let newer = |seen: &String| {
            versions::older(listed, seen) && cordoned.is_some_and(|cordoned| versions::older(cordoned, seen))
        };
        seen.filter(newer).map_or(Self::Now, Self::Seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_of_now_unless_the_watch_has_told_something_newer_than_the_cordon() {
        for (listed, seen, cordoned, expected) in [
            ("7", Some("9"), Some("8"), Age::Seen("9".to_owned())),
            ("7", Some("10"), Some("9"), Age::Seen("10".to_owned())),
            ("7", Some("9"), Some("9"), Age::Now),
            ("7", Some("9"), Some("10"), Age::Now),
            ("9", Some("9"), Some("8"), Age::Now),
            ("7", Some("9"), None, Age::Now),
            ("7", None, Some("8"), Age::Now),
            ("7", Some("x"), Some("8"), Age::Now),
            ("7", Some("9"), Some("x"), Age::Now),
        ] {
            let age = Age::next(listed, seen.map(str::to_owned), cordoned);
            assert_eq!(age, expected, "{listed} {seen:?} {cordoned:?}");
        }
    }
}
