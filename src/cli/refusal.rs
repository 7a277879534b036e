//! Errors of the command line in the words of all other errors: what is wrong, on what, and what to do.

use super::flags::{Cli, ValueError};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Error};
use std::error::Error as _;

/// Returns the problems of a command line, one a line.
pub(super) fn problems(error: &Error) -> String {
    let of = |kind: ContextKind| match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.as_str()],
        Some(ContextValue::Strings(all)) => all.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    };
    let first = |kind: ContextKind| of(kind).first().copied().unwrap_or_default();
    // The nearest comes last.
    let instead =
        |kind: ContextKind| of(kind).last().map_or_else(String::new, |near| format!("; did you mean {near}?"));
    let command = command(error);
    let (arg, value) = (first(ContextKind::InvalidArg), first(ContextKind::InvalidValue));
    let flag = name(arg);
    match error.kind() {
        ErrorKind::InvalidValue => {
            let values = of(ContextKind::ValidValue).join(", ");
            match (value, &*values) {
                ("", "") => format!("{flag}: has no value; write {arg}"),
                ("", _) => format!("{flag}: has no value; give one of {values}"),
                _ => format!(
                    "{flag}: \"{value}\" is unknown; give one of {values}{}",
                    instead(ContextKind::SuggestedValue)
                ),
            }
        }
        ErrorKind::ValueValidation => {
            let source = error.source();
            if let Some(why) = source.and_then(|source| source.downcast_ref::<ValueError>()) {
                return format!("{flag}: {why}");
            }
            let why = source.map(ToString::to_string).unwrap_or_default();
            format!("{flag}: \"{value}\" can't be used: {why}; write {arg}")
        }
        // Without its value, which may be a secret.
        ErrorKind::UnknownArgument if flag.starts_with('-') && is_known(&command, flag) => {
            format!("{flag}: comes after --, where no flags are read; write it before, or remove the --")
        }
        ErrorKind::UnknownArgument if flag.starts_with('-') => {
            let near = longer(&command, flag).unwrap_or_else(|| instead(ContextKind::SuggestedArg));
            format!("{flag}: is no flag of {command}; {command} {} lists them{near}", help(&command))
        }
        ErrorKind::UnknownArgument => {
            format!("\"{arg}\" is more than {command} takes; {command} --help shows what it takes")
        }
        ErrorKind::InvalidSubcommand => format!(
            "\"{}\" is no command; {command} --help lists them{}",
            first(ContextKind::InvalidSubcommand),
            instead(ContextKind::SuggestedSubcommand)
        ),
        ErrorKind::MissingRequiredArgument => {
            let missing = of(ContextKind::InvalidArg).into_iter();
            missing.map(|arg| format!("{}: is missing; give {arg}", name(arg))).collect::<Vec<_>>().join("\n")
        }
        ErrorKind::ArgumentConflict => match of(ContextKind::PriorArg).as_slice() {
            [] => format!("{flag}: is given with other arguments; give it alone"),
            [prior] if *prior == arg => format!("{flag}: is given twice; remove one"),
            priors => {
                let priors: Vec<&str> = priors.iter().map(|prior| name(prior)).collect();
                format!("{flag}: is not possible with {}; remove one", priors.join(", "))
            }
        },
        ErrorKind::TooManyValues => format!("{flag}: takes no value \"{value}\"; remove it"),
        ErrorKind::NoEquals => format!("{flag}: takes its value after an equals sign; write {arg}"),
        kind => {
            let what = kind.as_str().unwrap_or("the command line can't be read");
            if flag.is_empty() {
                format!("{what}; see {command} --help")
            } else {
                format!("{flag}: {what}; see {command} --help")
            }
        }
    }
}

/// Returns a flag without its value, as in `--node <NAME>`, or a positional argument without its brackets, as in `[FILE]`.
fn name(arg: &str) -> &str {
    arg.split([' ', '[', ']', '=']).find(|word| !word.is_empty()).unwrap_or_default()
}

/// Returns the flag that shows all flags of the command.
fn help(command: &str) -> &'static str {
    if is_known(command, "--help-all") { "--help-all" } else { "--help" }
}

/// Whether the command has this long flag.
fn is_known(command: &str, flag: &str) -> bool {
    let cli = Cli::complete();
    let command = command.strip_prefix("ebbtide ").and_then(|command| cli.find_subcommand(command));
    let mut flags = command.into_iter().flat_map(clap::Command::get_arguments).filter_map(Arg::get_long);
    flags.any(|known| Some(known) == flag.strip_prefix("--"))
}

