//! Reading the command line: what clap's attributes can't express about all flags.

use super::answer::Answer;
use super::flags::{Cli, Command as Chosen, Problem};
use super::refusal;
use clap::builder::{BoolishValueParser, Resettable};
use clap::error::{ContextKind, ContextValue, ErrorKind, KindFormatter};
use clap::{Arg, ArgAction, Command, CommandFactory, FromArgMatches};
use std::ffi::OsString;

/// Name of the flag that shows all flags in the help.
pub(super) const HELP_ALL: &str = "help-all";

/// The flags that the help of `ebbtide run` shows: those that people set.
const COMMON: [&str; 20] = [
    "queue_url",
    "source",
    "on",
    "on_condition",
    "node_selector",
    "managed_tag",
    "cluster_name",
    "ec2_poll_interval",
    "drain_timeout",
    "max_draining",
    "wave",
    "taint",
    "uncordon_after",
    "on_failed_drain",
    "wait_for_load_balancers",
    "dry_run",
    "events",
    "notify_url",
    "log_format",
    "log",
];

/// Maximum number of refused values that are reported. Each costs another parse.
const MAX_REFUSED: usize = 100;

impl Cli {
    /// Reads the command line and the environment. An empty variable counts as unset, because charts set empty variables. Ends the process
    /// if the command line asks for help or for the version.
    ///
    /// # Errors
    /// The problems of the command line.
    pub fn read() -> Result<Self, Answer> {
        let shows_all =
            std::env::args_os().any(|arg| arg.to_str().and_then(|arg| arg.strip_prefix("--")) == Some(HELP_ALL));
        let command = if shows_all { Self::complete() } else { Self::brief() };
        Self::parsed(command, std::env::args_os().collect()).map_err(|error| {
            match error.kind() {
                // These come with their text.
                ErrorKind::DisplayHelp
                | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                | ErrorKind::DisplayVersion => error.apply::<KindFormatter>().exit(),
                _ => Answer::wrong(&Self::problems(&error)),
            }
        })
    }

    /// Parses a command line that begins with the program's name.
    ///
    /// # Errors
    /// The first problem; its text is that of [`Cli::problems`]. Values that the service's flags refuse are no error: they are left out, and
    /// are problems of the settings, so that these report all at once.
    pub fn of(args: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Self, clap::Error> {
        Self::parsed(Self::complete(), args.into_iter().map(Into::into).collect())
    }

    #[allow(clippy::disallowed_methods, reason = "clap can't distinguish an empty variable from a missing one")]
    fn parsed(command: Command, args: Vec<OsString>) -> Result<Self, clap::Error> {
        let filled = |arg: Arg| {
            let empty = arg.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty());
            if empty { arg.env(Resettable::Reset) } else { arg }
        };
        let command = command.mut_subcommands(|command| command.mut_args(filled));
        let parse = |command: &Command, args: &[OsString]| {
            let matches = command.clone().try_get_matches_from(args)?;
            Self::from_arg_matches(&matches)
        };
        let first = match parse(&command, &args) {
            Ok(cli) => return Ok(cli),
            Err(error) => error,
        };
        if Refusal::of(&first).is_none() {
            return Err(first);
        }
        let mut line = Line::of(command, args);
        let mut refused = Vec::new();
        loop {
            let error = match parse(&line.command, &line.args) {
                Err(error) => error,
                Ok(cli) => return cli.with(refused).ok_or(first),
            };
            match Refusal::of(&error).filter(|refusal| refused.len() < MAX_REFUSED && line.without(refusal)) {
                Some(refusal) => refused.extend(refusal.why.map(|what| Problem { flag: refusal.flag, what })),
                None => return Err(error),
            }
        }
    }

    /// Keeps the refused values for the settings; `None` if the command has none, and there are such values.
    fn with(mut self, refused: Vec<Problem>) -> Option<Self> {
        match &mut self.command {
            Chosen::Run(run) => run.refused = refused,
            Chosen::Agent(agent) => agent.refused = refused,
            Chosen::Doctor(doctor) => doctor.borrowed.run.refused = refused,
            Chosen::Simulate(simulate) => simulate.borrowed.run.refused = refused,
            Chosen::Notify(notify) => notify.refused = refused,
            Chosen::Send(_) | Chosen::Status(_) | Chosen::Undo(_) | Chosen::Migrate(_) | Chosen::Completion(_) => {
                return refused.is_empty().then_some(self);
            }
        }
        Some(self)
    }

    /// Returns the problems of a command line in the words of all other errors, one a line.
    #[must_use]
    pub fn problems(error: &clap::Error) -> String {
        refusal::problems(error)
    }

    /// The command line, whose help leaves out the service's flags: for `ebbtide run` those that few people set, for commands that take them
    /// besides their own all.
    fn brief() -> Command {
        Self::complete().mut_subcommands(|command| {
            if !command.get_arguments().any(|arg| arg.get_id() == HELP_ALL) {
                return command;
            }
            let shown: &[&str] = if command.get_name() == "run" { &COMMON } else { &[] };
            // The service's flags have variables.
            let is_hidden = |arg: &Arg| arg.get_env().is_some() && !shown.contains(&arg.get_id().as_str());
            command.mut_args(|arg| if is_hidden(&arg) { arg.hide(true) } else { arg })
        })
    }

