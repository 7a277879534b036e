//! Whether an Auto Scaling group can replace an instance before its drain, so that its pods have a node to move to. Pure.

use crate::fact::Replacement;
use std::collections::BTreeMap;

/// An Auto Scaling group, as far as a replacement needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Its desired capacity.
    pub desired: usize,
    /// Its maximum size.
    pub max: usize,
    /// Whether its instance maintenance policy launches a new instance before it terminates an unhealthy one.
    pub launches_first: bool,
    /// Whether its instances have a maximum lifetime.
    pub max_lifetime: bool,
    /// Its suspended processes.
    pub suspended: Vec<String>,
    /// Its instances by ID.
    pub members: BTreeMap<String, Member>,
    /// The names of its terminating hooks.
    pub hooks: Vec<String>,
}

/// An instance of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its state in the group.
    pub state: MemberState,
    /// Whether Auto Scaling considers it healthy.
    pub healthy: bool,
    /// Whether it is protected from scale-in.
    pub protected: bool,
}

impl Member {
    /// Whether it is in service, and no replacement has been requested.
    #[must_use]
    pub fn is_in_service(self) -> bool {
        self.state == MemberState::InService && self.healthy
    }
}

/// The state of an instance in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It is being launched.
    Joins,
    /// It is in service.
    InService,
    /// It is terminated, detached or in standby, or about to be.
    Leaves,
}

/// The processes without which a group does not replace an unhealthy instance, or not in the right order.
const PROCESSES: [&str; 4] = ["Launch", "Terminate", "HealthCheck", "ReplaceUnhealthy"];

/// Checks whether the group would launch a replacement first if the instance were marked unhealthy. One that is already unhealthy is replaced
/// in any case.
///
/// # Errors
/// Why not.
pub fn replaceable(group: &Group, instance: &str, completes: impl Fn(&str) -> bool) -> Result<(), Replacement> {
    group.replaces(completes)?;
    in_service(group, instance)
}

/// Checks whether the group would terminate a drained instance that is marked as unhealthy, and launch another, in any order.
///
/// # Errors
/// Why not.
pub fn terminable(group: &Group, instance: &str) -> Result<(), Replacement> {
    if group.suspends(&PROCESSES) {
        return Err(Replacement::Suspended);
    }
    in_service(group, instance)
}

/// Checks whether the instance may be marked as unhealthy.
fn in_service(group: &Group, instance: &str) -> Result<(), Replacement> {
    match group.members.get(instance) {
        // Auto Scaling replaces an unhealthy instance despite its protection, which its owner may not want.
        Some(member) if member.protected => Err(Replacement::Protected),
        Some(member) if member.state == MemberState::InService => Ok(()),
        _ => Err(Replacement::NotInService),
    }
}

impl Group {
    /// Checks whether the group launches first, and terminates under a hook that Ebbtide `completes`.
    ///
    /// # Errors
    /// Why not.
    pub fn replaces(&self, completes: impl Fn(&str) -> bool) -> Result<(), Replacement> {
        if !self.hooks.iter().any(|hook| completes(hook)) {
            return Err(Replacement::NoHook);
        }
        if !self.launches_first {
            return Err(Replacement::TerminatesFirst);
        }
        if self.suspends(&PROCESSES) {
            return Err(Replacement::Suspended);
        }
        // AWS does not document whether a policy lets a group exceed its maximum for an unhealthy instance.
        if self.desired >= self.max {
            return Err(Replacement::AtMaximum);
        }
        Ok(())
    }

    /// Whether one of these processes is suspended.
    #[must_use]
    pub fn suspends(&self, processes: &[&str]) -> bool {
        self.suspended.iter().any(|suspended| processes.contains(&suspended.as_str()))
    }

    /// Whether the group has its desired capacity in `ready` Nodes without this instance.
    #[must_use]
    pub fn is_whole_without(&self, instance: &str, ready: impl Fn(&str) -> bool) -> bool {
        let stays =
            |(id, member): &(&String, &Member)| *id != instance && member.state != MemberState::Leaves && ready(id);
        self.members.iter().filter(stays).count() >= self.desired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMBER: Member = Member { state: MemberState::InService, healthy: true, protected: false };

    fn group() -> Group {
        Group {
            desired: 2,
            max: 3,
            launches_first: true,
            max_lifetime: false,
            suspended: Vec::new(),
            members: [("i-1", MEMBER), ("i-2", MEMBER)].map(|(id, member)| (id.to_owned(), member)).into(),
            hooks: vec!["Terminate-LC-Hook".to_owned(), "drain".to_owned()],
        }
    }

    fn judged(change: impl FnOnce(&mut Group)) -> Result<(), Replacement> {
        let mut group = group();
        change(&mut group);
        replaceable(&group, "i-1", |hook| hook != "Terminate-LC-Hook")
    }

    #[test]
    fn a_group_that_launches_first_under_our_hook_replaces() {
        assert_eq!(judged(|_| {}), Ok(()));
        assert_eq!(judged(|group| group.suspended = vec!["AZRebalance".to_owned()]), Ok(()));
        assert_eq!(judged(|group| group.hooks.clear()), Err(Replacement::NoHook));
        assert_eq!(judged(|group| group.hooks.truncate(1)), Err(Replacement::NoHook), "EKS completes it");
        assert_eq!(judged(|group| group.launches_first = false), Err(Replacement::TerminatesFirst));
        for process in PROCESSES {
            assert_eq!(judged(|group| group.suspended = vec![process.to_owned()]), Err(Replacement::Suspended));
        }
        assert_eq!(judged(|group| group.max = 2), Err(Replacement::AtMaximum));
        let member = |member| {
            move |group: &mut Group| {
                group.members.insert("i-1".to_owned(), member);
            }
        };
        assert_eq!(judged(member(Member { protected: true, ..MEMBER })), Err(Replacement::Protected));
        assert_eq!(judged(member(Member { state: MemberState::Leaves, ..MEMBER })), Err(Replacement::NotInService));
        assert_eq!(judged(|group| group.members.clear()), Err(Replacement::NotInService));
    }

    #[test]
    fn a_group_is_whole_with_its_desired_capacity_in_ready_nodes() {
        let whole = |change: fn(&mut Group), ready: &[&str]| {
            let mut group = group();
            group.members.insert("i-3".to_owned(), MEMBER);
            change(&mut group);
            group.is_whole_without("i-1", |id| ready.contains(&id))
        };
        assert!(whole(|_| {}, &["i-1", "i-2", "i-3"]));
        assert!(!whole(|_| {}, &["i-1", "i-2"]), "the new one is not Ready");
        assert!(whole(|group| group.desired = 1, &["i-1", "i-2"]), "it shrinks");
        assert!(
            !whole(|group| group.members.retain(|id, _| id != "i-3"), &["i-1", "i-2"]),
            "the new one is not launched"
        );
        let leaves = |group: &mut Group| group.members.get_mut("i-2").unwrap().state = MemberState::Leaves;
        assert!(!whole(leaves, &["i-1", "i-2", "i-3"]));
    }
}
