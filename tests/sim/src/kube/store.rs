//! Objects and their history, with one version counter.
//!
//! Each resource keeps its last changes in a log, and a watch is a position in that log, so that a change costs the same
//! with one watch or a thousand.

use super::object::Object;
use super::route::Resource;
use super::watch::Interrupt;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use tokio::sync::watch;

/// Number of changes kept for each resource: enough for every watch that is being read, and few enough for a test to
/// exceed.
const HISTORY: usize = 10_000;

/// Number of partly read lists kept.
const PAGES: usize = 256;

/// Key of an object; the namespace is empty if the resource has none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Returns the key of an object without a namespace.
    pub fn cluster(name: &str) -> Self {
        Self::new("", name)
    }
}

/// One change of one object.
#[derive(Debug)]
pub(super) struct Change {
    pub version: u64,
    /// The object after the change; a removed object's last state, with the version of its removal.
    pub object: Arc<Object>,
    /// The object before the change; `None` for a new object.
    pub before: Option<Arc<Object>>,
    pub removed: bool,
}

#[derive(Debug)]
struct Table {
    objects: BTreeMap<Key, Arc<Object>>,
    log: VecDeque<Change>,
    /// Position of the log's first entry among all changes ever made.
    first: u64,
    /// Last version that is no longer in the log.
    forgotten: u64,
    /// Wakes the watches.
    signal: watch::Sender<()>,
}

/// Rest of a list that is read in pages: a consistent state at a version.
#[derive(Debug, Default)]
struct Pages {
    next: u64,
    left: BTreeMap<u64, (u64, Vec<Arc<Object>>)>,
}

/// All objects and their history.
#[derive(Debug)]
pub(super) struct Store {
    version: u64,
    tables: BTreeMap<Resource, Table>,
    by_node: BTreeMap<String, BTreeSet<Key>>,
    pages: Pages,
    interrupts: Vec<Interrupt>,
}

impl Store {
    pub fn new() -> Self {
        let table = |resource| {
            let signal = watch::Sender::new(());
            let table = Table { objects: BTreeMap::new(), log: VecDeque::new(), first: 0, forgotten: 1, signal };
            (resource, table)
        };
        Self {
            version: 1,
            tables: Resource::ALL.into_iter().map(table).collect(),
            by_node: BTreeMap::new(),
            pages: Pages::default(),
            interrupts: Vec::new(),
        }
    }

    fn table(&self, resource: Resource) -> &Table {
        self.tables.get(&resource).expect("every resource must have a table")
    }

    fn table_mut(&mut self, resource: Resource) -> &mut Table {
        self.tables.get_mut(&resource).expect("every resource must have a table")
    }

    /// Returns the version of the last change.
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn get(&self, resource: Resource, key: &Key) -> Option<&Arc<Object>> {
        self.table(resource).objects.get(key)
    }

    /// Returns all objects of a resource, by namespace and name.
    pub fn all(&self, resource: Resource) -> impl Iterator<Item = &Arc<Object>> {
        self.table(resource).objects.values()
    }

    /// Returns the objects in a namespace, by name.
    pub fn in_namespace<'a>(&'a self, resource: Resource, namespace: &'a str) -> impl Iterator<Item = &'a Arc<Object>> {
        let from = Key::new(namespace, "");
        self.table(resource)
            .objects
            .range(from..)
            .take_while(move |(key, _)| key.namespace == namespace)
            .map(|(_, it)| it)
    }

    /// Returns all objects of a resource as they were at an earlier version, which the history must reach.
    pub fn at(&self, resource: Resource, version: u64) -> BTreeMap<Key, Arc<Object>> {
        let table = self.table(resource);
        let mut objects = table.objects.clone();
        for change in table.log.iter().rev().take_while(|change| change.version > version) {
            let key = change.object.key();
            match &change.before {
                Some(before) => objects.insert(key, Arc::clone(before)),
                None => objects.remove(&key),
            };
        }
        objects
    }

