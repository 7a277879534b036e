//! What a command is to read: a file, or standard input.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

/// Nothing that is read here is longer: 1 MiB.
const LONGEST: u64 = 1024 * 1024;

/// Why there is nothing to read.
#[derive(Debug)]
pub enum Unread {
    /// No file was named, and nothing is piped in: somebody sits there and waits.
    Nothing,
    /// The file can't be opened.
    Unopened(io::Error),
    /// It can't be read.
    Broken(io::Error),
    /// It is longer than 1 MiB.
    TooLong,
    /// It is no text; so far it is.
    NoText(usize),
}

/// What is to be read, for people. `-` is standard input, as is nothing.
#[must_use]
pub fn named(file: Option<&Path>) -> String {
    path(file).map_or_else(|| "standard input".to_owned(), |path| path.display().to_string())
}

/// Reads it.
///
/// # Errors
/// Why it can't be.
pub fn text(file: Option<&Path>) -> Result<String, Unread> {
    match path(file) {
        Some(path) => all(File::open(path).map_err(Unread::Unopened)?),
        // Who names it, by a -, means to type.
        None if file.is_none() && io::stdin().is_terminal() => Err(Unread::Nothing),
        None => all(io::stdin().lock()),
    }
}

fn path(file: Option<&Path>) -> Option<&Path> {
    file.filter(|file| file.as_os_str() != "-")
}

fn all(from: impl Read) -> Result<String, Unread> {
    let mut bytes = Vec::new();
    from.take(LONGEST + 1).read_to_end(&mut bytes).map_err(Unread::Broken)?;
    if bytes.len() as u64 > LONGEST {
        return Err(Unread::TooLong);
    }
    String::from_utf8(bytes).map_err(|error| Unread::NoText(error.utf8_error().valid_up_to()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_mebibyte_is_read_and_nothing_else() {
        let most = usize::try_from(LONGEST).unwrap();
        assert_eq!(all(&b"a"[..]).unwrap(), "a");
        assert!(all(&*vec![b'a'; most]).is_ok());
        assert!(matches!(all(&*vec![b'a'; most + 1]), Err(Unread::TooLong)));
        assert!(matches!(all(&b"ab\xff\x00"[..]), Err(Unread::NoText(2))));
        assert!(matches!(text(Some(Path::new("no/such/file"))), Err(Unread::Unopened(_))));
        assert_eq!(named(Some(Path::new("-"))), named(None));
    }
}
