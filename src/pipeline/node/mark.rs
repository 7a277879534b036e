//! The marks that notices leave on a Node: the cordon, taints, labels, and the record of each notice. Pure.
//!
//! The record of a notice holds the Node. One annotation more lists the changes that Ebbtide made to the Node, so that nothing is removed
//! that was there before. Both are on the Node, so any replica can undo the work of another, also after a restart.

use super::Node;
use super::names::{EXCLUDE_LABEL, OWN_PREFIX};
use super::patch::{Extent, guarded};
use super::record::{
    Boot, HookState, NoticeRecord, Place, RecordChange, ReturnSign, UNDO_ANNOTATION, Undo, Work, is_of_listed, text,
    whole_seconds,
};
use crate::fact::UndoReason;
use crate::pipeline::event::{Identity, NoticeKey, NoticeKind};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use serde_json::{Value, json};

/// Name of the annotation that a restart leaves which the Node's Ready condition does not show. Its value is the time at which the
/// restart was seen.
pub(super) const BOOTED_ANNOTATION: &str = "ebbtide/booted";

/// Name of the label with the kind of the Node's newest notice.
pub(super) const KIND_LABEL: &str = "ebbtide/kind";

/// The settings of every mark.
#[derive(Clone, Debug, Default)]
pub struct MarkSettings {
    /// Taints that a mark adds.
    pub taints: Vec<Taint>,
    /// Keys of the taints that a mark added with earlier settings.
    pub former_taints: Vec<String>,
    /// Whether a mark keeps load balancers away.
    pub exclude_from_load_balancers: bool,
}

impl MarkSettings {
    /// Returns the keys of the taints that marks add, or added with earlier settings, in the order of the settings.
    #[must_use]
    pub fn taint_keys(&self) -> Vec<&str> {
        self.taints.iter().map(|taint| &*taint.key).chain(self.former_taints.iter().map(|key| &**key)).collect()
    }

    /// Returns what marks put on this Node, by name, each as the patch of a mark that puts nothing else there: first the cordon with the
    /// record alone, and after it each taint and label with these. The patches are for dry runs.
    #[must_use]
    pub fn trials(&self, node: &Node, out_of_service: bool) -> Vec<(String, Value)> {
        let key = Identity::of_change("trial".to_owned(), node.instance.clone()).key();
        let bare = Mark::new(key, NoticeKind::Spot.as_str(), Timestamp::UNIX_EPOCH, "trial");
        let gone = out_of_service.then(|| {
            (
                format!("the taint {}", written(&self::out_of_service())),
                bare.clone().with_out_of_service_taint(),
                Self::default(),
            )
        });
        let alone = |taint: &Taint| {
            let taints = vec![taint.clone()];
            (format!("the taint {}", written(taint)), bare.clone(), Self { taints, ..Self::default() })
        };
        let label = self.exclude_from_load_balancers.then(|| {
            let settings = Self { exclude_from_load_balancers: true, ..Self::default() };
            (format!("the label {EXCLUDE_LABEL}"), bare.clone(), settings)
        });
        let first = ("the cordon and the record".to_owned(), bare.clone(), Self::default());
        let all = [first].into_iter().chain(self.taints.iter().map(alone)).chain(gone).chain(label);
        all.filter_map(|(name, mark, settings)| Some((name, mark.patch(node, &settings)?))).collect()
    }

    /// Divides the entries that a Node lists for removal into those that a mark may have added, by these or earlier settings, and the rest,
    /// which stays: an attacker who can annotate a Node can list the taints and labels of others.
    pub(super) fn divide(&self, listed: Undo) -> (Undo, Vec<String>) {
        let out_of_service = written(&out_of_service());
        let is_own_taint = |taint: &String| {
            let key = taint.split(['=', ':']).next().unwrap_or_default();
            *taint == out_of_service
                || self.taints.iter().any(|own| own.key == key)
                || self.former_taints.iter().any(|own| own == key)
                || key.starts_with(OWN_PREFIX)
        };
        let is_own_label = |label: &String| label == EXCLUDE_LABEL || label.starts_with(OWN_PREFIX);
        let (taints, other_taints): (Vec<_>, Vec<_>) = listed.taints.into_iter().partition(is_own_taint);
        let (labels, other_labels): (Vec<_>, Vec<_>) = listed.labels.into_iter().partition(is_own_label);
        (Undo { taints, labels, ..listed }, [other_taints, other_labels].concat())
    }
}

