//! Reads the library's modules: what each imports, and how many inherent functions each type has.
//!
//! Files and folders named `tests` and items under `#[cfg(test)]` are left out. A name that no `use` binds is the module's own, because
//! glob imports are refused. Code that a macro writes is not read, nor are paths in the strings of attributes.

use super::tokens::{angle, group_length, is_name, nesting, tokens, without_tests};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A path in the crate, without `crate`: `pipeline`, `node`, `Node`.
pub type Segments = Vec<String>;

/// The modules of the library. The crate root is the module with the empty path.
pub struct Library {
    pub modules: BTreeMap<Segments, Module>,
}

/// A module, without its tests.
pub struct Module {
    /// The paths into the crate that the module names.
    imports: BTreeSet<Segments>,
    /// The first segments of all paths, among them names of other crates.
    pub crates: BTreeSet<String>,
    /// The names that `use` binds to paths into the crate.
    names: BTreeMap<String, Segments>,
    /// The types of inherent `impl` blocks, each with its number of functions.
    impls: Vec<(Segments, usize)>,
}

impl Library {
    /// Reads the files of `src`, except `main.rs`.
    pub fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut files = Vec::new();
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("src must be readable") {
                let path = entry.expect("an entry must be readable").path();
                let inside = path.strip_prefix(&root).expect("it must lie in src").with_extension("");
                let module: Segments = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|kind| kind == "rs")
                    && module[0] != "main"
                    && !module.contains(&"tests".to_owned())
                {
                    let text = fs::read_to_string(&path).expect("a source must be text");
                    files.push((if module[0] == "lib" { String::new() } else { module.join("::") }, text));
                }
            }
        }
        assert!(files.len() > 25, "the sources were found");
        Self::of(files.iter().map(|(module, text)| (&module[..], &text[..])))
    }

    /// Returns the library of these files: the path of each module, as `pipeline::node`, and its text.
    pub fn of<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut modules = BTreeMap::new();
        for (module, text) in files {
            let path = module.split("::").filter(|segment| !segment.is_empty()).map(str::to_owned).collect();
            let tokens = tokens(text).unwrap_or_else(|error| panic!("{module}: {error}"));
            let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
            let tokens = without_tests(&tokens);
            let has_glob = tokens.windows(2).any(|pair| pair == ["::", "*"]);
            assert!(!has_glob, "{module} imports with `*`: name what it imports");
            read_module(path, &tokens, &mut modules);
        }
        Self { modules }
    }

    /// Returns the paths that the module imports. What another module only re-exports from its submodule is the submodule's.
    pub fn imports(&self, module: &Module) -> BTreeSet<Segments> {
        module.imports.iter().map(|path| self.origin(path)).collect()
    }

    /// Returns the path of the innermost module on a path.
    pub fn module_of<'a>(&self, path: &'a [String]) -> &'a [String] {
        let length = (1..=path.len()).rev().find(|length| self.modules.contains_key(&path[..*length]));
        &path[..length.unwrap_or(0)]
    }

    /// Returns the number of inherent functions of each type, by the path of its declaration.
    pub fn functions(&self) -> BTreeMap<String, usize> {
        let mut functions = BTreeMap::new();
        for (path, count) in self.modules.values().flat_map(|module| &module.impls) {
            *functions.entry(self.declaration(path).join("::")).or_default() += count;
        }
        functions
    }

    /// Returns the path in a submodule that a module re-exports under this path; other paths as they are.
    fn origin(&self, path: &[String]) -> Segments {
        let target = self.target(path).filter(|target| target.starts_with(self.module_of(path)));
        target.map_or_else(|| path.to_vec(), |target| self.origin(&target))
    }

    /// Returns the path under which the item at this path is declared.
    fn declaration(&self, path: &[String]) -> Segments {
        self.target(path).map_or_else(|| path.to_vec(), |target| self.declaration(&target))
    }

    /// Returns the path to which a `use` in the module of this path binds the name that follows the module.
    fn target(&self, path: &[String]) -> Option<Segments> {
        let module = self.module_of(path);
        let (name, rest) = path[module.len()..].split_first()?;
        Some([self.modules.get(module)?.names.get(name)?, rest].concat())
    }
}

