//! Replays the corpora and seeded mutations of them: what the campaign has found stays found, on any toolchain.

use clap::Arg;
use ebbtide_fuzz::{TARGETS, Target, settings};
use std::path::Path;

/// Number of mutated inputs for each target; `EBBTIDE_FUZZ_INPUTS` sets another.
/// More would cost seconds in every run of the tests; new faults are the task of `tests/fuzz/run`.
const INPUTS: usize = 300;

/// Maximum length of a mutated input: longer ones only take longer.
const MAX_LENGTH: usize = 4096;

/// Returns a target's corpus: its own files, and the fixtures of other tests.
fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder must have one above it");
    let mut folders = vec![tests.join("fuzz/corpus").join(target.name)];
    match target.name {
        "event" => folders.push(tests.join("fixtures/events")),
        "migrate" => folders.push(tests.join("fixtures/nth")),
        _ => {}
    }
    let mut files = Vec::new();
    for folder in folders {
        let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        files.extend(entries.map(|entry| entry.expect("an entry must be readable").path()));
    }
    files.sort();
    files.into_iter().map(|file| std::fs::read(&file).expect("a file of the corpus must be readable")).collect()
}

/// Returns one input of the corpus, changed in a few places, perhaps with parts of another.
fn mutated(corpus: &[Vec<u8>], rng: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = corpus[rng.usize(..corpus.len())].clone();
    bytes.truncate(MAX_LENGTH);
    for _ in 0..rng.usize(1..=4) {
        let at = rng.usize(..=bytes.len());
        let end = at + rng.usize(..=(bytes.len() - at).min(16));
        match rng.u8(..6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << rng.u8(..8),
            1 => drop(bytes.drain(at..end)),
            2 => bytes.insert(at, rng.u8(..)),
            3 => {
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part.repeat(rng.usize(1..=8)));
            }
            4 => bytes.insert(at, *rng.choice(b"\"\\{}[]:,=\n \x00\x7f09").expect("there must be a choice")),
            _ => {
                let other = &corpus[rng.usize(..corpus.len())];
                let from = rng.usize(..=other.len());
                let part = &other[from..from + rng.usize(..=(other.len() - from).min(64))];
                bytes.splice(at..end, part.iter().copied());
            }
        }
    }
    bytes.truncate(MAX_LENGTH);
    bytes
}

fn replay(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("the target must be one");
    let corpus = corpus(target);
    assert!(corpus.len() >= 5, "{name} has a corpus");
    corpus.iter().for_each(|input| (target.check)(input));
    let inputs = std::env::var("EBBTIDE_FUZZ_INPUTS").ok().map(|text| text.parse().expect("it must be a number"));
    let mut rng = fastrand::Rng::with_seed(1);
    for n in 0..inputs.unwrap_or(INPUTS) {
        let input = mutated(&corpus, &mut rng);
        let checked = std::panic::catch_unwind(|| (target.check)(&input));
        assert!(checked.is_ok(), "input {n} of {name}: {}", input.escape_ascii());
    }
}

macro_rules! replays {
    ($($name:ident),*) => {
        $(
            #[test]
            fn $name() {
                replay(stringify!($name));
            }
        )*

        #[test]
        fn every_target_is_replayed() {
            assert_eq!(TARGETS.map(|target| target.name), [$(stringify!($name)),*]);
        }
    };
}

/// The target looks for the values of these flags, so a secret flag that it does not know is never checked.
#[test]
fn the_settings_target_knows_every_secret_flag() {
    let known = [
        "--notify-header",
        "--notify-proxy",
        "--notify-routing-key",
        "--notify-secret",
        "--notify-url",
        "--otlp-endpoint",
        "--otlp-header",
    ];
    assert!(settings::SECRET.iter().eq(known), "{:?}", *settings::SECRET);
    assert_eq!(settings::flags(Arg::is_hide_env_values_set), *settings::SECRET, "help hides the values of the others");
    let queue = "--queue-url=https://sqs.eu-west-1.amazonaws.com/123456789012/q";
    for flag in known {
        for value in ["hunter2hunter2", "name=hunter2hunter2", "https://user:hunter2hunter2@a.example/hunter2hunter2"] {
            let refused = settings::read(&[queue, flag, value]).err().unwrap_or_default();
            assert!(!refused.contains("hunter2hunter2"), "{flag} {value}: {refused}");
        }
    }
}

replays!(event, settings, marks, selectors, migrate, template, scrub);
