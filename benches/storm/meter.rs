//! Measures the cost of a run: real time, CPU time, bytes on the heap.

use peak_alloc::PeakAlloc;
use std::time::{Duration, Instant};

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Returns the number of bytes allocated now.
pub fn heap() -> usize {
    HEAP.current_usage()
}

/// Forgets the most bytes that were allocated at once.
pub fn reset_peak() {
    HEAP.reset_peak_usage();
}

/// Returns the most bytes that were allocated at once.
pub fn peak() -> usize {
    HEAP.peak_usage()
}

/// Returns the growth of the heap since `before`, in bytes.
pub fn growth_since(before: usize) -> f64 {
    heap() as f64 - before as f64
}

/// Cost of a run.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub real: Duration,
    /// CPU time of this thread, which does all the work; 0 if the system does not report it.
    pub cpu: Duration,
}

impl Cost {
    /// Compares costs; the cheaper is less.
    pub fn key(&self) -> (Duration, Duration) {
        (self.cpu, self.real)
    }
}

/// A running measurement.
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

/// Reads the scheduler's CPU time of this thread, in nanoseconds: clock ticks are too coarse for a run of milliseconds.
fn cpu() -> Duration {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let spent = told.split_whitespace().next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(spent.unwrap_or_default())
}

pub fn per_second(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

/// Formats a duration in microseconds.
pub fn per_unit(time: Duration, count: usize) -> f64 {
    time.as_secs_f64() * 1e6 / count as f64
}