/// Adds the module of these tokens, and those in braces inside it.
fn read_module(path: Segments, tokens: &[&str], modules: &mut BTreeMap<Segments, Module>) {
    let mut written = UnresolvedModule::default();
    let mut at = 0;
    while at < tokens.len() {
        let rest = &tokens[at..];
        at += match rest {
            // `pub(in path)` imports nothing.
            ["pub", "(", "in", ..] => 1 + group_length(&rest[1..]),
            ["mod", name, ";", ..] => {
                written.children.insert((*name).to_owned());
                3
            }
            ["mod", name, "{", ..] => {
                written.children.insert((*name).to_owned());
                let length = 2 + group_length(&rest[2..]);
                read_module([&path[..], &[(*name).to_owned()]].concat(), &rest[3..length - 1], modules);
                length
            }
            ["use", next, ..] if *next != "<" => 1 + read_paths(&[], &rest[1..], &mut written.uses),
            ["impl", ..] if matches!(tokens[..at], [] | [.., ";" | "{" | "}" | "]"]) => {
                written.impls.extend(inherent_impl(rest));
                1
            }
            [first, "::", ..] if is_name(first) => read_paths(&[], rest, &mut written.paths),
            _ => 1,
        };
    }
    let module = written.resolve(&path);
    modules.insert(path, module);
}

/// A module whose paths are not resolved yet.
#[derive(Default)]
struct UnresolvedModule {
    children: BTreeSet<String>,
    /// The paths of `use`, with the names that it binds to them.
    uses: Vec<(String, Segments)>,
    /// The other paths, with their last segments.
    paths: Vec<(String, Segments)>,
    impls: Vec<(Segments, usize)>,
}

impl UnresolvedModule {
    /// Returns the module, with paths from the crate's root.
    fn resolve(&self, module: &[String]) -> Module {
        let bound = self.uses.iter().filter_map(|(name, path)| Some((name.clone(), self.absolute(module, path)?)));
        let names: BTreeMap<String, Segments> = bound.collect();
        // A path begins with a keyword or a submodule, or with a name that `use` binds.
        let import = |path: &Segments| {
            let named = || Some([&names.get(&path[0])?[..], &path[1..]].concat());
            self.absolute(module, path).or_else(named)
        };
        let own = |name: &Segments| [module, name].concat();
        let paths = || self.uses.iter().chain(&self.paths).map(|(_, path)| path);
        Module {
            imports: paths().filter_map(import).collect(),
            crates: paths().map(|path| path[0].clone()).collect(),
            impls: self.impls.iter().map(|(name, count)| (import(name).unwrap_or_else(|| own(name)), *count)).collect(),
            names,
        }
    }

    /// Returns the path from the crate's root, if this path begins with `crate`, `self`, `super` or a submodule.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Segments> {
        let mut absolute = match path[0].as_str() {
            "crate" => Vec::new(),
            first if first == "self" || first == "super" || self.children.contains(first) => module.to_vec(),
            _ => return None,
        };
        for segment in path {
            match segment.as_str() {
                "crate" | "self" => {}
                "super" => drop(absolute.pop()),
                _ => absolute.push(segment.clone()),
            }
        }
        Some(absolute)
    }
}

/// Reads the path at the start of `tokens`, or the paths in braces, below `base`. Adds each path with the name that `use` would bind to it.
/// Returns the number of tokens read, at least one.
fn read_paths(base: &[String], tokens: &[&str], found: &mut Vec<(String, Segments)>) -> usize {
    let mut path = base.to_vec();
    let mut at = 0;
    loop {
        let expected = at == 0 || tokens[at - 1] == "::";
        match &tokens[at..] {
            ["::", ..] => {}
            ["{", ..] if expected => {
                let end = at + group_length(&tokens[at..]);
                at += 1;
                while at < end - 1 {
                    at += read_paths(&path, &tokens[at..], found);
                }
                return end;
            }
            ["self", ..] if expected && !path.is_empty() => {}
            [name, ..] if expected && is_name(name) => path.push((*name).to_owned()),
            _ => break,
        }
        at += 1;
    }
    if at == 0 {
        // A comma between paths.
        return 1;
    }
    let (name, length) = match tokens[at..] {
        ["as", name, "," | "}" | ";", ..] => (name.to_owned(), at + 2),
        _ => (path.last().cloned().unwrap_or_default(), at),
    };
    found.push((name, path));
    length
}

/// Returns the type of the `impl` at the start of `tokens`, as written, and its number of functions; nothing for the `impl` of a trait.
fn inherent_impl(tokens: &[&str]) -> Option<(Segments, usize)> {
    let open = tokens.iter().position(|token| *token == "{")?;
    let header = &tokens[1..open];
    if header.windows(2).any(|pair| pair[0] == "for" && pair[1] != "<") {
        return None;
    }
    let mut angles = 0;
    let after_parameters = header.iter().position(|token| {
        angles += angle(token);
        angles == 0 && *token != ">"
    })?;
    let mut found = Vec::new();
    read_paths(&[], &header[after_parameters..], &mut found);
    let (_, path) = found.pop()?;

    let mut depth = 0;
    let body = &tokens[open..][..group_length(&tokens[open..])];
    let functions = body.windows(2).filter(|pair| {
        depth += nesting(pair[0]);
        depth == 1 && pair[0] == "fn" && is_name(pair[1])
    });
    Some((path, functions.count()))
}

