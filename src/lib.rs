//! Ebbtide drains Kubernetes nodes before AWS takes them away.
//!
//! A message's journey, left to right; the modules below come in its order:
//!
//! ```text
//!  SQS ─▶ queue ─Message─▶ event ─Notice(s)─▶ node ─Target─▶ interruption ─────────────▶ ack ─▶ SQS delete | release
//!           │               pure               index + owner   pre_drain                  ▲
//!           └ lease: visibility extended       (one watch)     ├ heartbeat (owned)        │ one verdict a message,
//!             while any of its notices runs                    ├ drain ◀─ one per node,   │ when ALL its notices have ended
//!                                                              │          shared          │
//!                                                              └ post_drain | early_exit ─┘
//!         every stage emits facts ─▶ fact ─▶ log · metrics · Events
//! ```
//!
//! Imports follow the picture and never go back. [`task`] is the one place that spawns, [`gate`] the one gate for outgoing
//! calls, [`batch`] what makes many of them few, [`watch`] what tells of changes, [`clock`] the one clock. The rules that make
//! it correct, and where building showed a better way than planned, are in `docs/design.md`.

// The way in.
pub mod cli;
pub mod doctor;
pub mod service;
pub mod settings;

// Asking what would be done, and trying it.
pub mod explain;
pub mod send;
pub mod trial;

// A message's journey.
pub mod queue;

pub mod event;

pub mod node;

pub mod interruption;

pub mod drain;

pub mod ack;

// Beside the journey.
pub mod collect;
pub mod migrate;

// What all of it stands on.
pub mod admin;
pub mod answer;
pub mod batch;
pub mod clock;
pub mod connect;
pub mod fact;
pub mod gate;
pub mod input;
pub mod object;
pub mod signals;
pub mod task;
pub mod watch;
