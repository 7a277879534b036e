//! The signature of a request. It proves to a receiver that Ebbtide sent the request, and when.

use crate::telemetry::outbound::Secret;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt::Write;

/// The signature's header.
pub(super) const HEADER: &str = "ebbtide-signature";

/// Returns the header's value: the time in seconds, and the HMAC-SHA256 of the time, a dot and the body.
pub(super) fn sign(key: &Secret, seconds: i64, body: &[u8]) -> Option<String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key.reveal().as_bytes()).ok()?;
    mac.update(format!("{seconds}.").as_bytes());
    mac.update(body);
    let mut value = format!("t={seconds},v1=");
    for byte in mac.finalize().into_bytes() {
        // Writing to a String can't fail.
        let _ = write!(value, "{byte:02x}");
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_the_hmac_of_time_and_body() {
        let Ok(key) = "key".parse();
        // printf '1.The quick brown fox jumps over the lazy dog' | openssl dgst -sha256 -hmac key
        let signed = sign(&key, 1, b"The quick brown fox jumps over the lazy dog");
        assert_eq!(signed.as_deref(), Some(EXPECTED));
    }

    const EXPECTED: &str = "t=1,v1=3ff4d3cc115b639a16dc5b217aa5c89be41d1e4b54efc356d63d0cd2a65b30f1";
}
