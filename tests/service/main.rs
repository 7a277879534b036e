//! The service on the simulation: the real SDK clients over simulated services, on tokio's paused clock.
//!
//! Every test ends with [`harness::Stage::rest`]: the queue is as it should be, no heartbeat goes on, and all transient task gauges
//! are 0.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
#![allow(clippy::disallowed_methods, reason = "tasks of a test end with it, and it measures real time")]
#![allow(
    clippy::cast_precision_loss,
    clippy::format_collect,
    reason = "numbers are small, and what a failed test prints need not be fast"
)]

mod choice;
mod collect;
mod deadline;
mod docs;
mod doctor;
mod explain;
mod flows;
mod harness;
mod hooks;
mod launch;
mod layering;
mod leaks;
mod leases;
mod marks;
mod metrics;
mod nodes;
mod order;
mod overload;
mod ownership;
mod pressure;
mod regressions;
mod returns;
mod send;
mod storm;
mod telling;
mod trouble;
mod undo;
