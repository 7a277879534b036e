//! Writes what shells and `man` know of the command line: completions for bash, zsh and fish, and a manual page for each command.
//!
//!     cargo run --example shell-files -- FOLDER
//!
//! A release's archives hold these files, for packages. `ebbtide completion` writes the same completions.

use ebbtide::cli::Shell;
use ebbtide::commands::completion::{command, script};
use std::fs::{create_dir_all, write};
use std::io;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("shell-files: name the folder for the files: cargo run --example shell-files -- FOLDER");
        return ExitCode::from(2);
    };
    match write_all(Path::new(&folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shell-files: can't write to {}: {error}", Path::new(&folder).display());
            ExitCode::FAILURE
        }
    }
}

fn write_all(folder: &Path) -> io::Result<()> {
    let (completions, manual) = (folder.join("completions"), folder.join("man"));
    create_dir_all(&completions)?;
    create_dir_all(&manual)?;
    // Each shell looks for a name of its own.
    for (shell, name) in [(Shell::Bash, "ebbtide.bash"), (Shell::Zsh, "_ebbtide"), (Shell::Fish, "ebbtide.fish")] {
        write(completions.join(name), script(shell))?;
    }
    clap_mangen::generate_to(command(), &manual)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebbtide::cli::Cli;
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::PathBuf;

    /// Files in a folder that is deleted at the end.
    struct Written(PathBuf);

    impl Written {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("ebbtide-{name}-{}", std::process::id()));
            write_all(&folder).unwrap();
            Self(folder)
        }

        fn files(&self) -> BTreeMap<String, String> {
            let entries = ["completions", "man"].into_iter().flat_map(|part| fs::read_dir(self.0.join(part)).unwrap());
            let paths = entries.map(|entry| entry.unwrap().path());
            paths
                .map(|path| {
                    let name = path.file_name().unwrap().to_string_lossy().into_owned();
                    (name, fs::read_to_string(path).unwrap())
                })
                .collect()
        }
    }

    impl Drop for Written {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn each_file_names_each_command_and_flag() {
        let files = Written::new("names").files();
        let mut cli = Cli::complete();
        cli.build();
        let mut pages = vec!["ebbtide.1".to_owned()];
        let mut flags = 0;
        for command in cli.get_subcommands().filter(|command| command.get_name() != "help" && !command.is_hide_set()) {
            let name = command.get_name();
            let page = format!("ebbtide-{name}.1");
            for flag in command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(|arg| arg.get_long()) {
                flags += 1;
                for shell in ["ebbtide.bash", "_ebbtide"] {
                    assert!(files[shell].contains(&format!("--{flag}")), "{shell}: {name} --{flag}");
                }
                let in_fish = files["ebbtide.fish"].lines().any(|line| {
                    line.contains(&format!("__fish_ebbtide_using_subcommand {name}\""))
                        && (line.contains(&format!(" -l {flag} ")) || line.ends_with(&format!(" -l {flag}")))
                });
                assert!(in_fish, "fish: {name} --{flag}");
                // roff writes a hyphen that is no line break with a backslash.
                assert!(files[&page].contains(&format!("--{flag}").replace('-', "\\-")), "{page}: --{flag}");
            }
            pages.push(page);
        }
        assert!(flags > 150, "{flags} flags");
        let written: Vec<&String> = files.keys().filter(|name| name.ends_with(".1")).collect();
        pages.sort();
        assert_eq!(written, pages.iter().collect::<Vec<_>>());
        assert!(!files.values().any(|text| text.contains(std::env::consts::ARCH)), "the same for each target");
    }

    /// Completes a command line in bash, as its last word, and returns the words on offer.
    fn in_bash(script: &Path, words: &[&str]) -> Option<Vec<String>> {
        let last = words.len() - 1;
        let program = format!(
            "source {}; COMP_WORDS=({}); COMP_CWORD={last}; _ebbtide ebbtide \"${{COMP_WORDS[{last}]}}\" \"${{COMP_WORDS[{}]}}\"; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            script.display(),
            words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
            last - 1,
        );
        let done = std::process::Command::new("bash").args(["--norc", "-c", &program]).output().ok()?;
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Some(String::from_utf8(done.stdout).unwrap().lines().map(str::to_owned).collect())
    }

    #[test]
    fn bash_completes_commands_flags_kinds_and_actions() {
        let written = Written::new("bash");
        let script = written.0.join("completions/ebbtide.bash");
        for (words, expected) in [
            (&["ebbtide", "do"][..], &["doctor"][..]),
            (&["ebbtide", "send", "--kin"], &["--kind"]),
            (&["ebbtide", "send", "--kind", "asg"], &["asg-terminate", "asg-launch"]),
            (&["ebbtide", "run", "--on", "asg-l"], &["asg-launch=ready", "asg-launch=report", "asg-launch=ignore"]),
            (&["ebbtide", "doctor", "--help-"], &["--help-all"]),
        ] {
            let Some(offered) = in_bash(&script, words) else {
                println!("no bash here: NOT CHECKED");
                return;
            };
            assert_eq!(offered, expected, "{words:?}");
        }
    }
}
