//! Validation of the flags of traces.

use super::problems::Problems;
use crate::cli::flags::Traces;
use crate::telemetry::outbound::{self, Secret};
use crate::telemetry::traces::{self, TraceSettings};

impl Problems {
    /// Reads the settings of traces; `None` without a collector.
    pub(super) fn traces(
        &mut self,
        flags: Traces,
        cluster: Option<String>,
        replica: Option<String>,
    ) -> Option<TraceSettings> {
        // Charts set empty variables.
        let is_set = |value: &Secret| !value.reveal().trim().is_empty();
        let headers: Vec<_> = flags.otlp_header.into_iter().filter(is_set).collect();
        let Some(url) = flags.otlp_endpoint.filter(is_set) else {
            self.idle("--otlp-header", !headers.is_empty(), "--otlp-endpoint");
            return None;
        };
        let collector = traces::collector(&url).map_err(|error| self.add("--otlp-endpoint", error.to_string())).ok();
        let headers = headers.iter().filter_map(|text| {
            outbound::header(text).map_err(|error| self.add("--otlp-header", error.to_string())).ok()
        });
        let headers = headers.collect();
        let replica = replica.unwrap_or_else(|| "ebbtide".to_owned());
        Some(TraceSettings { collector: collector?, headers, cluster, replica })
    }
}
