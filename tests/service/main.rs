//! The service on the simulation: the real SDK clients over simulated services, on tokio's paused clock.
//!
//! Every test ends with [`harness::Stage::rest`]: the queue is as it should be, no heartbeat goes on, and all transient task gauges
//! are 0.

mod docs;
mod flows;
mod harness;
mod hooks;
mod layering;
mod leases;
mod leaks;
mod ownership;
mod trouble;