/// The mark of one notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    key: NoticeKey,
    notice: NoticeRecord,
    out_of_service: bool,
    again: bool,
}

impl Mark {
    /// Returns the mark of the notice with this key. `since` is AWS's time of the notice.
    #[must_use]
    pub fn new(key: NoticeKey, kind: &str, since: Timestamp, message: &str) -> Self {
        let notice = NoticeRecord::new(kind.to_owned(), since, message.to_owned());
        Self { key, notice, out_of_service: false, again: false }
    }

    /// Sets the drain's deadline.
    #[must_use]
    pub fn with_deadline(mut self, at: Option<Timestamp>) -> Self {
        self.notice.deadline = at.map(whole_seconds);
        self
    }

    /// Sets the start of the announced change, and whether the capacity ends with it.
    #[must_use]
    pub fn with_start(mut self, at: Option<Timestamp>, hard: bool) -> Self {
        (self.notice.start, self.notice.hard) = (at.map(whole_seconds), hard);
        self
    }

    /// Sets the time that the notice names, if it is not the start of a change.
    #[must_use]
    pub fn naming(mut self, at: Option<Timestamp>) -> Self {
        self.notice.named = at.map(whole_seconds).filter(|at| self.notice.start != Some(*at));
        self
    }

    /// Sets the time at which the mark is removed if no interruption has followed.
    #[must_use]
    pub fn with_expiry(mut self, at: Option<Timestamp>) -> Self {
        self.notice.expires = at.map(whole_seconds);
        self
    }

    /// Sets the sign at which the mark is removed, if the instance can return.
    #[must_use]
    pub fn with_return_sign(mut self, sign: Option<ReturnSign>) -> Self {
        self.notice.return_sign = sign;
        self
    }

    /// Sets the pool of Nodes in whose settings the work begins.
    #[must_use]
    pub fn in_pool(mut self, pool: Option<&str>) -> Self {
        self.notice.pool = pool.map(Into::into);
        self
    }

    /// Restarts a finished drain, including its wait.
    #[must_use]
    pub const fn again(mut self) -> Self {
        self.again = true;
        self
    }

    /// Adds the taint that lets the pods of a stopped or terminated instance move.
    #[must_use]
    pub fn with_out_of_service_taint(mut self) -> Self {
        self.out_of_service = true;
        self
    }

    /// Sets that evictions wait for a place in the Node's wave, or for the end of a zonal shift.
    #[must_use]
    pub const fn in_wave(mut self) -> Self {
        self.notice.place = Some(Place::Waits);
        self
    }

    /// Sets that the Node may have come back already, so that its present boot may be the return.
    #[must_use]
    pub fn of_unknown_boot(mut self) -> Self {
        self.notice.boot = Boot::unknown();
        self
    }

    /// Sets the state of the lifecycle hook.
    #[must_use]
    pub const fn with_hook(mut self, hook: HookState) -> Self {
        self.notice.hook = hook;
        self
    }

    /// Returns the patch that writes the whole mark; `None` if the Node has all of it.
    #[must_use]
    pub fn patch(&self, node: &Node, settings: &MarkSettings) -> Option<Value> {
        self.patch_to(node, settings, Extent::Whole)
    }