/// Returns the imports of one module, joined.
fn imports(module: &str, text: &str) -> Vec<String> {
    let library = Library::of([("", ""), (module, text)]);
    let path: Segments = module.split("::").map(str::to_owned).collect();
    library.imports(&library.modules[&path]).iter().map(|path| path.join("::")).collect()
}

#[test]
fn a_path_is_read_in_each_of_its_forms() {
    let text = "
        mod child;
        use crate::clients::{gate::{self, Gate as Door}, watch as client};
        pub(super) use super::Node;
        fn f(x: super::super::fact::Fact) -> Vec<client::Update> { Door::new::<u8>(child::g()) }
    ";
    let expected = [
        "clients::gate",
        "clients::gate::Gate",
        "clients::gate::Gate::new",
        "clients::watch",
        "clients::watch::Update",
        "fact::Fact",
        "pipeline::Node",
        "pipeline::mark::child::g",
    ];
    assert_eq!(imports("pipeline::mark", text), expected);
}

#[test]
fn tests_are_left_out_and_what_follows_them_is_read() {
    let text = "
        #[cfg(test)] mod tests;
        #[cfg(test)] mod more { use crate::a; fn f() { let x = 1 < 2; } }
        #[cfg(test)] pub use crate::b::{C, D};
        #[cfg(test)] #[must_use] fn f<A, B>(x: A, y: B) -> Vec<A> { crate::e() }
        #[cfg(test)] const F: u8 = crate::F;
        struct G { #[cfg(test)] h: crate::H<u8, u8>, #[cfg(test)] i: crate::I }
        use crate::kept;
    ";
    assert_eq!(imports("fact", text), ["kept"]);
}

#[test]
fn strings_and_comments_are_no_imports() {
    let text = r##"
        //! crate::a
        /// [`crate::b`] and super::c
        #[doc = "crate::d"]
        fn f() { /* crate::e */ g("crate::h", r#" use crate::i; "#, b"super::j", 'k') } // crate::l
        pub(in crate::m) fn n() {}
    "##;
    assert_eq!(imports("fact", text), [""; 0]);
}

#[test]
fn other_crates_are_known_by_the_first_segment() {
    let library = Library::of([("fact", "use {serde::Serialize, ::tracing::Level}; fn f() { ::kube::g::<u8>(); }")]);
    let crates: Vec<_> = library.modules[&["fact".to_owned()][..]].crates.iter().collect();
    assert_eq!(crates, ["kube", "serde", "tracing"]);
}

#[test]
fn a_re_export_from_a_submodule_is_the_submodules() {
    let library = Library::of([
        ("", "pub mod node { pub mod mark; pub use mark::Mark; pub use crate::fact::Fact; }"),
        ("node::mark", "pub struct Mark;"),
        ("service", "use crate::node::{Fact, Mark};"),
    ]);
    let imports = library.imports(&library.modules[&["service".to_owned()][..]]);
    assert_eq!(imports.iter().map(|path| path.join("::")).collect::<Vec<_>>(), ["node::Fact", "node::mark::Mark"]);
}

#[test]
fn inherent_functions_are_counted_where_the_type_is_declared() {
    let library = Library::of([
        (
            "a",
            "
            mod below;
            pub use below::Deep;
            pub struct Case;
            impl Case {
                const LIMIT: fn(u8) = g;
                pub(crate) const fn one(f: fn(u8)) -> impl Fn() { fn inner() {} }
                #[cfg(test)] fn for_tests() {}
                async fn two() {}
            }
            impl Default for Case { fn default() -> Self {} }
            impl<T: Fn() -> u8> From<T> for Case where for<'a> T: Clone { fn from(t: T) -> Self {} }
            #[cfg(test)] impl Case { fn for_tests_too() {} }
            fn f() -> impl Iterator { fn g() {} }
            ",
        ),
        (
            "a::below",
            "use super::Case; pub struct Deep<T>(T); impl Case { fn three() {} } impl<T> Deep<T> { fn one() {} }",
        ),
        (
            "b",
            "
            struct Case;
            impl Case { fn another() {} }
            impl<T: Fn() -> u8> crate::a::Deep<T> where for<'a> T: Clone { fn two() {} }
            ",
        ),
    ]);
    let functions: Vec<_> = library.functions().into_iter().collect();
    let expected = [("a::Case", 3), ("a::below::Deep", 2), ("b::Case", 1)];
    assert_eq!(functions, expected.map(|(name, count)| (name.to_owned(), count)));
}
