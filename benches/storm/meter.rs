//! What a run costs: real time, CPU time, bytes on the heap.

use peak_alloc::PeakAlloc;
use std::time::{Duration, Instant};

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// The bytes that are allocated now.
pub fn heap() -> usize {
    HEAP.current_usage()
}

/// How many bytes more than before.
pub fn growth_since(before: usize) -> f64 {
    heap() as f64 - before as f64
}

/// What something cost.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub real: Duration,
    /// Of this thread, on which all of it runs; 0 where the system does not tell.
    pub cpu: Duration,
}

impl Cost {
    /// Cheaper is less.
    pub fn key(&self) -> (Duration, Duration) {
        (self.cpu, self.real)
    }
}

/// A measurement that has begun.
pub struct Meter {
    real: Instant,
    cpu: Duration,
}

impl Meter {
    pub fn start() -> Self {
        Self { real: Instant::now(), cpu: cpu() }
    }

    pub fn stop(&self) -> Cost {
        Cost { real: self.real.elapsed(), cpu: cpu().saturating_sub(self.cpu) }
    }
}

/// The scheduler's count for this thread, in nanoseconds: a clock's ticks are too coarse for a run of milliseconds.
fn cpu() -> Duration {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let spent = told.split_whitespace().next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(spent.unwrap_or_default())
}

pub fn per_second(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

/// Microseconds.
pub fn per_unit(time: Duration, count: usize) -> f64 {
    time.as_secs_f64() * 1e6 / count as f64
}
