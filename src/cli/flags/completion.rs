//! The flags of `ebbtide completion`.

use clap::{Args, ValueEnum};

/// The flags of `ebbtide completion`.
#[derive(Args, Debug)]
pub struct Completion {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// The shells that have completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, reason = "each is the name of a program")]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}