    /// Returns the patch that writes the mark to this extent; `None` if the Node has all of that.
    pub(super) fn patch_to(&self, node: &Node, settings: &MarkSettings, extent: Extent) -> Option<Value> {
        if self.is_needless(node) {
            return None;
        }
        let missing = self.missing_taints(node, settings, extent);
        let unlabelled =
            extent == Extent::Whole && settings.exclude_from_load_balancers && !node.labels.contains_key(EXCLUDE_LABEL);
        // A mark from before a restart of the node is about to be removed, so it must be written again; and so must one of a change that
        // was put off, and of a hook that AWS does not know.
        let known = node.record.notice(self.key);
        let changes = |record: &NoticeRecord| (record.start, record.hook == HookState::None);
        let is_same = |mark: &NoticeRecord| changes(mark) == changes(&self.notice);
        let stands = |mark: &NoticeRecord| mark.boot == mark.boot_on(&node.boot) && is_same(mark);
        let is_unreadable = known.is_some_and(NoticeRecord::is_unreadable);
        let marked = known.is_some_and(|mark| stands(mark) && !(self.again && mark.place == Some(Place::Over)));
        // The Node is drained for other notices as well, and has no room for another mark.
        let is_full = known.is_none() && node.record.is_full_of(Work::Open);
        // The mark of a drain replaces one that only holds a cordon, because drains are counted by their marks.
        let crowded_out = self.crowds_out(node).filter(|_| is_full);
        // A record of another version is not rewritten.
        let unmarkable = is_full && crowded_out.is_none() || is_unreadable;
        if node.cordoned && (marked || unmarkable) && missing.is_empty() && !unlabelled {
            return None;
        }
        // Without a notice, the annotation is a leftover that does not describe the Node's current state.
        let mut undo = if node.record.is_held() { node.record.undo().clone() } else { Undo::default() };
        if !node.cordoned {
            (undo.cordon, undo.restored) = (true, false);
        }
        let mut labels = json!({ KIND_LABEL: self.notice.kind });
        if unlabelled {
            labels[EXCLUDE_LABEL] = json!("true");
            add(&mut undo.labels, EXCLUDE_LABEL.to_owned());
        }
        let mut spec = json!({ "unschedulable": true });
        if !missing.is_empty() {
            missing.iter().map(written).for_each(|taint| add(&mut undo.taints, taint));
            let all: Vec<&Taint> = node.taints.iter().chain(&missing).collect();
            spec["taints"] = json!(all);
        }
        let mut notice = continuing(&self.notice, known, &node.boot);
        if let Some(known) = node.record.get(self.key).filter(|known| known.work != Work::Withdrawn) {
            // The Node keeps a change until the work on it has ended.
            notice.kept.clone_from(&known.kept);
            notice.also.clone_from(&known.also);
            if known.is_over(notice.named.or(notice.start)) {
                notice.work = Work::Ended;
            }
        }
        let adopted = self.adopted(node);
        if let Some((_, hint)) = adopted {
            notice.place = hint.place.or(notice.place);
        }
        let gone = adopted.into_iter().chain(crowded_out);
        let mut changes: Vec<_> =
            gone.map(|(key, notice)| RecordChange { key, left: notice.released(UndoReason::Withdrawn) }).collect();
        if !unmarkable {
            changes.push(RecordChange { key: self.key, left: Some(notice) });
        }
        let mut annotations = node.record.annotations(&changes);
        annotations.insert(UNDO_ANNOTATION.to_owned(), text(&undo).into());
        Some(guarded(node, &annotations.into(), &labels, spec))
    }

    /// Whether the Node has the record of another source about the same change: the work on that one continues.
    pub(super) fn is_of_another(&self, node: &Node) -> bool {
        let Self { key, notice, .. } = self;
        let own = node.record.get(*key);
        let has_own = own.is_some_and(|own| own.work.is_live() || own.is_over(notice.start));
        let is_listed = is_of_listed(*key, notice, &node.instance);
        // One that a message can't join, because its id is not known, is left alone.
        let is_same = |(other, known): (NoticeKey, &NoticeRecord)| {
            let joins = is_listed || known.is_over(notice.start) || is_of_listed(other, known, &node.instance);
            joins && known.starts_at(notice.start) && known.work != Work::Withdrawn
        };
        let other = || node.record.of_other(*key, notice.start, is_listed, &node.instance);
        notice.start.is_some() && !has_own && other().is_some_and(is_same)
    }

