//! The input of a command: a file, standard input, or an answer in the terminal.

use std::fs::File;
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::Path;

/// Maximum size of the input: 1 MiB.
const MAX_BYTES: u64 = 1024 * 1024;

/// The reason why there is no input.
#[derive(Debug)]
pub enum InputError {
    /// No file was named, and standard input is a terminal.
    Terminal,
    /// The file can't be opened.
    Open(io::Error),
    /// The input can't be read.
    Read(io::Error),
    /// The input is longer than 1 MiB.
    TooLong,
    /// The byte at this position is not UTF-8.
    NotUtf8(usize),
}

/// Asks in the terminal, and returns whether the answer is yes.
#[must_use]
pub fn asked(question: &str) -> bool {
    let mut line = String::new();
    let shown = write!(io::stderr(), "{question} [y/N] ").and_then(|()| io::stderr().flush());
    shown.is_ok() && io::stdin().lock().read_line(&mut line).is_ok() && matches!(line.trim(), "y" | "Y" | "yes")
}

/// Returns the name of the input for messages. `-` and no name are standard input.
#[must_use]
pub fn named(file: Option<&Path>) -> String {
    path(file).map_or_else(|| "standard input".to_owned(), |path| path.display().to_string())
}

/// Reads the input.
///
/// # Errors
/// The reason why it can't be read.
pub fn text(file: Option<&Path>) -> Result<String, InputError> {
    match path(file) {
        Some(path) => self::file(path),
        // With `-` the user wants to type.
        None if file.is_none() && io::stdin().is_terminal() => Err(InputError::Terminal),
        None => all(io::stdin().lock()),
    }
}

/// Reads a file.
///
/// # Errors
/// The reason why it can't be read.
pub fn file(path: &Path) -> Result<String, InputError> {
    all(File::open(path).map_err(InputError::Open)?)
}

fn path(file: Option<&Path>) -> Option<&Path> {
    file.filter(|file| file.as_os_str() != "-")
}

fn all(from: impl Read) -> Result<String, InputError> {
    let mut bytes = Vec::new();
    from.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(InputError::Read)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(InputError::TooLong);
    }
    String::from_utf8(bytes).map_err(|error| InputError::NotUtf8(error.utf8_error().valid_up_to()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_mebibyte_is_read_and_nothing_else() {
        let most = usize::try_from(MAX_BYTES).unwrap();
        assert_eq!(all(&b"a"[..]).unwrap(), "a");
        assert!(all(&*vec![b'a'; most]).is_ok());
        assert!(matches!(all(&*vec![b'a'; most + 1]), Err(InputError::TooLong)));
        assert!(matches!(all(&b"ab\xff\x00"[..]), Err(InputError::NotUtf8(2))));
        assert!(matches!(text(Some(Path::new("no/such/file"))), Err(InputError::Open(_))));
        assert_eq!(named(Some(Path::new("-"))), named(None));
    }
}
