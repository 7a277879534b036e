//! The command line: a refusal names a flag that exists, and shows no secret.

use clap::{Arg, CommandFactory};
use ebbtide::cli::{Cli, Command, Settings};
use ebbtide::pipeline::selector;
use ebbtide::telemetry::outbound::Secret;
use std::any::TypeId;
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// Maximum number of arguments.
const MAX_ARGUMENTS: usize = 64;

/// Minimum length of a secret that is looked for: shorter ones are parts of words.
const MIN_SECRET: usize = 8;

static FLAGS: LazyLock<BTreeSet<String>> = LazyLock::new(|| flags(|_| true));

/// Flags whose values no text may repeat: those that are read as a [`Secret`].
pub static SECRET: LazyLock<BTreeSet<String>> =
    LazyLock::new(|| flags(|flag| flag.get_value_parser().type_id() == TypeId::of::<Secret>()));

/// Returns the flags of `ebbtide run` for which `is_meant` holds.
pub fn flags(is_meant: impl Fn(&Arg) -> bool) -> BTreeSet<String> {
    let command = Cli::command();
    let run = command.find_subcommand("run").expect("run must be a command");
    run.get_arguments()
        .filter(|flag| is_meant(flag))
        .filter_map(|flag| Some(format!("--{}", flag.get_long()?)))
        .collect()
}

/// Takes each line as one argument.
pub fn check(text: &str) {
    let arguments: Vec<&str> = text.split('\n').take(MAX_ARGUMENTS).collect();
    // Skips the flag of a template: its file is not part of the input.
    if !text.contains("-template") {
        let _ = read(&arguments);
    }
}

/// Validates flags of `ebbtide run`; returns the settings, or what is wrong.
pub fn read(arguments: &[&str]) -> Result<(), String> {
    let read = Cli::of(["ebbtide", "run"].iter().chain(arguments));
    let result = match read {
        Ok(Cli { command: Command::Run(run) }) => match Settings::from_flags(run) {
            Ok(settings) => {
                // The API server gets the selector of pods as it is written here.
                let pods = settings.pod_selector.as_deref();
                assert!(pods.is_none_or(|pods| selector(pods).is_ok()), "{pods:?}");
                shows_no_secret(&format!("{settings:?}"), arguments);
                Ok(())
            }
            Err(error) => {
                assert!(!error.0.is_empty());
                for problem in &error.0 {
                    assert!(FLAGS.contains(&problem.flag), "{} is no flag", problem.flag);
                    assert!(!problem.what.is_empty(), "{}", problem.flag);
                }
                Err(error.to_string())
            }
        },
        Ok(_) => unreachable!("the command is run"),
        // Help is clap's own text.
        Err(error) if error.use_stderr() => Err(Cli::problems(&error)),
        Err(error) => Err(error.to_string()),
    };
    if let Err(said) = &result {
        assert!(!said.is_empty());
        shows_no_secret(said, arguments);
    }
    result
}

fn shows_no_secret(said: &str, arguments: &[&str]) {
    for (at, argument) in arguments.iter().enumerate() {
        let (flag, value) = match argument.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (*argument, arguments.get(at + 1).copied()),
        };
        let Some(value) = value.filter(|value| SECRET.contains(flag) && value.len() >= MIN_SECRET) else { continue };
        // What the command line says in another place as well is not secret there; and a flag is no value.
        let elsewhere = arguments.iter().filter(|other| other.contains(value)).count() > 1;
        let is_word = value.starts_with('-') || FLAGS.iter().any(|flag| flag.contains(value));
        // Of a URL the host is shown.
        let host = value.contains("://") && value.matches('/').count() < 3;
        assert!(elsewhere || is_word || host || !said.contains(value), "{flag}'s value is in {said:?}");
    }
}
