//! A lifecycle hook at which an instance waits.
//!
//! ```text
//! calls          calls to Auto Scaling about hooks
//! heartbeat      keeps a hook alive
//! ```

mod calls;
mod heartbeat;

pub use calls::{Completion, HookReply, HookSearch, Hooks};
pub(super) use heartbeat::{Absent, Heartbeat, HeartbeatTask, HookState};
