//! The message that is to be explained: from a file, or from standard input.

use serde::Deserialize;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

/// No message on SQS is larger: 1 MiB.
const LARGEST: u64 = 1024 * 1024;

/// Reads a message's body.
///
/// # Errors
/// What is in the way, and what to do.
pub(super) fn read(file: Option<&Path>) -> Result<String, String> {
    match file.filter(|file| file.as_os_str() != "-") {
        Some(path) => {
            let named = path.display();
            let open = File::open(path).map_err(|error| format!("{named} can't be opened: {error}"))?;
            body(open, &named.to_string())
        }
        None if file.is_none() && io::stdin().is_terminal() => Err(
            "there is no message; name a file that holds one, pipe one in, or make one with --kind KIND --node NAME"
                .to_owned(),
        ),
        None => body(io::stdin().lock(), "standard input"),
    }
}

/// Takes a body out of what is read from `from`.
fn body(from: impl Read, named: &str) -> Result<String, String> {
    let mut bytes = Vec::new();
    from.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|error| format!("{named} can't be read: {error}"))?;
    if bytes.len() as u64 > LARGEST {
        return Err(format!("{named} has more than the 1 MiB that SQS takes; give one message's body"));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        format!("{named} is no text: byte {at} is not UTF-8; give a message's body as SQS shows it")
    })?;
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

    fn of(bytes: &[u8]) -> Result<String, String> {
        body(bytes, "x")
    }

    #[test]
    fn what_is_no_message_says_what_to_give_instead() {
        assert_eq!(of(b"{}"), Ok("{}".to_owned()));
        assert!(of(b" \n").unwrap_err().starts_with("x is empty;"));
        assert!(of(b"ab\xff\x00").unwrap_err().starts_with("x is no text: byte 2 is not UTF-8;"));
        let most = usize::try_from(LARGEST).unwrap();
        assert!(of(&vec![b'a'; most]).is_ok());
        assert!(of(&vec![b'a'; most + 1]).unwrap_err().starts_with("x has more than the 1 MiB"));
        assert!(of(br#"{"Messages": [{"Body": "{}"}]}"#).unwrap_err().contains("--query 'Messages[0].Body'"));
        let missing = read(Some(Path::new("no/such/file"))).unwrap_err();
        assert!(missing.starts_with("no/such/file can't be opened:"), "{missing}");
    }
}