    /// The command line, in which every switch takes `=false`, as its variable does, and commands with the service's flags take `--help-all`. The
    /// descriptions are Markdown, for docs and chart; a terminal gets them without backticks.
    #[must_use]
    pub fn complete() -> Command {
        let plain = |arg: Arg| {
            let [short, long] =
                [arg.get_help(), arg.get_long_help()].map(|help| help.map(|help| help.to_string().replace('`', "")));
            let arg = if let Some(short) = short { arg.help(short) } else { arg };
            if let Some(long) = long { arg.long_help(long) } else { arg }
        };
        let help_all = Arg::new(HELP_ALL).long(HELP_ALL).action(ArgAction::HelpLong).help("Show all flags");
        let switch = |arg: Arg| {
            let is_on = arg.get_default_values().first().is_some_and(|value| value == "true");
            if !is_on && !matches!(arg.get_action(), ArgAction::SetTrue) || arg.is_required_set() {
                return arg;
            }
            let arg = arg.action(ArgAction::Set).num_args(0..=1).require_equals(true).value_name("BOOL");
            arg.value_parser(BoolishValueParser::new())
                .default_missing_value("true")
                .default_value(if is_on { "true" } else { "false" })
                .hide_default_value(!is_on)
                .hide_possible_values(true)
        };
        Self::command().mut_subcommands(|command| {
            let takes_all = command.get_arguments().any(|arg| arg.get_id() == "source");
            let command = command.mut_args(|arg| switch(plain(arg)));
            if takes_all { command.arg(help_all.clone()) } else { command }
        })
    }
}

/// A value that its flag has refused.
struct Refusal {
    flag: String,
    value: String,
    /// The problem with its remedy; `None` for an empty value, which counts as unset.
    why: Option<String>,
}

impl Refusal {
    fn of(error: &clap::Error) -> Option<Self> {
        let text = |kind| match error.get(kind) {
            Some(ContextValue::String(text)) => Some(text.clone()),
            _ => None,
        };
        let is_value = matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue);
        let arg = text(ContextKind::InvalidArg).filter(|arg| is_value && arg.starts_with("--"))?;
        let flag = arg.split([' ', '=', '[']).next()?.to_owned();
        let value = text(ContextKind::InvalidValue)?;
        let problem = refusal::problems(error);
        let what = problem.strip_prefix(&flag)?.trim_start_matches([':', ' ']).to_owned();
        Some(Self { flag, why: Some(what).filter(|_| !value.trim().is_empty()), value })
    }
}

/// A command line whose variables stand among the arguments, so that values can be left out.
struct Line {
    command: Command,
    args: Vec<OsString>,
}

impl Line {
    #[allow(clippy::disallowed_methods, reason = "clap reads the same variables")]
    fn of(command: Command, mut args: Vec<OsString>) -> Self {
        let name = args.get(1).and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let mut variables = Vec::new();
        let command = command.mut_subcommand(&name, |command| {
            command.mut_args(|arg| {
                let (Some(long), Some(variable)) = (arg.get_long(), arg.get_env()) else { return arg };
                let long = format!("--{long}");
                match std::env::var_os(variable).map(OsString::into_string) {
                    // One that is no text is refused by clap.
                    Some(Err(_)) => return arg,
                    Some(Ok(value)) if !is_given(&args, &long) => {
                        variables.push(OsString::from(format!("{long}={value}")));
                    }
                    _ => {}
                }
                arg.env(Resettable::Reset)
            })
        });
        args.splice(2..2, variables);
        Self { command, args }
    }

    /// Removes a value from the first argument with it. Returns whether there is one.
    fn without(&mut self, refusal: &Refusal) -> bool {
        let Refusal { flag, value, .. } = refusal;
        let given = format!("{flag}=");
        let mut flags = self.args.iter().take_while(|arg| *arg != "--").enumerate();
        let place = flags.find_map(|(at, arg)| {
            let (words, text) = match arg.to_str()? {
                arg if arg == flag => (2, self.args.get(at + 1)?.to_str()?),
                arg => (1, arg.strip_prefix(&given)?),
            };
            let rest: Vec<&str> = text.split(',').filter(|piece| piece != value).collect();
            let rest = if text == value { String::new() } else { rest.join(",") };
            (rest != text || text.is_empty()).then_some((at, words, rest))
        });
        let Some((at, words, rest)) = place else { return false };
        let kept = (!rest.is_empty()).then(|| OsString::from(given + &rest));
        self.args.splice(at..at + words, kept);
        true
    }
}

