//! Colours for terminals.

use std::io::IsTerminal;

/// Meaning of a text's colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// No meaning.
    Plain,
    /// Unimportant.
    Faint,
    /// A heading.
    Head,
    /// Success.
    Good,
    /// Something is kept alive.
    Beat,
    /// A warning.
    Warn,
    /// Failure.
    Bad,
}

/// Colours text, or leaves it as it is.
#[derive(Clone, Copy, Debug)]
pub struct Paint(bool);

impl Paint {
    /// Uses colours if standard output is a terminal and `NO_COLOR` is not set (<https://no-color.org>).
    #[allow(clippy::disallowed_methods, reason = "the terminal's convention, and no setting of the service's")]
    pub fn for_stdout() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self(std::io::stdout().is_terminal() && !refused)
    }

    /// Returns the text in the tone's colour.
    pub fn tone(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Plain => return text.to_owned(),
            Tone::Faint => "2",
            Tone::Head => "1",
            Tone::Good => "32",
            Tone::Beat => "35",
            Tone::Warn => "33",
            Tone::Bad => "1;31",
        };
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
