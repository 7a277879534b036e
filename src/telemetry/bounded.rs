//! Text of bounded length.

use std::fmt::{Display, Write};

/// Returns the text in at most `max` bytes; a longer text is cut and ends in "…". The part behind the cut is not formatted.
pub fn bounded(text: &dyn Display, max: usize) -> String {
    const MORE: &str = "…";
    let mut room = BoundedText { text: String::new(), max };
    if write!(room, "{text}").is_err() {
        room.text.truncate(room.text.floor_char_boundary(max.saturating_sub(MORE.len())));
        room.text.push_str(MORE);
    }
    room.text
}

/// A text that refuses to grow beyond its maximum.
struct BoundedText {
    text: String,
    max: usize,
}

impl Write for BoundedText {
    fn write_str(&mut self, part: &str) -> std::fmt::Result {
        let left = self.max.saturating_sub(self.text.len());
        self.text.push_str(&part[..part.floor_char_boundary(left)]);
        if part.len() > left { Err(std::fmt::Error) } else { Ok(()) }
    }
}
