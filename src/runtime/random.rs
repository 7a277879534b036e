//! The one source of random numbers: for jitter, and for names that must differ.
//!
//! Each thread has a generator of its own, seeded by the operating system. A test with a paused clock runs on one thread, so its
//! numbers repeat when [`seed`] is called first.

use fastrand::Rng;
use std::cell::RefCell;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::ops::Range;
use std::time::Duration;

thread_local! {
    static GENERATOR: RefCell<Rng> = RefCell::new(Rng::with_seed(first_seed()));
}

/// Returns a seed of the operating system, from which the keys of a `RandomState` come.
fn any_seed() -> u64 {
    RandomState::new().hash_one(())
}

#[cfg(not(test))]
fn first_seed() -> u64 {
    any_seed()
}

/// Returns the seed of a unit test: that in `EBBTIDE_SEED`, or any. A test that fails prints it.
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test has no flags")]
fn first_seed() -> u64 {
    let given = std::env::var("EBBTIDE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(any_seed);
    eprintln!("EBBTIDE_SEED={seed}");
    seed
}

/// Makes the numbers of this thread depend on `seed` alone.
pub fn seed(seed: u64) {
    GENERATOR.set(Rng::with_seed(seed));
}

/// Returns any number.
#[must_use]
pub fn u64() -> u64 {
    GENERATOR.with_borrow_mut(|generator| generator.u64(..))
}

/// Returns any number.
#[must_use]
pub fn u128() -> u128 {
    GENERATOR.with_borrow_mut(|generator| generator.u128(..))
}

/// Returns `duration` times a random factor in `range`.
#[must_use]
pub fn jittered(duration: Duration, range: Range<f64>) -> Duration {
    let fraction = GENERATOR.with_borrow_mut(Rng::f64);
    duration.mul_f64(range.start + fraction * (range.end - range.start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_the_numbers() {
        let numbers = |from| {
            seed(from);
            (u64(), u128(), jittered(Duration::from_secs(1), 0.0..1.0))
        };
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(2));
    }

    #[test]
    fn jitter_stays_in_its_range() {
        for _ in 0..1000 {
            let jittered = jittered(Duration::from_secs(10), 0.5..1.5);
            assert!((5..15).contains(&jittered.as_secs()), "{jittered:?}");
        }
    }
}
