//! `ebbtide completion`: what a shell completes. Clap writes it from the command line.

use crate::cli::flags::completion::{Completion, Shell};
use crate::cli::{Answer, Cli};
use crate::fact::NoticeKind;
use clap::builder::PossibleValuesParser;
use clap::{Arg, Command};
use clap_complete::shells::{Bash, Fish, Zsh};
use clap_complete::{Generator, generate};

/// Returns the script for a shell.
#[must_use]
pub fn completion(flags: &Completion) -> Answer {
    Answer::well(script(flags.shell))
}

/// Returns the script for a shell: the same for each target and commit.
#[must_use]
pub fn script(shell: Shell) -> String {
    match shell {
        Shell::Bash => written(Bash),
        Shell::Zsh => written(Zsh),
        Shell::Fish => written(Fish),
    }
}

/// Returns the whole command line, the same for each target and commit.
#[must_use]
pub fn command() -> Command {
    let with_pairs = |arg: Arg| match arg.get_id().as_str() {
        "on" => arg.value_parser(PossibleValuesParser::new(pairs())).hide_possible_values(true),
        _ => arg,
    };
    Cli::complete().version(env!("CARGO_PKG_VERSION")).mut_subcommands(|command| command.mut_args(with_pairs))
}

fn written(shell: impl Generator) -> String {
    let mut script = Vec::new();
    generate(shell, &mut command(), "ebbtide", &mut script);
    // Clap's texts are UTF-8.
    String::from_utf8_lossy(&script).into_owned()
}

/// Returns the values that `--on` takes. The service checks them itself, to report all wrong settings together.
fn pairs() -> Vec<&'static str> {
    let of = |kind: NoticeKind| kind.actions().iter().map(move |action| format!("{kind}={action}"));
    // clap takes names of values that live as long as the process.
    NoticeKind::ALL.into_iter().flat_map(of).map(|pair| &*pair.leak()).collect()
}