    /// Returns the pods that are bound to a node.
    pub fn pods_on<'a>(&'a self, node: &str) -> impl Iterator<Item = &'a Arc<Object>> {
        let keys = self.by_node.get(node).into_iter().flatten();
        keys.filter_map(|key| self.get(Resource::Pods, key))
    }

    /// Writes an object with the next version; returns its new and its old state.
    pub fn put(&mut self, resource: Resource, object: Object) -> (Arc<Object>, Option<Arc<Object>>) {
        self.version += 1;
        let version = self.version;
        let object = Arc::new(object.with_meta(|meta| meta.resource_version = Some(version.to_string())));
        let key = object.key();
        let table = self.table_mut(resource);
        let before = table.objects.insert(key.clone(), Arc::clone(&object));
        table.append(Change { version, object: Arc::clone(&object), before: before.clone(), removed: false });
        if resource == Resource::Pods && before.as_ref().map(|pod| &pod.facts.node) != Some(&object.facts.node) {
            before.iter().for_each(|before| self.unbind(before));
            self.bind(&object);
        }
        (object, before)
    }

    /// Removes an object; returns its last state.
    pub fn remove(&mut self, resource: Resource, key: &Key) -> Option<Arc<Object>> {
        let before = self.table_mut(resource).objects.remove(key)?;
        self.version += 1;
        let version = self.version;
        let object = Arc::new(before.with_meta(|meta| meta.resource_version = Some(version.to_string())));
        let change = Change { version, object: Arc::clone(&object), before: Some(Arc::clone(&before)), removed: true };
        self.table_mut(resource).append(change);
        if resource == Resource::Pods {
            self.unbind(&before);
        }
        Some(object)
    }

    fn bind(&mut self, pod: &Object) {
        if let Some(node) = &pod.facts.node {
            self.by_node.entry(node.clone()).or_default().insert(pod.key());
        }
    }

    fn unbind(&mut self, pod: &Object) {
        let Some(node) = &pod.facts.node else { return };
        let Some(pods) = self.by_node.get_mut(node) else { return };
        pods.remove(&pod.key());
        if pods.is_empty() {
            self.by_node.remove(node);
        }
    }
}

/// History.
impl Store {
    /// Returns the position in a resource's log right after a version, or the oldest version that is still available.
    pub fn place_after(&self, resource: Resource, version: u64) -> Result<u64, u64> {
        let table = self.table(resource);
        if version < table.forgotten {
            return Err(table.forgotten);
        }
        let skipped = table.log.partition_point(|change| change.version <= version);
        Ok(table.first + skipped as u64)
    }

    /// Returns the changes from a position on, or `None` if some of them are forgotten.
    pub fn changes(&self, resource: Resource, place: u64) -> Option<impl Iterator<Item = &Change>> {
        let table = self.table(resource);
        let skipped = usize::try_from(place.checked_sub(table.first)?).ok()?;
        Some(table.log.range(skipped.min(table.log.len())..))
    }

    /// Returns a signal of changes to the resource, and of interruptions of its watches.
    pub fn signal(&self, resource: Resource) -> watch::Receiver<()> {
        self.table(resource).signal.subscribe()
    }

    /// Returns the number of watches that wait for changes.
    pub fn receivers(&self) -> usize {
        self.tables.values().map(|table| table.signal.receiver_count()).sum()
    }

    /// Forgets all changes so far.
    pub fn compact(&mut self) {
        let version = self.version;
        for table in self.tables.values_mut() {
            table.first += table.log.len() as u64;
            table.log.clear();
            table.forgotten = version;
        }
        self.pages.left.clear();
    }

    /// Returns the number of interruptions so far.
    pub fn interrupts(&self) -> usize {
        self.interrupts.len()
    }

    /// Returns the interruption with this number.
    pub fn interruption(&self, number: usize) -> Option<Interrupt> {
        self.interrupts.get(number).copied()
    }

    pub fn interrupt(&mut self, how: Interrupt) {
        self.interrupts.push(how);
        self.tables.values().for_each(|table| table.signal.send_modify(|()| ()));
    }

    /// Keeps the rest of a list; returns the token for its continuation.
    pub fn keep_rest(&mut self, version: u64, rest: Vec<Arc<Object>>) -> String {
        let number = self.pages.next;
        self.pages.next += 1;
        self.pages.left.insert(number, (version, rest));
        if self.pages.left.len() > PAGES {
            self.pages.left.pop_first();
        }
        format!("page-{number}")
    }

    /// Returns the rest of a list, and its version.
    pub fn rest_of(&self, token: &str) -> Option<(u64, Vec<Arc<Object>>)> {
        self.pages.left.get(&token.strip_prefix("page-")?.parse().ok()?).cloned()
    }
}

impl Table {
    fn append(&mut self, change: Change) {
        self.log.push_back(change);
        if self.log.len() > HISTORY
            && let Some(oldest) = self.log.pop_front()
        {
            self.first += 1;
            self.forgotten = oldest.version;
        }
        self.signal.send_modify(|()| ());
    }
}
