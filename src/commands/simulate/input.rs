//! The message to simulate: from a file, or from standard input.

use crate::cli::input;
use crate::cli::input::InputError;
use serde::Deserialize;
use std::io;
use std::path::Path;

/// The reason why a file, or standard input, gives no message, and what to do.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoMessage {
    #[error("there is no message; name a file that holds one, pipe one in, or make one with --kind KIND --node NAME")]
    NoFile,
    #[error("{0} can't be opened: {1}; simulate takes a file with a message's body, or --kind KIND --node NAME")]
    Unopened(String, #[source] io::Error),
    #[error("{0} can't be read: {1}")]
    Unreadable(String, #[source] io::Error),
    #[error("{0} has more than the 1 MiB that SQS takes; give one message's body")]
    TooLong(String),
    #[error("{0} is not text: byte {1} is not UTF-8; give a message's body as SQS shows it")]
    NoText(String, usize),
    #[error("{0} is empty; give a message's body")]
    Empty(String),
    #[error(
        "{0} is the whole answer of aws sqs receive-message; add --query 'Messages[0].Body' --output text to that command"
    )]
    Answer(String),
}

impl NoMessage {
    fn new(file: String, error: InputError) -> Self {
        match error {
            InputError::Terminal => Self::NoFile,
            InputError::Open(error) => Self::Unopened(file, error),
            InputError::Read(error) => Self::Unreadable(file, error),
            InputError::TooLong => Self::TooLong(file),
            InputError::NotUtf8(at) => Self::NoText(file, at),
        }
    }
}

/// Reads a message's body from the file, or from standard input.
pub(super) fn read(file: Option<&Path>) -> Result<String, NoMessage> {
    let named = input::named(file);
    match input::text(file) {
        Ok(text) => body(text, named),
        Err(error) => Err(NoMessage::new(named, error)),
    }
}

/// Checks that the text of a file is a message's body.
fn body(text: String, file: String) -> Result<String, NoMessage> {
    if text.trim().is_empty() {
        return Err(NoMessage::Empty(file));
    }
    if is_answer(&text) {
        return Err(NoMessage::Answer(file));
    }
    Ok(text)
}

/// Whether this is the AWS CLI's whole answer, rather than the body of a message in it.
fn is_answer(text: &str) -> bool {
    #[derive(Deserialize)]
    struct ReceiveAnswer {
        #[serde(rename = "Messages")]
        _messages: Vec<serde::de::IgnoredAny>,
    }
    serde_json::from_str::<ReceiveAnswer>(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_message_says_what_to_give_instead() {
        let of = |text: &str| body(text.to_owned(), "x".to_owned()).map_err(|error| error.to_string());
        let why = |error| NoMessage::new("x".to_owned(), error).to_string();
        assert_eq!(of("{}"), Ok("{}".to_owned()));
        assert!(of(" \n").unwrap_err().starts_with("x is empty;"));
        assert!(of(r#"{"Messages": [{"Body": "{}"}]}"#).unwrap_err().contains("--query 'Messages[0].Body'"));
        assert!(why(InputError::NotUtf8(2)).starts_with("x is not text: byte 2 is not UTF-8;"));
        assert!(why(InputError::TooLong).starts_with("x has more than the 1 MiB"));
        assert!(why(InputError::Terminal).starts_with("there is no message; name a file"));
        let missing = read(Some(Path::new("no/such/file"))).unwrap_err().to_string();
        assert!(missing.starts_with("no/such/file can't be opened:") && missing.contains("--kind KIND"), "{missing}");
    }
}
