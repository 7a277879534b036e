//! A lifecycle hook at which an instance waits.
//!
//! ```text
//! machine        the states of a hook that is kept alive
//! heartbeat      makes the calls of the machine
//! action         one lifecycle action, and the Node that records it
//! calls          calls to Auto Scaling about hooks
//! ```

mod action;
mod calls;
mod heartbeat;
mod machine;

pub(super) use action::{DENIED_RETRY, LifecycleAction, restarted};
pub use calls::{Completion, HookReply, HookSearch, Hooks};
pub(super) use heartbeat::Heartbeat;
pub use machine::{HookEffect, HookEvent, HookMachine, Trust};
