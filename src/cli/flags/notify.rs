//! The flags of notifications, which `ebbtide run` and `ebbtide notify` share.

use super::values::{Problem, cluster_name, text, up_to, value};
use crate::cli::output::Output;
use crate::telemetry::notify::Format;
use crate::telemetry::outbound::Secret;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// Maximum timeout of one try.
const MAX_TIMEOUT: Duration = Duration::from_secs(30);

/// Notifications.
#[derive(Args, Clone, Debug)]
pub struct Notifications {
    /// URL that notifications are posted to; a secret, better given by its variable [default: no notifications; for `pagerduty` its own]
    #[arg(
        long,
        env = "EBBTIDE_NOTIFY_URL",
        hide_env_values = true,
        value_name = "URL",
        help_heading = "Notifications"
    )]
    pub notify_url: Option<Secret>,

    /// Phases that are sent, for all kinds or for one: `notice`, `blocked`, `done`, `failed`, joined by `+`; `all` or `none` [default:
    /// `blocked+failed`; for `pagerduty` `blocked+done+failed`]
    ///
    /// `notice`: work on a node begins. `blocked`: a drain has been blocked for 5 s. `done`: the work ended well. `failed`: it did not.
    #[arg(
        long,
        env = "EBBTIDE_NOTIFY",
        value_parser = text,
        value_name = "[KIND=]PHASES",
        value_delimiter = ',',
        help_heading = "Notifications"
    )]
    pub notify: Vec<String>,

    /// Format of notifications: `json`, `slack`, `teams`, `pagerduty` or `cloudevents`
    #[arg(
        long,
        env = "EBBTIDE_NOTIFY_FORMAT",
        value_enum,
        value_name = "FORMAT",
        default_value = "json",
        hide_possible_values = true,
        help_heading = "Notifications"
    )]
    pub notify_format: Format,

    /// File with a minijinja template that makes the body of notifications, which is JSON; checked at the start
    #[arg(long, env = "EBBTIDE_NOTIFY_TEMPLATE", value_name = "FILE", help_heading = "Notifications")]
    pub notify_template: Option<PathBuf>,

    /// Header of notifications; a secret; repeatable, in the variable one a line
    #[arg(
        long,
        env = "EBBTIDE_NOTIFY_HEADER",
        hide_env_values = true,
        value_name = "NAME=VALUE",
        value_delimiter = '\n',
        help_heading = "Notifications"
    )]
    pub notify_header: Vec<Secret>,

    /// Key of the HMAC-SHA256 in the header `Ebbtide-Signature`; a secret
    #[arg(
        long,
        env = "EBBTIDE_NOTIFY_SECRET",
        hide_env_values = true,
        value_name = "KEY",
        help_heading = "Notifications"
    )]
    pub notify_secret: Option<Secret>,

    /// For `pagerduty`: the integration key of the service; a secret
    #[arg(
        long,
        env = "EBBTIDE_NOTIFY_ROUTING_KEY",
        hide_env_values = true,
        value_name = "KEY",
        help_heading = "Notifications"
    )]
    pub notify_routing_key: Option<Secret>,

    /// Proxy for notifications, `http://[USER:PASSWORD@]HOST:PORT`; a secret [default: that of `HTTPS_PROXY` or `ALL_PROXY`, for an https URL]
    #[arg(
        long,
        env = "EBBTIDE_NOTIFY_PROXY",
        hide_env_values = true,
        value_name = "URL",
        help_heading = "Notifications"
    )]
    pub notify_proxy: Option<Secret>,

    /// Timeout of one try to send a notification, at most 30s
    #[arg(
        long,
        env = "EBBTIDE_NOTIFY_TIMEOUT",
        value_parser = value(up_to(MAX_TIMEOUT)),
        value_name = "DURATION",
        default_value = "5s",
        help_heading = "Notifications"
    )]
    pub notify_timeout: Duration,
}

/// The flags of `ebbtide notify`.
#[derive(Args, Debug)]
#[command(
    after_help = "Takes the flags and variables of the service that begin with notify, and needs neither a queue nor a cluster.\n\
                        Exit codes: 0 if the receiver accepted all, 1 if not, 2 for wrong flags."
)]
pub struct Notify {
    /// Send tests; nothing else is possible
    #[arg(long, required = true)]
    pub test: bool,

    /// Format of the output
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "table")]
    pub output: Output,

    /// The flags of the service that are about notifications.
    #[command(flatten)]
    pub notifications: Notifications,

    /// The name of this cluster, which notifications have
    #[arg(long, env = "EBBTIDE_CLUSTER_NAME", value_parser = value(cluster_name), value_name = "NAME")]
    pub cluster_name: Option<String>,

    /// Name of Ebbtide's own pod, which notifications have
    #[arg(long, env = "EBBTIDE_POD_NAME", value_parser = text, value_name = "NAME")]
    pub pod_name: Option<String>,

    /// The values that their flags have refused.
    #[arg(skip)]
    pub refused: Vec<Problem>,
}
