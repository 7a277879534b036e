//! The two signals to end: in order at the first SIGTERM or SIGINT, at once at the second.

use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The tokens that end the service.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    /// Ends the service in order.
    pub ordered: CancellationToken,
    /// Ends the service at once.
    pub abort: CancellationToken,
}

/// Cancels the tokens of `shutdown` at the first and the second signal, until the handle is dropped or aborted.
///
/// # Errors
/// When the system refuses the signal handlers.
#[allow(clippy::disallowed_methods, reason = "lives as long as the process, outside of the service and its counts")]
pub fn listen(shutdown: Shutdown) -> std::io::Result<JoinHandle<()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(tokio::spawn(async move {
        for token in [&shutdown.ordered, &shutdown.abort] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            token.cancel();
        }
    }))
}
