//! Colours, where they are wanted.

use std::io::IsTerminal;

/// What a text's colour says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Nothing.
    Plain,
    /// It can be passed over.
    Faint,
    /// It is a heading.
    Head,
    /// It went well.
    Good,
    /// Something is kept alive.
    Beat,
    /// It is worth a look.
    Warn,
    /// It failed.
    Bad,
}

/// Paints, or leaves text as it is.
#[derive(Clone, Copy, Debug)]
pub struct Paint(bool);

impl Paint {
    /// Colours where standard output is a terminal and nobody asked for none (<https://no-color.org>).
    #[allow(clippy::disallowed_methods, reason = "the terminal's convention, and no setting of the service's")]
    pub fn for_stdout() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self(std::io::stdout().is_terminal() && !refused)
    }

    /// The text in the tone's colour.
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
