//! Texts that a test makes and that are kept in a file: whole golden files, and parts of Markdown files.
//!
//! A test fails if its text differs from the file. `EBBTIDE_UPDATE=1 cargo test --workspace --test service` writes the texts instead.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::{env, fs};

/// The variable that makes the tests write.
const UPDATE: &str = "EBBTIDE_UPDATE";

/// Held from reading a file to writing it: tests of two parts of one file run at the same time.
static FILES: Mutex<()> = Mutex::new(());

/// Compares a text with a file of the repository, such as `tests/fixtures/migrate/cases.txt`.
#[track_caller]
pub fn file(path: &str, text: &str) {
    keep(path, |_| text.to_owned());
}

/// Compares a text with the part of a Markdown file between `<!-- NAME: written by a test -->` and `<!-- end -->`, each on its line.
#[track_caller]
pub fn part(path: &str, name: &str, text: &str) {
    keep(path, |document| with_part(document, name, text).unwrap_or_else(|missing| panic!("{path} has no {missing}")));
}

/// Compares a file with what it should be, or writes it. A file that does not exist is an empty one.
#[track_caller]
fn keep(path: &str, expected: impl FnOnce(&str) -> String) {
    let file: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let _held = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    let found = fs::read_to_string(&file).unwrap_or_default();
    let expected = expected(&found);
    if found == expected {
        return;
    }
    if env::var_os(UPDATE).is_some() {
        fs::create_dir_all(file.parent().expect("a file must lie in a folder")).expect("the folder must be writable");
        fs::write(&file, expected).expect("the file must be writable");
    } else {
        panic!("{path}{}\n{UPDATE}=1 cargo test --workspace --test service writes it", difference(&found, &expected));
    }
}

/// Returns a document with another part; the error is the line that the document lacks.
fn with_part(document: &str, name: &str, text: &str) -> Result<String, String> {
    let (begin, end) = (format!("<!-- {name}: written by a test -->\n"), "<!-- end -->\n");
    let (before, rest) = document.split_once(&begin).ok_or_else(|| begin.trim_end().to_owned())?;
    let (_, after) = rest.split_once(end).ok_or_else(|| format!("{} after {}", end.trim_end(), begin.trim_end()))?;
    Ok(format!("{before}{begin}\n{}\n\n{end}{after}", text.trim_matches('\n')))
}

/// Returns the first line that differs.
fn difference(found: &str, expected: &str) -> String {
    let (mut ours, mut theirs) = (found.lines(), expected.lines());
    for number in 1.. {
        match (ours.next(), theirs.next()) {
            (None, None) => break,
            (found, expected) if found == expected => {}
            (found, expected) => {
                let [found, expected] = [found, expected].map(|line| line.unwrap_or("(the end)"));
                return format!(":{number} is\n  {found}\nand should be\n  {expected}");
            }
        }
    }
    " differs in how its lines end".to_owned()
}

#[test]
fn a_part_is_replaced_and_the_rest_stays() {
    let document =
        "# A\n<!-- one: written by a test -->\nold\n<!-- end -->\nb\n<!-- two: written by a test -->\n<!-- end -->\n";
    let one = with_part(document, "one", "| a |\n").unwrap();
    assert_eq!(one, document.replace("old\n", "\n| a |\n\n"));
    let two = with_part(&one, "two", "new").unwrap();
    assert!(two.contains("| a |") && two.ends_with("test -->\n\nnew\n\n<!-- end -->\n"), "{two}");
    assert_eq!(with_part(&two, "two", "new").unwrap(), two);
    assert_eq!(with_part(document, "three", "").unwrap_err(), "<!-- three: written by a test -->");
    let open = with_part("<!-- one: written by a test -->\n", "one", "").unwrap_err();
    assert_eq!(open, "<!-- end --> after <!-- one: written by a test -->");
}

#[test]
fn the_first_line_that_differs_is_shown() {
    assert_eq!(difference("a\nb\n", "a\nc\n"), ":2 is\n  b\nand should be\n  c");
    assert_eq!(difference("a\n", "a\nb\n"), ":2 is\n  (the end)\nand should be\n  b");
    assert_eq!(difference("a", "a\n"), " differs in how its lines end");
}
