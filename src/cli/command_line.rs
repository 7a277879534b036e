//! Reading the command line: what clap's attributes can't express about all flags.

use super::answer::Answer;
use super::flags::Cli;
use super::flags::{Command as Chosen, Problem, ValueError};
use super::refusal;
use clap::builder::{BoolishValueParser, Resettable};
use clap::error::{ContextKind, ContextValue, ErrorKind, KindFormatter};
use clap::{Arg, ArgAction, Command, CommandFactory, FromArgMatches};
use std::error::Error as _;
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

impl Cli {
    /// Reads the command line and the environment. An empty variable counts as unset, because charts set empty variables. Ends the process
    /// if the command line asks for help or for the version.
    ///
    /// # Errors
    /// The problems of the command line.
    #[allow(clippy::disallowed_methods, reason = "clap can't distinguish an empty variable from a missing one")]
    pub fn read() -> Result<Self, Answer> {
        let filled = |arg: Arg| {
            let empty = arg.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty());
            if empty { arg.env(Resettable::Reset) } else { arg }
        };
        let shows_all =
            std::env::args_os().any(|arg| arg.to_str().and_then(|arg| arg.strip_prefix("--")) == Some(HELP_ALL));
        let command = if shows_all { Self::complete() } else { Self::brief() };
        let command = command.mut_subcommands(|command| command.mut_args(filled));
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

    fn parsed(command: Command, args: Vec<OsString>) -> Result<Self, clap::Error> {
        let parse = |command: &Command, args: &[OsString]| {
            let matches = command.clone().try_get_matches_from(args)?;
            Self::from_arg_matches(&matches)
        };
        let first = match parse(&command, &args) {
            Ok(cli) => return Ok(cli),
            Err(error) => error,
        };
        let mut line = Line::of(command, args);
        let mut refused = line.without(&first).into_iter().collect::<Vec<_>>();
        loop {
            match parse(&line.command, &line.args) {
                Err(error) => match line.without(&error) {
                    Some(problem) => refused.push(problem),
                    None => return Err(error),
                },
                Ok(mut cli) => {
                    refused.retain(|problem| !problem.what.is_empty());
                    match &mut cli.command {
                        Chosen::Run(run) => run.refused = refused,
                        Chosen::Doctor(doctor) => doctor.borrowed.run.refused = refused,
                        Chosen::Simulate(simulate) => simulate.borrowed.run.refused = refused,
                        _ if refused.is_empty() => {}
                        _ => return Err(first),
                    }
                    return Ok(cli);
                }
            }
        }
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

/// A command line whose variables stand among the arguments, so that values can be left out.
struct Line {
    command: Command,
    args: Vec<OsString>,
}

impl Line {
    #[allow(clippy::disallowed_methods, reason = "clap reads the same variables")]
    fn of(command: Command, mut args: Vec<OsString>) -> Self {
        let name = args.get(1).and_then(|name| name.to_str()).unwrap_or_default();
        let known = command.find_subcommand(name).into_iter().flat_map(Command::get_arguments);
        let variables: Vec<OsString> = known
            .filter_map(|arg| {
                let long = format!("--{}", arg.get_long()?);
                let value = std::env::var_os(arg.get_env()?)?.into_string().ok()?;
                let is_given = |arg: &OsString| {
                    let arg = arg.to_str().and_then(|arg| arg.strip_prefix(&long));
                    arg.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
                };
                (!value.is_empty() && !args.iter().any(is_given)).then(|| format!("{long}={value}").into())
            })
            .collect();
        args.splice(2..2, variables);
        let command = command.mut_subcommands(|command| command.mut_args(|arg| arg.env(Resettable::Reset)));
        Self { command, args }
    }

    /// Removes the value that its flag has refused; returns why, empty for an empty value. `None` for other errors.
    fn without(&mut self, error: &clap::Error) -> Option<Problem> {
        let text = |kind| match error.get(kind) {
            Some(ContextValue::String(text)) => Some(text.as_str()),
            _ => None,
        };
        let why = error.source()?.downcast_ref::<ValueError>()?;
        let (arg, value) = (text(ContextKind::InvalidArg)?, text(ContextKind::InvalidValue)?);
        let flag = arg.split([' ', '=', '[']).next()?;
        let given = format!("{flag}=");
        let place = self.args.iter().enumerate().find_map(|(at, arg)| {
            let (words, text) = match arg.to_str()? {
                arg if arg == flag => (2, self.args.get(at + 1)?.to_str()?),
                arg => (1, arg.strip_prefix(&given)?),
            };
            let rest: Vec<&str> = text.split(',').filter(|piece| *piece != value).collect();
            let rest = if text == value { String::new() } else { rest.join(",") };
            (rest != text || text.is_empty()).then_some((at, words, rest))
        });
        let (at, words, rest) = place?;
        let kept = (!rest.is_empty()).then(|| OsString::from(given + &rest));
        self.args.splice(at..at + words, kept);
        let what = if *why == ValueError::Empty { String::new() } else { why.to_string() };
        Some(Problem { flag: flag.to_owned(), what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::flags;
    use crate::fact::{Action, NoticeKind};

    fn run(args: &[&str]) -> Result<flags::Run, clap::Error> {
        let matches = Cli::complete().try_get_matches_from([&["ebbtide", "run"], args].concat())?;
        match Cli::from_arg_matches(&matches)?.command {
            flags::Command::Run(run) => Ok(run),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_switch_takes_a_word_too() {
        let dry = |args: &[&str]| run(args).map(|run| run.dry_run).map_err(|error| error.kind());
        assert_eq!(dry(&[]), Ok(false));
        assert_eq!(dry(&["--dry-run"]), Ok(true));
        assert_eq!(dry(&["--dry-run=true"]), Ok(true));
        assert_eq!(dry(&["--dry-run=false"]), Ok(false));
        assert_eq!(dry(&["--dry-run=perhaps"]), Err(ErrorKind::ValueValidation));
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
