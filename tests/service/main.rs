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

mod harness;
mod nodes;

/// The way of a message, by stage.
mod pipeline {
    mod journey;

    mod queue {
        mod visibility;
    }

    mod node {
        mod marks;
        mod ownership;
        mod release;
    }

    mod interruption {
        mod policy;

        mod hooks {
            mod heartbeats;
            mod launch;
        }
    }

    mod drain {
        mod deadlines;
        mod eviction_order;
    }
}

/// The collector of leaked Leases.
mod leases {
    mod collector;
}

/// Errors, overload, storms, hostile input, shutdowns and takeovers.
mod resilience {
    mod leaks;
    mod overload;
    mod pressure;
    mod regressions;
    mod returns;
    mod trouble;

    mod storm {
        mod cost;
    }
}

/// Kubernetes Events and metrics.
mod telemetry {
    mod events;
    mod metrics;
}

/// The one-off commands.
mod commands {
    mod doctor;
    mod explain;
    mod send;
}

/// The source itself: imports, and documents that match the code.
mod architecture {
    mod docs;
    mod layering;
}
