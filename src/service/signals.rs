//! SIGTERM and SIGINT: the first asks for an ordered shutdown, the second aborts.

use crate::service::lifecycle::Shutdown;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;

/// Listens until dropped or aborted.
///
/// # Errors
/// When the system does not let us listen.
#[allow(clippy::disallowed_methods, reason = "lives as long as the process, outside of the service and its counts")]
pub fn listen(shutdown: Shutdown) -> std::io::Result<JoinHandle<()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(tokio::spawn(async move {
        for told in [&shutdown.ordered, &shutdown.abort] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            told.cancel();
        }
    }))
}
