//! The messages in `tests/fixtures/events`, which follow the schemas that AWS documents, and damaged ones.

use std::fs;
use std::sync::LazyLock;

/// Returns every fixture except the damaged ones, with its name.
pub static GOOD: LazyLock<Vec<(String, String)>> = LazyLock::new(|| bodies(false));

/// Returns the damaged fixtures.
pub static BAD: LazyLock<Vec<(String, String)>> = LazyLock::new(|| bodies(true));

fn bodies(damaged: bool) -> Vec<(String, String)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/events");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut named: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .map(|path| (path.file_stem().unwrap().to_string_lossy().into_owned(), fs::read_to_string(&path).unwrap()))
        .filter(|(name, _)| name.starts_with("bad-") == damaged)
        .collect();
    named.sort();
    assert!(named.len() > 10, "the fixtures were found");
    named
}
