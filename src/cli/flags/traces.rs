//! The flags of traces.

use crate::telemetry::outbound::Secret;
use clap::Args;

/// Traces.
#[derive(Args, Clone, Debug)]
pub struct Traces {
    /// URL of an OpenTelemetry collector that gets a trace of each interruption by OTLP over HTTP; without a path `/v1/traces` is added [default:
    /// no traces]
    #[arg(long, env = "EBBTIDE_OTLP_ENDPOINT", hide_env_values = true, value_name = "URL", help_heading = "Traces")]
    pub otlp_endpoint: Option<Secret>,

    /// Header for the collector; a secret; repeatable, in the variable one a line
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
