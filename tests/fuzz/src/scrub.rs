//! Answers of receivers: no secret of the request is quoted, however it is laid out.

use ebbtide::telemetry::outbound::{Receiver, Scrubber, Secret, header};

/// Maximum length of a quote in characters, with its ellipsis.
const MAX_QUOTE: usize = 201;

/// Reads the receiver's URL, a header and a proxy from a line each, and quotes the rest.
pub fn check(text: &str) {
    let mut lines = text.splitn(4, '\n');
    let mut secret = || secret(lines.next().unwrap_or_default());
    let (url, pin, proxy) = (secret(), secret(), secret());
    let answer = lines.next().unwrap_or_default();
    let Ok(receiver) = Receiver::parse(&url) else { return };
    let headers: Vec<_> = header(&pin).into_iter().map(|(_, value)| value).collect();
    let scrubber = Scrubber::new(&receiver, headers.iter(), [].into_iter(), Some(&proxy));
    // The secrets are in the answer, too, with other characters around them.
    let values = headers.iter().filter_map(|value| value.to_str().ok());
    let path = receiver.uri().path();
    // The stars and the ellipsis of what is left out could complete one that has some itself.
    for secret in values.chain(path.split('/')).filter(|secret| secret.len() >= 6 && !secret.contains(['*', '…'])) {
        for answer in [format!("{answer}{secret}"), format!("{secret} {answer}"), answer.to_owned()] {
            let quote = scrubber.quote(&answer);
            assert!(!quote.contains(secret), "{secret:?} is in {quote:?} of {answer:?}");
            assert!(quote.chars().count() <= MAX_QUOTE && !quote.chars().any(char::is_control), "{quote:?}");
        }
    }
}

fn secret(text: &str) -> Secret {
    let Ok(secret) = text.parse();
    secret
}
