//! Properties for any input: bodies of messages, and simulated worlds. A package of its own, so that proptest is not built for
//! the sandbox.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
#![allow(clippy::disallowed_methods, reason = "tasks of a test end with it")]

mod event;
mod fixtures;
#[allow(dead_code, clippy::format_collect, reason = "shared with the tests of the service")]
#[path = "../service/harness.rs"]
mod harness;
mod hook;
mod service;