/// Whether the arguments have a long flag.
fn is_given(args: &[OsString], long: &str) -> bool {
    let mut flags = args.iter().take_while(|arg| *arg != "--").filter_map(|arg| arg.to_str()?.strip_prefix(long));
    flags.any(|rest| rest.is_empty() || rest.starts_with('='))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::flags;
    use crate::fact::{Action, NoticeKind};

    fn run(args: &[&str]) -> Result<flags::Run, clap::Error> {
        match Cli::of([&["ebbtide", "run"], args].concat())?.command {
            flags::Command::Run(run) => Ok(run),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_refused_value_is_left_out_and_reported() {
        let flags =
            ["--pod-grace=x", "--source=queue,foo", "--taint", "a,b:NoSchedule", "--log-format=", "--dry-run=perhaps"];
        let read = run(&flags).unwrap();
        let refused: Vec<&str> = read.refused.iter().map(|problem| &*problem.flag).collect();
        assert_eq!(refused, ["--pod-grace", "--source", "--taint", "--dry-run"]);
        assert_eq!((read.sources.source.len(), read.taint.len(), read.dry_run), (1, 1, false));
        assert!(read.refused[1].what.starts_with("\"foo\" is unknown; give one of queue, nodes, ec2"), "{refused:?}");
        let many: Vec<String> = (0..200).map(|n| format!("--taint={n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(run(&many).unwrap_err().kind(), ErrorKind::ValueValidation, "it ends");
        for other in [&["ebbtide"][..], &[], &["ebbtide", "run", "--help"], &["ebbtide", "simulate", "--", "--log"]] {
            let _ = Cli::of(other);
        }
        let lines = |line: &str| {
            let Ok(cli) = Cli::of(line.split(' ')) else { panic!("{line}") };
            match cli.command {
                flags::Command::Agent(agent) => agent.refused.len(),
                flags::Command::Notify(notify) => notify.refused.len(),
                _ => 0,
            }
        };
        assert_eq!(lines("ebbtide agent --node-name=N --log=a=b=c --log-format=x"), 2);
        assert_eq!(lines("ebbtide notify --test --notify-timeout=x --cluster-name=! --notify="), 2);
    }

    #[test]
    fn a_switch_takes_a_word_too() {
        let dry = |args: &[&str]| run(args).map(|run| run.dry_run).map_err(|error| error.kind());
        assert_eq!(dry(&[]), Ok(false));
        assert_eq!(dry(&["--dry-run"]), Ok(true));
        assert_eq!(dry(&["--dry-run=true"]), Ok(true));
        assert_eq!(dry(&["--dry-run=false"]), Ok(false));
        assert!(dry(&["--dry-run", "false"]).is_err(), "a word apart is another argument");
        let checks = |args: &[&str]| run(args).map(|run| run.check_at_start).map_err(|error| error.kind());
        assert_eq!((checks(&[]), checks(&["--check-at-start"])), (Ok(true), Ok(true)));
        assert_eq!(checks(&["--check-at-start=false"]), Ok(false));
        assert!(checks(&["--check-at-start", "false"]).is_err(), "as for the others");
    }

    #[test]
    fn a_command_shows_its_own_flags_first_and_the_service_s_on_request() {
        for name in ["doctor", "simulate"] {
            let help = |mut cli: Command| cli.find_subcommand_mut(name).unwrap().render_long_help().to_string();
            let (brief, all) = (help(Cli::brief()), help(Cli::complete()));
            for own in ["--output", "--context", "--help-all"] {
                assert!(brief.contains(own) && all.contains(own), "{name}: {own}\n{brief}");
            }
            for borrowed in ["--queue-url", "--drain-timeout", "--notify-url"] {
                assert!(!brief.contains(borrowed) && all.contains(borrowed), "{name}: {borrowed}\n{brief}");
            }
        }
    }

    #[test]
    fn run_shows_the_flags_that_people_set_and_the_others_on_request() {
        let help = |mut cli: Command| cli.find_subcommand_mut("run").unwrap().render_long_help().to_string();
        let (brief, all) = (help(Cli::brief()), help(Cli::complete()));
        for flag in COMMON {
            let flag = format!("--{}", flag.replace('_', "-"));
            assert!(brief.contains(&flag), "{flag}\n{brief}");
        }
        for rare in ["--ignore-hook", "--status-peers", "--notify-proxy"] {
            assert!(!brief.contains(rare) && all.contains(rare), "{rare}\n{brief}");
        }
        assert!(brief.contains("--help-all") && !all.contains('`'), "{all}");
    }

    #[test]
    fn help_lists_the_kinds_and_actions() {
        let mut cli = Cli::complete();
        let help = cli.find_subcommand_mut("send").unwrap().render_long_help().to_string();
        assert!(help.contains("asg-terminate, asg-launch, spot"), "{help}");
        let run = cli.find_subcommand("run").unwrap();
        let on = run.get_arguments().find(|arg| arg.get_id() == "on").unwrap().get_long_help().unwrap().to_string();
        let (kinds, actions) = on.split_once("Actions: ").unwrap();
        for kind in NoticeKind::ALL {
            assert!(kinds.contains(kind.as_str()), "{kind}: {on}");
        }
        for action in Action::ALL {
            assert!(actions.contains(action.as_str()), "{action}: {on}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::complete().debug_assert();
    }
}
