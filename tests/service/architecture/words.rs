//! The project's words: what stands in the code, the docs, the chart, the alerts and the examples in place of words that make a reader guess.
//!
//! A text is read as its words, whatever stands between them: identifiers are divided where they are joined, so `has_told` and `HasTold`
//! are "has told". Case does not count. Tests are left out, because their names tell stories.

use std::fs;
use std::path::{Path, PathBuf};

/// Words that are not used, each with its replacement.
const WORDS: &[(&str, &str)] = &[
    ("tell", "report, announce, confirm; or distinguish"),
    ("tells", "reports, announces, confirms; or distinguishes"),
    ("telling", "reporting, announcing, confirming"),
    ("told", "reported, announced, confirmed"),
    ("untold", "unconfirmed"),
    ("say", "report, record, show, state"),
    ("says", "reports, records, shows, states"),
    ("said", "reported, recorded"),
    ("saying", "report, agent notice"),
    ("sayings", "reports, agent notices"),
    ("let go", "released"),
    ("lets go", "releases"),
    ("a begin", "a start"),
    ("the begin", "the start"),
    ("its begin", "its start"),
    ("this begin", "this start"),
    ("known begin", "known start"),
    ("announced begin", "announced start"),
    ("begin of", "start of"),
    ("go on", "continue"),
    ("goes on", "continues"),
    ("going on", "continuing"),
    ("went on", "continued"),
    ("gone on", "continued"),
    ("goes for good", "is terminated"),
    ("that goes", "that is terminated, that leaves"),
    ("that go", "that are terminated, that leave"),
    ("is going", "is being terminated, leaves"),
    ("a look", "a poll, a look-up"),
    ("the look", "the poll, the look-up"),
    ("each look", "each poll"),
    ("last look", "last poll"),
    ("ec2 looks", "EC2 polls"),
    ("broken", "unhealthy; or damaged, invalid"),
    ("somebody", "a user, another replica, another controller, an attacker"),
    ("nobody", "no user, no replica, no controller"),
    ("whoever", "a user who, a replica that, an attacker who"),
    ("of which", "a noun"),
    ("by which", "a noun"),
    ("shall", "should, must"),
    ("in vain", "timed out, without success"),
    ("mend", "fix"),
    ("mends", "fixes"),
    ("mended", "fixed"),
    ("mending", "fix"),
    ("mendings", "fixes"),
    ("by hand", "manually"),
    ("so often", "the number, the interval"),
    ("so many", "the number"),
    ("so long", "the duration"),
    ("comes from nth", "migrates from NTH"),
    ("becomes of", "happens to"),
    ("a moment", "a short time, or the time itself"),
];

/// Names that stay although they have such a word.
const NAMES: &[&str] = &[
    "ebbtide/says.",
    "ebbtide_agent_says",
    "`saying`",
    "storm -- said",
    "kind  says  instance",
    "AgentNotice => \"saying\"",
    "rename = \"says\"",
    "BrokenPipe",
];

/// Folders and files that are read.
const PLACES: &[&str] = &["src", "docs", "deploy", "examples", "README.md", "CONTRIBUTING.md"];

/// Kinds of files that are read.
const KINDS: &[&str] =
    &["rs", "md", "yaml", "yml", "json", "tf", "tftest", "tpl", "txt", "py", "sh", "toml", "js", "html", "css"];

#[test]
fn the_words_of_the_project_are_used() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for place in PLACES {
        collect(&root.join(place), &mut files);
    }
    files.sort();
    assert!(files.len() > 300, "the files were found: {}", files.len());
    let mut found = Vec::new();
    for path in files {
        let name = path.strip_prefix(root).expect("it must lie in the project").to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).expect("a text must be readable");
        for (line, word, instead) in misused(&text) {
            found.push(format!("{name}:{line}: \"{word}\": write {instead}"));
        }
    }
    assert!(found.is_empty(), "{} words are not the project's:\n{}", found.len(), found.join("\n"));
}

/// Adds the files of these kinds in the folder, or the file.
fn collect(path: &Path, files: &mut Vec<PathBuf>) {
    if path.is_file() {
        let kind = path.extension().map(|kind| kind.to_string_lossy().into_owned()).unwrap_or_default();
        files.extend(KINDS.contains(&&*kind).then(|| path.to_owned()));
        return;
    }
    for entry in fs::read_dir(path).expect("a folder must be readable") {
        let inside = entry.expect("an entry must be readable").path();
        let name = inside.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name != "tests" && name != "tests.rs" && !name.starts_with('.') {
            collect(&inside, files);
        }
    }
}

/// Returns the words of a text that are not used, each with its line and its replacement.
fn misused(text: &str) -> Vec<(usize, &'static str, &'static str)> {
    let words = words(text);
    let mut found = Vec::new();
    for at in 0..words.len() {
        for (phrase, instead) in WORDS {
            let mut parts = phrase.split(' ').enumerate();
            if parts.all(|(n, part)| words.get(at + n).is_some_and(|(_, word)| word == part)) {
                found.push((words[at].0, *phrase, *instead));
            }
        }
    }
    found
}

/// Returns the words of a text in lower case, each with its line. An item under `#[cfg(test)]` is left out, to its last line.
fn words(text: &str) -> Vec<(usize, String)> {
    let mut words = Vec::new();
    let mut in_test = false;
    for (n, line) in text.lines().enumerate() {
        if line == "#[cfg(test)]" {
            in_test = true;
        }
        if in_test {
            // The last line of an item has no indentation, and ends it.
            in_test = line.starts_with([' ', '#']) || line.is_empty() || !line.ends_with([';', '}']);
            continue;
        }
        let mut line = line.to_owned();
        for name in NAMES {
            line = line.replace(name, "");
        }
        let mut word = String::new();
        let mut after_lower = false;
        for letter in line.chars().chain([' ']) {
            let starts = letter.is_uppercase() && after_lower;
            if (starts || !letter.is_alphanumeric()) && !word.is_empty() {
                words.push((n + 1, std::mem::take(&mut word)));
            }
            if letter.is_alphanumeric() {
                word.extend(letter.to_lowercase());
            }
            after_lower = letter.is_lowercase();
        }
    }
    words
}

#[test]
fn words_are_found_in_identifiers_and_over_lines() {
    let found = |text: &str| misused(text).into_iter().map(|(line, word, _)| (line, word)).collect::<Vec<_>>();
    assert_eq!(found("fn has_told() {}"), [(1, "told")]);
    assert_eq!(found("struct HasTold;"), [(1, "told")]);
    assert_eq!(found("/// The pods\n/// of\n/// which"), [(2, "of which")]);
    assert_eq!(found("a stolid toldo; a behest of a witch"), []);
    assert_eq!(found("`ebbtide/says.spot`"), []);
    assert_eq!(found("fine\n#[cfg(test)]\nmod tests {\n    told;\n}\ntold"), [(6, "told")]);
    assert_eq!(found("#[cfg(test)]\nmod tests;\ntold"), [(3, "told")]);
}
