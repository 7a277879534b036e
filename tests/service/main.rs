//! The service on the simulation: the real SDK clients over simulated services, on tokio's paused clock.
//!
//! The folders say where a new test goes. Every test ends with [`harness::Stage::rest`]: each message is accounted for, no heartbeat
//! goes on, and no transient task is alive.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
#![allow(clippy::disallowed_methods, reason = "tasks of a test end with it, and it measures real time")]
#![allow(
    clippy::cast_precision_loss,
    clippy::format_collect,
    reason = "numbers are small, and what a failed test prints need not be fast"
)]

mod drains;
mod golden;
mod harness;
mod nodes;
mod proxy;

/// The way of a message, by stage.
mod pipeline {
    mod agent;
    mod capacity_blocks;
    mod conditions;
    mod delivery;
    mod dry_run;
    mod journey;
    mod node_hook;
    mod node_hook_limits;
    mod nodes;
    mod polling;
    mod status_checks;
    mod two_sources;

    mod queue {
        mod clock;
        mod receive;
        mod visibility;
    }

    mod node {
        mod changes;
        mod cordon;
        mod early_restart;
        mod exclusion;
        mod floods;
        mod index;
        mod marks;
        mod out_of_service;
        mod ownership;
        mod plans;
        mod reboot;
        mod registration;
        mod release;
        mod returning;
        mod twins;
    }

    mod interruption {
        mod admission;
        mod after_waits;
        mod before_completion;
        mod before_evictions;
        mod delay;
        mod forged;
        mod forged_marks;
        mod forged_proofs;
        mod hints;
        mod hold;
        mod honest;
        mod load_balancers;
        mod policy;
        mod pools;
        mod remedies;
        mod replacement;
        mod replicas;
        mod retry;
        mod service_groups;
        mod settle;
        mod shaping;
        mod waits;
        mod waves;
        mod zonal_shift;

        mod hooks {
            mod completion;
            mod deadlines;
            mod heartbeats;
            mod launch;
        }
    }

    mod drain {
        mod caches;
        mod deadlines;
        mod deleted_nodes;
        mod disruption_target;
        mod do_not_disrupt;
        mod eviction;
        mod eviction_order;
        mod overdue;
        mod own_pod;
        mod pod_watch;
        mod refusals;
        mod returns;
        mod room;
        mod selection;
        mod shared_drains;
        mod stuck;
        mod surge;
    }
}

/// What is left of Nodes, and of instances.
mod leftovers {
    mod leases;
    mod nodes;
}

/// Errors, overload, storms, hostile input, shutdowns and takeovers.
mod resilience {
    mod api_server;
    mod api_server_away;
    mod credentials;
    mod gate;
    mod hostile_input;
    mod leaks;
    mod shutdown;
    mod sqs;
    mod sqs_outage;
    mod takeover;

    mod storm {
        mod busy;
        mod cost;
        mod outage;
        mod urgency;
    }
}

/// Kubernetes Events and metrics.
mod telemetry {
    mod history;
    mod kube_events;
    mod metrics;
    mod notify;
    mod notify_formats;
    mod traces;
    mod waiting;
}

/// The one-off commands.
mod commands {
    mod doctor;
    mod migrate;
    mod send;
    mod simulate;
    mod undo;
}

/// The source itself: imports, sizes of types, and documents that match the code.
mod architecture {
    mod docs;
    mod layering;
    mod methods;
    mod settings;
    mod situations;
    mod sources;
    mod tokens;
    mod words;
}
