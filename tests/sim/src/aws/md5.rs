//! MD5 (RFC 1321). SQS returns the digest of every body, and some clients check it. Not for any other use.

use std::fmt::Write;
use std::sync::LazyLock;

/// Left rotations in each of the four rounds, used in cycles of four.
const TURNS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];

/// The RFC defines its additive constants as the first 32 bits of the fraction of |sin(i)|, in radians.
static SINES: LazyLock<[u32; 64]> =
    LazyLock::new(|| std::array::from_fn(|i| ((i as f64 + 1.0).sin().abs() * 4_294_967_296.0) as u32));

/// Returns the digest of `text` in lower-case hex.
pub(super) fn hex(text: &str) -> String {
    let mut data = text.as_bytes().to_vec();
    let bits = (data.len() as u64).wrapping_mul(8);
    data.push(0x80);
    while data.len() % 64 != 56 {
        data.push(0);
    }
    data.extend(bits.to_le_bytes());

    let mut state = [0x6745_2301_u32, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
    for block in data.chunks_exact(64) {
        mix(&mut state, block);
    }
    state.iter().flat_map(|word| word.to_le_bytes()).fold(String::with_capacity(32), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("a String must take what is written");
        hex
    })
}

fn mix(state: &mut [u32; 4], block: &[u8]) {
    let word = |n: usize| {
        let bytes = block[n * 4..][..4].try_into().expect("a block must have 16 words of four bytes");
        u32::from_le_bytes(bytes)
    };
    let [mut a, mut b, mut c, mut d] = *state;
    for step in 0..64 {
        let round = step / 16;
        let (blend, source) = match round {
            0 => ((b & c) | (!b & d), step),
            1 => ((d & b) | (!d & c), (5 * step + 1) % 16),
            2 => (b ^ c ^ d, (3 * step + 5) % 16),
            _ => (c ^ (b | !d), (7 * step) % 16),
        };
        let sum = a.wrapping_add(blend).wrapping_add(SINES[step]).wrapping_add(word(source));
        (a, d, c, b) = (d, c, b, b.wrapping_add(sum.rotate_left(TURNS[round][step % 4])));
    }
    for (total, part) in state.iter_mut().zip([a, b, c, d]) {
        *total = total.wrapping_add(part);
    }
}

#[cfg(test)]
mod tests {
    use super::hex;

    #[test]
    fn agrees_with_the_rfc() {
        assert_eq!(hex(""), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(hex("abc"), "900150983cd24fb0d6963f7d28e17f72");
        let digits = "1234567890".repeat(8);
        assert_eq!(hex(&digits), "57edf4a22be3c955ac49da2e2107b67a");
        // 55 and 56 bytes: the length just fits into the block, and just does not fit.
        assert_eq!(hex(&"a".repeat(55)), "ef1772b6dff9a122358552954ad0df65");
        assert_eq!(hex(&"a".repeat(56)), "3b0c8ac703f828b04c6c197006d17218");
    }
}
