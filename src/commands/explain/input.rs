//! The message that is to be explained: from a file, or from standard input.

use crate::cli::input;
use crate::cli::input::InputError;
use serde::Deserialize;
use std::path::Path;

/// Reads a message's body.
///
/// # Errors
/// What is in the way, and what to do.
pub(super) fn read(file: Option<&Path>) -> Result<String, String> {
    let named = input::named(file);
    let text = input::text(file).map_err(|unread| why(&named, &unread))?;
    body(text, &named)
}

fn why(named: &str, unread: &InputError) -> String {
    match unread {
        InputError::Terminal => {
            "there is no message; name a file that holds one, pipe one in, or make one with --kind KIND --node NAME"
                .to_owned()
        }
        InputError::Open(error) => format!("{named} can't be opened: {error}"),
        InputError::Read(error) => format!("{named} can't be read: {error}"),
        InputError::TooLong => format!("{named} has more than the 1 MiB that SQS takes; give one message's body"),
        InputError::NotUtf8(at) => {
            format!("{named} is no text: byte {at} is not UTF-8; give a message's body as SQS shows it")
        }
    }
}

/// Takes a body out of what is read from `named`.
fn body(text: String, named: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err(format!("{named} is empty; give a message's body"));
    }
    if is_answer(&text) {
        return Err(format!(
            "{named} is what aws sqs receive-message answers, not a message; add --query 'Messages[0].Body' --output text to that"
        ));
    }
    Ok(text)
}

/// Whether this is the AWS CLI's whole answer, rather than the body in it.
fn is_answer(text: &str) -> bool {
    #[derive(Deserialize)]
    struct Received {
        #[serde(rename = "Messages")]
        _messages: Vec<serde::de::IgnoredAny>,
    }
    serde_json::from_str::<Received>(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_message_says_what_to_give_instead() {
        let of = |text: &str| body(text.to_owned(), "x");
        assert_eq!(of("{}"), Ok("{}".to_owned()));
        assert!(of(" \n").unwrap_err().starts_with("x is empty;"));
        assert!(of(r#"{"Messages": [{"Body": "{}"}]}"#).unwrap_err().contains("--query 'Messages[0].Body'"));
        assert!(why("x", &InputError::NotUtf8(2)).starts_with("x is no text: byte 2 is not UTF-8;"));
        assert!(why("x", &InputError::TooLong).starts_with("x has more than the 1 MiB"));
        assert!(why("x", &InputError::Terminal).starts_with("there is no message; name a file"));
        let missing = read(Some(Path::new("no/such/file"))).unwrap_err();
        assert!(missing.starts_with("no/such/file can't be opened:"), "{missing}");
    }
}
