//! Facts as OpenTelemetry traces: one for each interruption, posted to a collector by OTLP over HTTP, as JSON.
//!
//! ```text
//!  facts ─▶ TraceSubscriber: recorder ─finished traces, bounded─▶ TraceExporter ─▶ POST /v1/traces
//!           returns at once                                       batches, retries
//! ```
//!
//! A trace's id follows from the interruption ([`trace_id`]), so that replicas which take over continue the trace, and a log line names it
//! without asking. OTLP's JSON needs nothing but `serde_json`: the libraries for it bring protobuf and a second model of spans.

mod exporter;
mod otlp;
mod recorder;
mod span;

pub use exporter::TraceExporter;
pub use recorder::{FinishedTraces, TraceSubscriber, trace_subscriber};

use crate::fact::NoticeRef;
use crate::telemetry::outbound::{BadReceiver, Receiver, Secret};
use http::{HeaderName, HeaderValue};
use sha2::{Digest, Sha256};
use std::fmt;

/// The settings of traces.
#[derive(Clone, Debug)]
pub struct TraceSettings {
    /// The collector.
    pub collector: Receiver,
    /// The user's own headers.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The cluster's name, if the settings have it.
    pub cluster: Option<String>,
    /// The name of this process.
    pub replica: String,
}

/// Reads the URL of a collector. Like OpenTelemetry's own variables, a URL without a path gets that of traces.
///
/// # Errors
/// Why it is none.
pub fn collector(url: &Secret) -> Result<Receiver, BadReceiver> {
    let receiver = Receiver::parse(url)?;
    if receiver.uri().path() != "/" || receiver.uri().query().is_some() {
        return Ok(receiver);
    }
    let Ok(url) = format!("{}/v1/traces", url.reveal().trim().trim_end_matches('/')).parse();
    Receiver::parse(&url)
}

/// The id of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceId([u8; 16]);

/// Returns the id of an interruption's trace: the same in all replicas, and at every receive of its message.
#[must_use]
pub fn trace_id(about: NoticeRef<'_>) -> TraceId {
    let mut hash = Sha256::new();
    for part in [about.message, about.instance, about.kind.as_str()] {
        hash.update(part);
        hash.update([0]);
    }
    let mut id = [0; 16];
    id.copy_from_slice(&hash.finalize()[..16]);
    TraceId(id)
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
