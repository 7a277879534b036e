//! Targets for fuzzing: each takes any bytes, gives them to one reader of Ebbtide's, and checks what must hold for any input.
//!
//! ```text
//!  corpus/TARGET/* ─┬─▶ replay.rs     every file and seeded mutations of it, as a test on any toolchain
//!                   └─▶ campaign.rs   libFuzzer, led by coverage: tests/fuzz/run
//! ```
//!
//! A property that fails panics. What a target does with its bytes is deterministic, so a file repeats a failure.

mod event;
mod marks;
mod migrate;
mod schema;
mod scrub;
mod selectors;
pub mod settings;
mod template;

/// One reader and its properties.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name, also that of the folder of its corpus.
    pub name: &'static str,
    /// Gives the bytes to the reader; panics if a property does not hold.
    pub check: fn(&[u8]),
}

/// All targets.
pub const TARGETS: [Target; 7] = [
    Target { name: "event", check: |bytes| text(bytes, event::check) },
    Target { name: "settings", check: |bytes| text(bytes, settings::check) },
    Target { name: "marks", check: |bytes| text(bytes, marks::check) },
    Target { name: "selectors", check: |bytes| text(bytes, selectors::check) },
    Target { name: "migrate", check: |bytes| text(bytes, migrate::check) },
    Target { name: "template", check: |bytes| text(bytes, template::check) },
    Target { name: "scrub", check: |bytes| text(bytes, scrub::check) },
];

/// Calls a check with the bytes as text. Every reader takes text; what is not UTF-8 is replaced, as SQS and the API server would refuse it.
fn text(bytes: &[u8], check: fn(&str)) {
    check(&String::from_utf8_lossy(bytes));
}
