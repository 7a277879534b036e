//! Validation of the flags of notifications.

use super::SettingsError;
use super::problems::Problems;
use crate::cli::flags::{Notifications, Problem};
use crate::cli::input;
use crate::fact::NotificationPhase;
use crate::telemetry::notify::{self, Format, NotifySettings, PAGER_DUTY_URL, PhaseChoice, Phases, Template};
use crate::telemetry::outbound::{self, Receiver, Secret};
use std::io;
use std::path::Path;
use std::time::Duration;

/// The timeout without the flag, which is no mistake where nothing is sent.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// The phases without the flag: those that need a user.
const DEFAULT_PHASES: Phases = Phases::of(&[NotificationPhase::Blocked, NotificationPhase::Failed]);

/// Validates the flags of notifications alone. Without a receiver there is nothing to test.
///
/// # Errors
/// All problems.
pub fn notifications(
    flags: Notifications,
    cluster: Option<String>,
    replica: Option<String>,
    refused: Vec<Problem>,
) -> Result<NotifySettings, SettingsError> {
    let mut problems = Problems::of(refused);
    let settings = problems.notifications(flags, cluster, replica);
    problems.end()?;
    settings.ok_or_else(|| {
        SettingsError::of("--notify-url", "is missing; give the receiver's URL, or set EBBTIDE_NOTIFY_URL")
    })
}

impl Problems {
    /// Reads the settings of notifications; `None` without a receiver.
    pub(super) fn notifications(
        &mut self,
        mut flags: Notifications,
        cluster: Option<String>,
        replica: Option<String>,
    ) -> Option<NotifySettings> {
        forget_empty(&mut flags);
        let format = flags.notify_format;
        let receiver = self.receiver(&flags, format);
        if receiver.is_none() {
            if flags.notify_url.is_none() {
                self.without_receiver(&flags, format);
            }
            return None;
        }
        if flags.notify_template.is_some() && format == Format::PagerDuty {
            self.add(
                "--notify-template",
                "is not possible with --notify-format pagerduty, whose events have a fixed shape; remove one",
            );
        }
        if flags.notify_routing_key.is_some() && format != Format::PagerDuty {
            self.add("--notify-routing-key", "has no effect without --notify-format pagerduty; set both, or neither");
        }
        let flag = "--notify-proxy";
        if flags.notify_proxy.as_ref().is_some_and(|proxy| !notify::is_proxy(proxy)) {
            self.add(flag, "names no proxy; write it as http://HOST:PORT");
        }
        let template = flags.notify_template.as_deref().and_then(|file| self.template(file));
        let headers = flags.notify_header.iter().filter_map(|text| {
            outbound::header(text).map_err(|error| self.add("--notify-header", error.to_string())).ok()
        });
        let headers = headers.collect();
        let phases = self.phases(&flags.notify, format);
        Some(NotifySettings {
            receiver: receiver?,
            format,
            template,
            headers,
            timeout: flags.notify_timeout,
            signing_key: flags.notify_secret,
            traces: false,
            routing_key: flags.notify_routing_key,
            proxy: flags.notify_proxy,
            phases,
            cluster,
            replica: replica.unwrap_or_else(|| "ebbtide".to_owned()),
        })
    }

    fn receiver(&mut self, flags: &Notifications, format: Format) -> Option<Receiver> {
        let flag = "--notify-url";
        let url = match (&flags.notify_url, &flags.notify_routing_key) {
            (url, None) if format == Format::PagerDuty => {
                self.add(
                    "--notify-routing-key",
                    "is missing; give the integration key of a service in PagerDuty, or set EBBTIDE_NOTIFY_ROUTING_KEY",
                );
                return url.as_ref().and_then(|url| Receiver::parse(url).ok());
            }
            (Some(url), _) => url.clone(),
            (None, Some(_)) if format == Format::PagerDuty => {
                let Ok(url) = PAGER_DUTY_URL.parse();
                url
            }
            (None, _) => return None,
        };
        Receiver::parse(&url).map_err(|error| self.add(flag, error.to_string())).ok()
    }

    /// Reports flags that have no effect because there is no receiver.
    fn without_receiver(&mut self, flags: &Notifications, format: Format) {
        let idle = [
            ("--notify", !flags.notify.is_empty()),
            ("--notify-format", !matches!(format, Format::Json | Format::PagerDuty)),
            ("--notify-template", flags.notify_template.is_some()),
            ("--notify-header", !flags.notify_header.is_empty()),
            ("--notify-secret", flags.notify_secret.is_some()),
            ("--notify-routing-key", flags.notify_routing_key.is_some()),
            ("--notify-proxy", flags.notify_proxy.is_some()),
            ("--notify-timeout", flags.notify_timeout != DEFAULT_TIMEOUT),
        ];
        for (flag, is_idle) in idle {
            self.idle(flag, is_idle, "--notify-url");
        }
    }

    fn template(&mut self, file: &Path) -> Option<Template> {
        let flag = "--notify-template";
        let text = match input::file(file) {
            Ok(text) => text,
            Err(error) => {
                self.add(flag, format!("{} {}", file.display(), unreadable(&error)));
                return None;
            }
        };
        Template::compile(text).map_err(|error| self.add(flag, format!("{} {error}", file.display()))).ok()
    }

    /// Reads phases for all kinds, and others for single kinds.
    fn phases(&mut self, flags: &[String], format: Format) -> PhaseChoice {
        let flag = "--notify";
        let (some, all) = self.one_for_all(flag, flags);
        let default = match format {
            // An alert is to end when its cause does.
            Format::PagerDuty => DEFAULT_PHASES.with(NotificationPhase::Done),
            _ => DEFAULT_PHASES,
        };
        let mut choice = PhaseChoice::all(all.map_or(default, |text| self.phases_in(flag, &text)));
        for (kind, text) in self.by_kind(flag, &some, "spot=notice+failed") {
            choice.set(kind, self.phases_in(flag, text));
        }
        if choice.any().is_empty() {
            self.add(flag, "asks for nothing; name a phase, or remove --notify-url");
        }
        choice
    }

    fn phases_in(&mut self, flag: &'static str, text: &str) -> Phases {
        Phases::parse(text).unwrap_or_else(|word| {
            let phases = NotificationPhase::ALL.map(NotificationPhase::as_str).join(", ");
            self.add(
                flag,
                format!("\"{word}\" is not a phase; the phases are {phases}, joined by +; or write all or none"),
            );
            DEFAULT_PHASES
        })
    }
}

fn unreadable(error: &input::InputError) -> String {
    match error {
        input::InputError::Open(error) if error.kind() == io::ErrorKind::NotFound => {
            "does not exist; give the path of a template".to_owned()
        }
        input::InputError::Open(error) | input::InputError::Read(error) => format!("can't be read: {error}"),
        input::InputError::TooLong => "is too long for a template".to_owned(),
        input::InputError::NotUtf8(_) | input::InputError::Terminal => "is not text".to_owned(),
    }
}

/// Treats empty values as unset, because charts set empty variables.
fn forget_empty(flags: &mut Notifications) {
    let Notifications { notify_url, notify_secret, notify_routing_key, notify_proxy, .. } = flags;
    for value in [notify_url, notify_secret, notify_routing_key, notify_proxy] {
        value.take_if(|value| value.reveal().trim().is_empty());
    }
    flags.notify_header.retain(|header: &Secret| !header.reveal().trim().is_empty());
    flags.notify_template.take_if(|file| file.as_os_str().is_empty());
}
