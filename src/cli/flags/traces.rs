//! The flags of traces.

use crate::telemetry::outbound::Secret;
use clap::Args;

/// Traces.
#[derive(Args, Debug)]
pub struct Traces {
    /// URL of an OpenTelemetry collector that gets a trace of each interruption [default: no traces]
    ///
    /// It must take OTLP over HTTP. A URL without a path gets /v1/traces.
    #[arg(long, env = "EBBTIDE_OTLP_ENDPOINT", hide_env_values = true, value_name = "URL", help_heading = "Traces")]
    pub otlp_endpoint: Option<Secret>,

    /// A header for the collector; a secret; repeatable, in the variable one a line
    #[arg(
        long,
        env = "EBBTIDE_OTLP_HEADER",
        hide_env_values = true,
        value_name = "NAME=VALUE",
        value_delimiter = '\n',
        help_heading = "Traces"
    )]
    pub otlp_header: Vec<Secret>,
}
