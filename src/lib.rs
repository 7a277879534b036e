//! Ebbtide drains Kubernetes nodes before AWS takes them away.
//!
//! This file is the map. A message's journey, left to right; the modules of [`pipeline`] come in its order:
//!
//! ```text
//!  SQS ─▶ queue ─Message─▶ event ─Notice(s)─▶ node ─Target─▶ interruption ─────────────▶ delivery ─▶ SQS delete | release
//!           │               pure               index + owner   steps, one by one          ▲
//!           └ lease: visibility extended       (one watch)     ├ heartbeat (owned)        │ one verdict a message,
//!             while any of its notices runs                    ├ drain ◀─ one per node,   │ when ALL its notices have ended
//!                                                              │          shared          │
//!                                                              └ hook completed or left ─┘
//!         every stage emits facts ─▶ telemetry ─▶ log · metrics · Events
//! ```
//!
//! Imports follow the list below and never go back: `tests/service/layering.rs` holds them to it. The decisions behind the design
//! are in `docs/design.md`.

/// The command line: flags, the settings that they make, and how an answer is printed.
pub mod cli {
    pub mod answer;
    pub mod flags;
    pub mod input;
    pub mod settings;
    pub mod text;
}

/// One-off commands: they ask, explain or test, and end.
pub mod commands {
    pub mod doctor;
    pub mod explain;
    pub mod migrate;
    pub mod send;
    pub mod test_message;
}

/// The life of the service: wiring, start, ordered shutdown.
pub mod service {
    pub mod start;

    pub mod running;

    pub mod signals;
    mod wiring;
}

/// The journey of a message, a module for each stage.
pub mod pipeline {
    pub mod queue;

    pub mod event;

    pub mod node;

    pub mod interruption;

    pub mod drain;

    pub mod delivery;
}

/// Collecting leaked Leases of deleted Nodes.
pub mod leases {
    pub mod collector;
    pub mod turn;
}

/// Subscribers of facts, and the server that shows them.
pub mod telemetry {
    pub mod admin;
    pub mod kube_events;
    pub mod log;
    pub mod metrics;
}

/// Calls to AWS and to the API server.
pub mod clients {
    pub mod batch;
    pub mod connect;
    pub mod gate;
    pub mod trimmed;
    pub mod watch;
}

/// Tasks, time and random numbers.
pub mod runtime {
    pub mod clock;
    pub mod duration;
    pub mod random;
    pub mod task;
}

pub mod fact;
