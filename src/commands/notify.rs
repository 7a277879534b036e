//! `ebbtide notify --test`: sends a sample of each phase that the settings ask for, and shows the answers.

use crate::cli::answer::Answer;
use crate::cli::flags::notify::Notify;
use crate::cli::output::Output;
use crate::cli::settings;
use crate::clients::connect;
use crate::fact::NotificationPhase;
use crate::runtime::clock::Clock;
use crate::telemetry::notify::{Courier, NotifySettings, sample};
use aws_smithy_runtime_api::client::http::SharedHttpConnector;
use serde_json::json;
use std::fmt::Write;
use std::sync::Arc;

/// The phases in the order in which samples are sent. The last one ends the alert that the others may have raised.
const ORDER: [NotificationPhase; NotificationPhase::ALL.len()] =
    [NotificationPhase::Notice, NotificationPhase::Blocked, NotificationPhase::Failed, NotificationPhase::Done];

/// Sends the samples. The exit code is 0 if the receiver accepts all, 1 if not, 2 for wrong flags.
pub async fn notify(flags: Notify) -> Answer {
    let Notify { test: _, output, notifications, cluster_name, pod_name, refused } = flags;
    let settings = match settings::notifications(notifications, cluster_name, pod_name, refused) {
        Ok(settings) => settings,
        Err(problems) => return Answer::wrong(&problems),
    };
    match connect::webhook(settings.proxy()) {
        Ok(connector) => send_samples(settings, connector, Clock::system(), output).await,
        Err(error) => Answer::failed(&error),
    }
}

/// Sends a sample of each chosen phase.
async fn send_samples(
    settings: NotifySettings,
    connector: SharedHttpConnector,
    clock: Clock,
    output: Output,
) -> Answer {
    let settings = Arc::new(settings);
    let courier = Courier::new(Arc::clone(&settings), connector, clock);
    let chosen = settings.phases.any();
    let (mut lines, mut samples, mut problems) = (String::new(), Vec::new(), Vec::new());
    for phase in ORDER.into_iter().filter(|phase| chosen.has(*phase)) {
        let sample = match courier.send(&sample::to_send(phase, clock.now(), &settings)).await {
            Ok(accepted) => {
                let body = if accepted.body.is_empty() { String::new() } else { format!(": {}", accepted.body) };
                // Writing to a String can't fail.
                let _ = writeln!(lines, "{phase}: {} accepted it with {}{body}", courier.host(), accepted.status);
                json!({ "phase": phase.as_str(), "status": accepted.status, "body": accepted.body, "error": null })
            }
            Err(error) => {
                problems.push(format!("{phase}: {}: {error}", courier.host()));
                json!({ "phase": phase.as_str(), "status": null, "body": "", "error": error.to_string() })
            }
        };
        samples.push(sample);
    }
    let report = json!({ "receiver": courier.host(), "samples": samples });
    Answer {
        code: u8::from(!problems.is_empty()),
        problems: problems.join("\n"),
        output: output.of(&report, || lines),
        ..Answer::default()
    }
}
