//! Imports follow `FOLDERS` and `STAGES`: they never run back, and they form no circle. Read from paths of `crate` and `super`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The folders of `src` from the top down. A folder imports those below it.
const FOLDERS: [(&str, &[&str]); 10] = [
    ("commands", &["cli", "telemetry", "pipeline", "leases", "clients", "runtime", "fact"]),
    ("service", &["cli", "telemetry", "pipeline", "leases", "clients", "runtime", "fact"]),
    ("agent", &["telemetry", "pipeline", "clients", "runtime", "fact"]),
    ("cli", &["telemetry", "pipeline", "runtime", "fact"]),
    ("telemetry", &["clients", "runtime", "fact"]),
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
    ("drain", &["node"]),
    ("interruption", &["drain", "event", "node"]),
    ("delivery", &["event", "interruption", "node", "queue"]),
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
    let mut wrong = Vec::new();
    let mut check = |source: &Source, level: usize, allowed: &[(&str, &[&str])]| {
        let own = &source.module[level];
        let (_, below) = allowed.iter().find(|(name, _)| name == own).unwrap_or_else(|| panic!("{own} has no row"));
        for import in source.imports.iter().filter(|import| import[..level] == source.module[..level]) {
            let Some(other) = import.get(level) else { continue };
            if other != own && allowed.iter().any(|(name, _)| name == other) && !below.contains(&other.as_str()) {
                wrong.push(format!("{} imports {}", source.module.join("::"), import.join("::")));
            }
        }
    };
    let sources = sources();
    for source in &sources {
        check(source, 0, &FOLDERS);
        if source.module[0] == "pipeline" {
            check(source, 1, &STAGES);
        }
    }
    for source in &sources {
        for (name, places) in CRATES {
            if source.crates.contains(name) && !places.contains(&source.module[0].as_str()) {
                wrong.push(format!("{} names the crate {name}", source.module.join("::")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A module and its submodules count as one, because a parent declares the types that its children use. What it only re-exports
/// counts as the submodule's.
#[test]
fn imports_form_no_circle() {
    let sources = sources();
    let modules: BTreeSet<&[String]> = sources.iter().map(|source| &source.module[..]).collect();
    let related = |a: &[String], b: &[String]| a.starts_with(b) || b.starts_with(a);
    let mut arrows: BTreeMap<&[String], BTreeSet<&[String]>> = BTreeMap::new();
    for source in &sources {
        for import in &source.imports {
            let import = origin(import, &sources);
            let file = (1..=import.len()).rev().find_map(|length| modules.get(&import[..length]));
            if let Some(file) = file.filter(|file| !related(file, &source.module)) {
                arrows.entry(&source.module).or_default().insert(file);
            }
        }
    }
    // Modules without imports of other remaining modules are removed, again and again. The rest is a circle.
    loop {
        let ends: Vec<_> = arrows
            .keys()
            .copied()
            .filter(|module| arrows[module].iter().all(|other| !arrows.contains_key(other)))
            .collect();
        if ends.is_empty() {
            break;
        }
        for end in ends {
            arrows.remove(end);
        }
    }
    let circle: Vec<String> = arrows.keys().map(|module| module.join("::")).collect();
    assert!(circle.is_empty(), "imports of these modules form a circle, or lead to one: {circle:#?}");
}

/// Returns the path of what a module re-exports from its submodules; other paths as they are.
fn origin(import: &[String], sources: &[Source]) -> Vec<String> {
    let exported = |source: &&Source| import.starts_with(&source.module) && import.len() > source.module.len();
    let Some(source) = sources.iter().filter(exported).max_by_key(|source| source.module.len()) else {
        return import.to_vec();
    };
    let (name, rest) = import[source.module.len()..].split_first().expect("it is longer");
    match source.exports.get(name) {
        Some(path) => origin(&[&source.module, path.as_slice(), rest].concat(), sources),
        None => import.to_vec(),
    }
}

#[test]
fn no_file_is_longer_than_400_lines() {
    let long: Vec<_> = sources()
        .into_iter()
        .filter(|source| source.lines > 400)
        .map(|source| (source.module.join("::"), source.lines))
        .collect();
    assert!(long.is_empty(), "{long:?}");
}

/// A source file below `src/`, without its tests.
struct Source {
    /// The module, as segments: `pipeline`, `drain`, `evict`.
    module: Vec<String>,
    /// The imports from the crate, as segments: `clients`, `gate`, `Gate`.
    imports: BTreeSet<Vec<String>>,
    /// The first segments of all paths, among them names of other crates.
    crates: BTreeSet<String>,
    /// What it re-exports from its submodules: the paths below it, by name.
    exports: BTreeMap<String, Vec<String>>,
    lines: usize,
}

/// Returns all source files except the crate roots.
fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("src must be readable") {
            let path = entry.expect("an entry must be readable").path();
            let inside = path.strip_prefix(&root).expect("it must lie in src").with_extension("");
            let module: Vec<String> = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
            if path.is_dir() {
                folders.push(path);
            } else if !matches!(module[0].as_str(), "lib" | "main") && !module.contains(&"tests".to_owned()) {
                let text = fs::read_to_string(&path).expect("a source must be text");
                found.push(source(module, text.split("#[cfg(test)]\nmod").next().unwrap_or_default()));
            }
        }
    }
    assert!(found.len() > 25, "the sources were found");
    found
}

fn source(module: Vec<String>, text: &str) -> Source {
    let code: String =
        text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let mut imports = BTreeSet::new();
    let mut crates = BTreeSet::new();
    for (at, _) in code.match_indices("::") {
        let first = code[..at].rsplit(|c: char| !is_name(c)).next().unwrap_or_default();
        let before = &code[..at - first.len()];
        if before.ends_with("::") || first.is_empty() {
            continue;
        }
        crates.insert(first.to_owned());
        let base = match first {
            "crate" => Vec::new(),
            "super" => module[..module.len() - 1].to_vec(),
            _ => continue,
        };
        expand(base, &code[at + 2..], &mut imports);
    }
    let mut exported = BTreeSet::new();
    for (at, start) in code.match_indices("pub use ").chain(code.match_indices("pub(super) use ")) {
        let path = &code[at + start.len()..];
        if !path.starts_with("crate::") && !path.starts_with("super::") {
            expand(Vec::new(), path, &mut exported);
        }
    }
    let exports = exported.into_iter().filter_map(|path| Some((path.last()?.clone(), path))).collect();
    Source { module, imports, crates, exports, lines: text.lines().count() }
}

/// Adds the paths that `rest` appends to `base`: one, or several in braces.
fn expand(mut base: Vec<String>, mut rest: &str, found: &mut BTreeSet<Vec<String>>) {
    loop {
        let name: String = rest.chars().take_while(|c| is_name(*c)).collect();
        rest = &rest[name.len()..];
        match name.as_str() {
            "" | "self" => {}
            "super" => drop(base.pop()),
            _ => base.push(name),
        }
        match rest.strip_prefix("::") {
            Some(more) => rest = more,
            None => break,
        }
    }
    let Some(inside) = rest.strip_prefix('{') else {
        found.insert(base);
        return;
    };
    let (mut depth, mut begin) = (0, 0);
    for (at, c) in inside.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                let part = inside[begin..at].trim();
                if !part.is_empty() {
                    expand(base.clone(), part, found);
                }
                begin = at + 1;
                if c == '}' {
                    return;
                }
            }
            _ => {}
        }
    }
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}