/// Returns a hint to the only long flag of the command that begins with the letter of an unknown short one.
fn longer(command: &str, arg: &str) -> Option<String> {
    let letter = arg.strip_prefix('-').filter(|letter| letter.len() == 1)?;
    let cli = Cli::complete();
    let command = cli.find_subcommand(command.strip_prefix("ebbtide ")?)?;
    let mut flags = command.get_arguments().filter_map(Arg::get_long).filter(|flag| flag.starts_with(letter));
    let flag = flags.next().filter(|_| flags.next().is_none())?;
    Some(format!("; did you mean --{flag}?"))
}

/// Returns the command, from the usage that clap shows for it.
fn command(error: &Error) -> String {
    let usage = match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => usage.to_string(),
        _ => String::new(),
    };
    let words = usage.split_whitespace().skip(1).take_while(|word| word.bytes().all(|b| b.is_ascii_lowercase()));
    let words: Vec<&str> = words.collect();
    if words.is_empty() { "ebbtide".to_owned() } else { words.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> String {
        let error = Cli::complete().try_get_matches_from(line.split(' ')).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        problems(&error)
    }

    #[test]
    fn each_error_says_what_is_wrong_and_what_to_do() {
        let kinds = "asg-terminate, asg-launch, spot, rebalance, state-change, scheduled-change, capacity-reservation, \
                     node-condition, status-check";
        for (line, expected) in [
            (
                "ebbtide simluate",
                "\"simluate\" is no command; ebbtide --help lists them; did you mean simulate?".to_owned(),
            ),
            ("ebbtide nonsense", "\"nonsense\" is no command; ebbtide --help lists them".to_owned()),
            (
                "ebbtide send --kind spto --node n",
                format!("--kind: \"spto\" is unknown; give one of {kinds}; did you mean spot?"),
            ),
            ("ebbtide send --kind x --node n", format!("--kind: \"x\" is unknown; give one of {kinds}")),
            ("ebbtide send --kind", format!("--kind: has no value; give one of {kinds}")),
            ("ebbtide send --node", "--node: has no value; write --node <NAME>".to_owned()),
            (
                "ebbtide send",
                "--kind: is missing; give --kind <KIND>\n--node: is missing; give --node <NAME>".to_owned(),
            ),
            (
                "ebbtide send --nod n",
                "--nod: is no flag of ebbtide send; ebbtide send --help lists them; did you mean --node?".to_owned(),
            ),
            (
                "ebbtide migrate a -o b",
                "-o: is no flag of ebbtide migrate; ebbtide migrate --help lists them; did you mean --output-file?"
                    .to_owned(),
            ),
            (
                "ebbtide migrate a --output b",
                "--output: is no flag of ebbtide migrate; ebbtide migrate --help lists them; did you mean --output-file?"
                    .to_owned(),
            ),
            ("ebbtide run -o", "-o: is no flag of ebbtide run; ebbtide run --help-all lists them".to_owned()),
            (
                "ebbtide migrate a b",
                "\"b\" is more than ebbtide migrate takes; ebbtide migrate --help shows what it takes".to_owned(),
            ),
            ("ebbtide status -n x 127.0.0.1:1", "--namespace: is not possible with ADDRESS; remove one".to_owned()),
            ("ebbtide status --port 1", "--namespace: is missing; give --namespace <NAME>".to_owned()),
            ("ebbtide status -l a=b", "--namespace: is missing; give --namespace <NAME>".to_owned()),
            ("ebbtide status --port 1 127.0.0.1:1", "--port: is not possible with ADDRESS; remove one".to_owned()),
            ("ebbtide simulate --kind spot --node n f", "--kind: is not possible with FILE; remove one".to_owned()),
            ("ebbtide send --node n --node m", "--node: is given twice; remove one".to_owned()),
            ("ebbtide status --watch --output json", "--watch: is not possible with --output; remove one".to_owned()),
            (
                "ebbtide status --port many",
                "--port: \"many\" can't be used: invalid digit found in string; write --port <PORT>".to_owned(),
            ),
            (
                "ebbtide run --dry-run=perhaps",
                "--dry-run: \"perhaps\" can't be used: value was not a boolean; write --dry-run[=<BOOL>]".to_owned(),
            ),
            (
                "ebbtide run --dry-run false",
                "\"false\" is more than ebbtide run takes; ebbtide run --help shows what it takes".to_owned(),
            ),
            (
                "ebbtide run -- --notify-routing-key=t0ken",
                "--notify-routing-key: comes after --, where no flags are read; write it before, or remove the --"
                    .to_owned(),
            ),
            (
                "ebbtide agent --notify-routing-key=t0ken",
                "--notify-routing-key: is no flag of ebbtide agent; ebbtide agent --help lists them".to_owned(),
            ),
        ] {
            assert_eq!(refused(line), expected, "{line}");
        }
    }
}
