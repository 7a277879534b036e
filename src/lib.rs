//! Ebbtide drains Kubernetes nodes before AWS takes them away.
//!
//! This file is the map. A message's journey, left to right; the modules of [`pipeline`] come in its order:
//!
//! ```text
//!     notices and plans on Nodes, EC2's lists ─Offer─▶ sources, and from there on the same way
//!  SQS ─▶ queue ─Message─▶ event ─Notice(s)─▶ node ─Target─▶ interruption ─────────────▶ sources ─▶ SQS delete | release
//!           │               pure               index + owner   steps, one by one          ▲
//!           └ lease: visibility extended       (one watch)     ├ heartbeat (owned)        │ one verdict a message,
//!             while any of its notices runs                    ├ drain ◀─ one per node,   │ when ALL its notices have ended
//!                                                              │          shared          │
//!                                                              └ hook completed or left ─┘
//!         every stage emits facts ─▶ telemetry ─▶ log · metrics · Events · history ─▶ status page
//! ```
//!
//! Folders come in the order of imports: each imports only those below it. The stages of [`pipeline`] come in the order of the journey;
//! `tests/service/architecture/layering.rs` has the imports between stages. `docs/developers/design.md` has the rules behind the design, and
//! `docs/developers/decisions.md` its decisions.

// Most modules are for the crate alone. What the program, the tests, the benches and the examples need is re-exported beside them, so
// that the compiler finds dead code.

/// One-off commands: they ask, simulate or test, and end.
pub mod commands {
    pub mod cluster;
    pub mod completion;
    pub mod doctor;
    pub mod migrate;
    pub mod notify;
    pub mod send;
    pub mod simulate;
    pub mod status;
    pub(crate) mod test_message;
    pub mod undo;
}

/// The life of the service: wiring, start, ordered shutdown.
pub mod service {
    pub(crate) mod start;

    pub(crate) mod running;

    pub mod signals;
    mod wiring;

    pub use running::{Exit, Service};
    pub use signals::Shutdown;
    pub use start::{Inputs, StartChecks};
}

/// The agent of one node: writes what the instance's metadata announce to its Node.
pub mod agent {
    mod metadata;
    mod pages;
    mod reading;
    mod run;

    pub use metadata::Metadata;
    pub use pages::{AgentMetrics, AgentPages};
    pub use run::Agent;
}

/// The command line: flags, the settings that they make, and the form of answers.
pub mod cli {
    pub(crate) mod answer;
    mod command_line;
    pub(crate) mod flags;
    pub(crate) mod input;
    pub(crate) mod output;
    mod refusal;
    pub(crate) mod settings;
    pub(crate) mod text;
    pub(crate) mod yaml;

    pub use answer::Answer;
    pub use flags::agent::Agent as AgentFlags;
    pub use flags::borrowed::ServiceFlags;
    pub use flags::completion::Shell;
    pub use flags::doctor::Doctor;
    pub use flags::{Cli, Command, LogFormat, PoolFlag, Run};
    pub use output::Output;
    pub use settings::{AgentSettings, Settings};
}

/// Subscribers of facts, and the server that shows them.
pub mod telemetry {
    pub(crate) mod admin;
    pub(crate) mod bounded;
    pub mod history;
    pub(crate) mod http;
    pub(crate) mod kube_events;
    pub(crate) mod log_filter;
    pub(crate) mod metrics;
    pub mod notify;
    pub mod outbound;
    pub(crate) mod page;
    pub(crate) mod pools;
    pub(crate) mod rows;
    pub mod traces;

    pub use history::History;
    pub use log_filter::LogFilter;
    pub use metrics::Metrics;
    pub use rows::Rows;
}

/// Collecting what is left of Nodes, and of instances.
pub(crate) mod leftovers {
    pub(crate) mod collector;
    pub(crate) mod leases;
    pub(crate) mod nodes;
}

/// The journey of a message, a module for each stage.
pub mod pipeline {
    pub(crate) mod queue;

    pub(crate) mod event;

    pub(crate) mod node;

    pub(crate) mod interruption;

    pub(crate) mod drain;

    pub(crate) mod sources;

    pub use drain::{Drainer, SelectionRules, TrimmedPod, select};
    pub use event::{Detail, Hook, Identity, InstanceId, NoticeKey, Parsed, parse};
    pub use interruption::{
        Completion, GroupLookup, Heartbeats, HookEffect, HookEvent, HookMachine, HookReply, HookSearch, HookTerms,
        HookTimes, Hooks, Interrupter, QUIET_TIME, Trust,
    };
    pub use node::label::{selector, taint};
    pub use node::mark::{Mark, MarkSettings};
    pub use node::plan;
    pub use node::record::{HookState, NoticeRecord, Record, ReturnSign};
    pub use node::release::NodeRelease;
    pub use node::replacement::AskedReplacement;
    pub use node::{Index, Node, NodeScope, node_api};
    pub use queue::QueueUrl;
    pub use sources::{Deliverer, verdict};
}

/// Electing one replica for an office.
pub(crate) mod leases {
    pub(crate) mod election;
}

/// Calls to AWS and to the API server.
pub mod clients {
    pub(crate) mod answers;
    pub(crate) mod batch;
    pub mod connect;
    pub(crate) mod gate;
    pub(crate) mod get;
    pub(crate) mod server_date;
    pub(crate) mod trimmed;
    pub(crate) mod watch;

    pub use gate::{CALL_TIMEOUT, Gate};
}

/// Tasks, time and random numbers.
pub mod runtime {
    pub(crate) mod clock;
    pub(crate) mod duration;
    pub mod random;
    pub(crate) mod task;

    pub use clock::Clock;
    pub use task::Tasks;
}

pub mod fact;