    /// Whether this is the mark of a hint, and the Node has that of a hook's message.
    fn is_needless(&self, node: &Node) -> bool {
        self.notice.is_hint_of_termination() && node.record.is_termination_announced()
    }

    /// Returns the mark of a hint that gives way to this one of a hook's message, which continues in its place in the wave.
    fn adopted<'a>(&self, node: &'a Node) -> Option<(NoticeKey, &'a NoticeRecord)> {
        let adopts = self.notice.is_of(NoticeKind::AsgTerminate) && !self.notice.is_hint_of_termination();
        node.record.notices().find(|(_, notice)| adopts && notice.is_hint_of_termination())
    }

    /// Returns the oldest mark on the Node that is not of a drain, if this one is.
    fn crowds_out<'a>(&self, node: &'a Node) -> Option<(NoticeKey, &'a NoticeRecord)> {
        self.notice.deadline?;
        let cordons = node.record.notices().filter(|(_, notice)| !notice.is_drain());
        cordons.min_by_key(|(_, notice)| notice.since)
    }

    /// Returns the taints that the Node lacks. A taint of the same key and effect belongs to another controller, whatever its value.
    fn missing_taints(&self, node: &Node, settings: &MarkSettings, extent: Extent) -> Vec<Taint> {
        let of_settings = settings.taints.iter().filter(|_| extent == Extent::Whole);
        let is_out_of_service = self.out_of_service && extent >= Extent::OutOfService;
        let wanted = of_settings.cloned().chain(is_out_of_service.then(out_of_service));
        let has = |taint: &Taint| node.taints.iter().any(|has| has.key == taint.key && has.effect == taint.effect);
        wanted.filter(|taint| !has(taint)).collect()
    }
}

/// Returns what the record becomes when it is written over `known` on a Node with this boot: evictions that have begun since the last restart
/// continue.
fn continuing(record: &NoticeRecord, known: Option<&NoticeRecord>, boot: &str) -> NoticeRecord {
    let evicts = |known: &&NoticeRecord| known.boot == Boot::new(boot) && matches!(known.place, Some(Place::Evicts(_)));
    let place = known.filter(evicts).and_then(|known| known.place);
    let first = || if record.boot.is_empty() { Boot::new(boot) } else { record.boot.clone() };
    let at_first = known.map_or_else(first, |known| known.boot_on(boot));
    NoticeRecord { place: place.or(record.place), boot: at_first, ..record.clone() }
}

/// Returns the taint that lets the pods of a stopped or terminated instance move, defined by Kubernetes.
#[must_use]
pub fn out_of_service() -> Taint {
    Taint {
        key: "node.kubernetes.io/out-of-service".to_owned(),
        value: Some("nodeshutdown".to_owned()),
        effect: "NoExecute".to_owned(),
        time_added: None,
    }
}

fn add(list: &mut Vec<String>, entry: String) {
    if !list.contains(&entry) {
        list.push(entry);
    }
}

/// Formats a taint as `kubectl` does.
#[must_use]
pub fn written(Taint { key, value, effect, .. }: &Taint) -> String {
    match value.as_deref() {
        None | Some("") => format!("{key}:{effect}"),
        Some(value) => format!("{key}={value}:{effect}"),
    }
}

/// Returns the patch that cordons the Node again. This cordon is Ebbtide's, even if the one that was removed was not.
pub(super) fn recordon(node: &Node) -> Value {
    let mut undo = node.record.undo().clone();
    (undo.cordon, undo.restored) = (true, true);
    guarded(node, &json!({ UNDO_ANNOTATION: text(&undo) }), &json!({}), json!({ "unschedulable": true }))
}

#[cfg(test)]
mod tests;
