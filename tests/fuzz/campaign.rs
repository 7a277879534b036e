//! The campaign under libFuzzer; `tests/fuzz/run` builds and starts it. `EBBTIDE_FUZZ_TARGET` names the target.
#![no_main]

use ebbtide_fuzz::{TARGETS, Target};
use libfuzzer_sys::fuzz_target;
use std::cell::Cell;
use std::sync::LazyLock;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("EBBTIDE_FUZZ_TARGET").expect("EBBTIDE_FUZZ_TARGET must name a target");
    TARGETS.iter().find(|target| target.name == name).unwrap_or_else(|| panic!("{name} is no target"))
});

/// Counts what was executed, and prints it at the end of the process.
#[derive(Default)]
struct Count {
    inputs: Cell<u64>,
    bytes: Cell<u64>,
}

impl Drop for Count {
    fn drop(&mut self) {
        eprintln!("{}: {} inputs, {} bytes", TARGET.name, self.inputs.get(), self.bytes.get());
    }
}

thread_local! {
    static COUNT: Count = Count::default();
}

fuzz_target!(|input: &[u8]| {
    COUNT.with(|count| {
        count.inputs.set(count.inputs.get() + 1);
        count.bytes.set(count.bytes.get() + input.len() as u64);
    });
    (TARGET.check)(input);
});
