//! Imports follow `FOLDERS` and `STAGES`: they never run back, and they form no circle.

use super::sources::{Library, Segments};
use std::collections::{BTreeMap, BTreeSet};

/// The folders of `src` from the top down, each with the folders that it may import.
const FOLDERS: [(&str, &[&str]); 11] = [
    ("commands", &["cli", "telemetry", "leftovers", "pipeline", "leases", "clients", "runtime", "fact"]),
    ("service", &["cli", "telemetry", "leftovers", "pipeline", "leases", "clients", "runtime", "fact"]),
    ("agent", &["telemetry", "pipeline", "clients", "runtime", "fact"]),
    ("cli", &["telemetry", "pipeline", "runtime", "fact"]),
    ("telemetry", &["clients", "runtime", "fact"]),
    ("leftovers", &["pipeline", "leases", "clients", "runtime", "fact"]),
    ("pipeline", &["leases", "clients", "runtime", "fact"]),
    ("leases", &["clients", "runtime", "fact"]),
    ("clients", &["runtime", "fact"]),
    ("runtime", &["fact"]),
    ("fact", &[]),
];

/// The stages of the pipeline, and the stages that each imports.
const STAGES: [(&str, &[&str]); 6] = [
    ("queue", &[]),
    ("event", &[]),
    ("node", &["event"]),
    ("drain", &["event", "node"]),
    ("interruption", &["drain", "event", "node"]),
    ("sources", &["event", "interruption", "node", "queue"]),
];

/// Crates that only some folders name.
const CRATES: [(&str, &[&str]); 7] = [
    ("serde_saphyr", &["cli", "clients", "commands"]),
    ("aws_sdk_sqs", &["clients", "commands", "pipeline"]),
    ("aws_sdk_autoscaling", &["clients", "commands", "pipeline"]),
    ("aws_sdk_ec2", &["clients", "commands", "pipeline"]),
    ("aws_sdk_eventbridge", &["clients", "commands"]),
    ("aws_sdk_sts", &["clients", "commands"]),
    ("tracing", &["telemetry"]),
];

#[test]
fn imports_never_run_back() {
    let library = Library::read();
    let mut wrong = Vec::new();
    let mut check = |module: &[String], imports: &BTreeSet<Segments>, level: usize, allowed: &[(&str, &[&str])]| {
        let Some(own) = module.get(level) else { return };
        let (_, below) = allowed.iter().find(|(name, _)| name == own).unwrap_or_else(|| panic!("{own} has no row"));
        for import in imports.iter().filter(|import| import.starts_with(&module[..level])) {
            let Some(other) = import.get(level) else { continue };
            if other != own && allowed.iter().any(|(name, _)| name == other) && !below.contains(&other.as_str()) {
                wrong.push(format!("{} imports {}", module.join("::"), import.join("::")));
            }
        }
    };
    for (path, module) in &library.modules {
        let imports = library.imports(module);
        check(path, &imports, 0, &FOLDERS);
        if path.starts_with(&["pipeline".to_owned()]) {
            check(path, &imports, 1, &STAGES);
        }
    }
    for (path, module) in &library.modules {
        for (name, places) in CRATES {
            if module.crates.contains(name) && !path.first().is_some_and(|folder| places.contains(&folder.as_str())) {
                wrong.push(format!("{} names the crate {name}", path.join("::")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A circle is allowed inside one module: a module and its submodules may use each other, because it declares the types that they
/// use. So each circle must have a head, which is a module that contains all others of the circle.
#[test]
fn imports_form_no_circle() {
    let found = circles(&Library::read());
    assert!(found.is_empty(), "imports of these modules form a circle: {found:#?}");
}

/// The modules that each module imports.
type Arrows<'a> = BTreeMap<&'a [String], BTreeSet<&'a [String]>>;

/// Returns the modules of each circle without a head.
fn circles(library: &Library) -> BTreeSet<Vec<String>> {
    let imports: Vec<_> = library.modules.iter().map(|(path, module)| (path, library.imports(module))).collect();
    let arrows = imports
        .iter()
        .map(|(path, imports)| (&path[..], imports.iter().map(|import| library.module_of(import)).collect()))
        .collect();
    let circles = without_head(&arrows, &arrows.keys().copied().collect());
    circles.into_iter().map(|circle| circle.into_iter().map(|module| module.join("::")).collect()).collect()
}

/// Returns the circles without a head among these modules. Circles that share a module are one circle. A circle with a head is searched
/// again without its head: imports from the head and of the head are allowed, those between the others may form a circle of their own.
fn without_head<'a>(arrows: &Arrows<'a>, among: &BTreeSet<&'a [String]>) -> Vec<BTreeSet<&'a [String]>> {
    let reached: Arrows<'a> = among.iter().map(|module| (*module, reached(arrows, among, module))).collect();
    let mut found = Vec::new();
    let mut left = among.clone();
    while let Some(first) = left.pop_first() {
        let mut circle: BTreeSet<_> =
            reached[first].iter().copied().filter(|other| reached[other].contains(first)).collect();
        circle.remove(first);
        left.retain(|module| !circle.contains(module));
        // Modules are in order, so only the first can contain the others.
        if circle.iter().all(|module| module.starts_with(first)) {
            found.extend(without_head(arrows, &circle));
        } else {
            circle.insert(first);
            found.push(circle);
        }
    }
    found
}

/// Returns the modules of `among` that a module imports, directly or through others of them.
fn reached<'a>(arrows: &Arrows<'a>, among: &BTreeSet<&'a [String]>, module: &'a [String]) -> BTreeSet<&'a [String]> {
    let mut found = BTreeSet::new();
    let mut next = vec![module];
    while let Some(module) = next.pop() {
        next.extend(arrows[module].iter().copied().filter(|other| among.contains(other) && found.insert(*other)));
    }
    found
}

#[test]
fn a_module_and_its_submodules_may_use_each_other() {
    let library = Library::of([
        ("a", "mod x; mod y; pub struct A; fn f() { x::f(); y::f(); }"),
        ("a::x", "mod deep; use super::A; fn f() { deep::f(); }"),
        ("a::x::deep", "use super::super::A; use super::f;"),
        ("a::y", "use super::A; use super::x::f;"),
        ("b", "use crate::a::A;"),
    ]);
    assert!(circles(&library).is_empty());
}

#[test]
fn a_circle_of_siblings_is_seen_also_below_a_module_that_uses_them() {
    let library = Library::of([
        ("a", "mod x; mod y; pub use x::X; pub struct A; fn f() { x::f(); y::f(); }"),
        ("a::x", "use super::A; use super::y::f;"),
        ("a::y", "use super::A; use super::X;"),
    ]);
    assert_eq!(circles(&library), [["a::x", "a::y"].map(str::to_owned).to_vec()].into());
}

#[test]
fn a_circle_through_a_submodule_is_seen_without_what_leads_to_it() {
    let library = Library::of([
        ("node", "mod mark; mod release; use mark::progress::Place; fn f() { release::g(); }"),
        ("node::mark", "mod progress; pub struct Mark; fn f() { progress::g(); }"),
        ("node::mark::progress", "use super::super::release::GRACE; use super::super::Node;"),
        ("node::release", "use super::mark::Mark; use crate::clock::now;"),
        ("clock", "fn now() {}"),
        ("service", "use crate::node::release;"),
    ]);
    let circle = ["node::mark", "node::mark::progress", "node::release"].map(str::to_owned).to_vec();
    assert_eq!(circles(&library), [circle].into());
}
