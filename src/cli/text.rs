//! Text for a terminal.

use std::fmt::Write;

/// Number of columns of a line.
pub const WIDTH: usize = 100;

/// Returns the text without characters that steer a terminal, or that change the direction of text.
#[must_use]
pub fn clean(text: &str) -> String {
    let is_steering = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    };
    text.chars().map(|c| if is_steering(c) { '?' } else { c }).collect()
}

/// Breaks a text at spaces into lines of at most `width` characters. A longer word has a line of its own.
#[must_use]
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

/// Appends a text that begins in this column. Further lines begin in the same column.
pub fn push_hanging(to: &mut String, column: usize, text: &str) {
    for (n, line) in wrapped(text, WIDTH.saturating_sub(column)).into_iter().enumerate() {
        if n > 0 {
            to.push_str(&" ".repeat(column));
        }
        to.push_str(line.trim_end());
        to.push('\n');
    }
}

/// Appends rows, each column as wide as its widest cell. The last column is wrapped.
pub fn push_table(to: &mut String, indent: usize, rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let Some((last, before)) = row.split_last() else { continue };
        let mut column = indent;
        to.push_str(&" ".repeat(indent));
        for (cell, width) in before.iter().zip(&widths) {
            let _ = write!(to, "{cell:<width$}  ");
            column += width + 2;
        }
        push_hanging(to, column, last);
    }
}

/// Returns the known word that is most similar, if one is similar enough to be meant.
#[must_use]
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let likeness = |known: &str| strsim::jaro_winkler(&word.to_lowercase(), &known.to_lowercase());
    let near = known.iter().map(|known| (likeness(known), *known)).max_by(|a, b| a.0.total_cmp(&b.0));
    near.filter(|(likeness, _)| *likeness > 0.9).map(|(_, known)| known)
}

/// Returns a question with the most similar known word, as the end of an error; or nothing.
#[must_use]
pub fn did_you_mean(word: &str, known: &[&str]) -> String {
    nearest(word, known).map(|near| format!("; did you mean {near}?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_near_if_few_letters_differ() {
        let known = ["spot", "rebalance", "state-change"];
        assert_eq!(did_you_mean("spto", &known), "; did you mean spot?");
        assert_eq!(nearest("Rebalence", &known), Some("rebalance"));
        assert_eq!(nearest("terminate", &known), None);
        assert_eq!(did_you_mean("", &[]), "");
    }

    #[test]
    fn lines_break_at_spaces() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("incomprehensible", 7), ["incomprehensible"]);
        assert_eq!(wrapped("", 7), [""]);
    }

    #[test]
    fn a_table_is_aligned_and_its_last_column_hangs() {
        let long = ["word"; 30].join(" ");
        let mut text = String::new();
        push_table(&mut text, 2, &[vec!["a".into(), "short".into()], vec!["longer".into(), long]]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "  a       short");
        assert!(lines[1].starts_with("  longer  word word") && lines[1].len() <= WIDTH, "{text}");
        assert!(lines[2].starts_with("          word"), "{text}");
    }
}
