//! Random worlds for the real service, and a judge.
//!
//! ```text
//!  seed ─▶ plan ─▶ world: service × simulation ─▶ calls ─▶ oracle ─▶ a broken rule ─▶ shrink ─▶ a short story
//! ```
//!
//! A world is a cluster, a queue and one to three replicas on tokio's paused clock. Its plan says who sends what and when, which calls
//! fail, and at which moment of which call a process is killed. The oracle sees what the simulation recorded, and nothing of the service.
#![allow(clippy::expect_used, clippy::panic, clippy::missing_panics_doc, reason = "a test tool may panic")]
#![allow(clippy::format_collect, reason = "a story need not be fast")]
#![allow(clippy::disallowed_methods, reason = "tasks of a world end with it")]

#[allow(dead_code, missing_docs, clippy::format_collect, reason = "shared with the tests of the service")]
#[path = "../../service/harness.rs"]
mod harness;
pub mod oracle;
pub mod plan;
pub mod shrink;
pub mod world;

#[cfg(test)]
mod tests {
    use crate::{plan::Plan, shrink, world};
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Number of worlds of a short run.
    const WORLDS: u64 = 200;

    #[test]
    fn no_world_breaks_a_rule() {
        let next = AtomicU64::new(0);
        let explore = || {
            while let seed @ ..WORLDS = next.fetch_add(1, Ordering::Relaxed) {
                let plan = Plan::random(seed);
                assert!(world::run(&plan).broken.is_none(), "{}", shrink::report(&plan));
            }
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(explore);
            explore();
            other.join().expect("no rule must be broken");
        });
    }

    /// The plan repeats, and nearly always the story. Not the order in which tokio's watch channels wake tasks at one instant: they
    /// draw it from a generator that only an unstable build of tokio can seed.
    #[test]
    fn the_same_seed_gives_the_same_plan() {
        for seed in 0..100 {
            assert_eq!(Plan::random(seed).to_string(), Plan::random(seed).to_string(), "seed {seed}");
        }
    }
}
