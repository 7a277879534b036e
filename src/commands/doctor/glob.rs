//! Patterns with `*` and `?`, as in IAM policies and EventBridge patterns. Pure.

/// Whether `pattern` matches all of `text`.
#[must_use]
pub fn covers(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut matched) = (0, 0);
    // The place of the last star, and the end of the text that it matches.
    let mut star = None;
    while matched < text.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, matched));
                at += 1;
            }
            Some(letter) if *letter == '?' || *letter == text[matched] => {
                at += 1;
                matched += 1;
            }
            _ => {
                let Some((place, reach)) = star else { return false };
                star = Some((place, reach + 1));
                at = place + 1;
                matched = reach + 1;
            }
        }
    }
    pattern[at..].iter().all(|letter| *letter == '*')
}

#[cfg(test)]
mod tests {
    use super::covers;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, text) in
            [("*", ""), ("a*c", "abc"), ("a*c", "ac"), ("*a*b*", "xaybz"), ("a?c", "abc"), ("", ""), ("a**", "a")]
        {
            assert!(covers(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("", "a"), ("a*c", "abd"), ("?", ""), ("a", "ab"), ("*a", "ab"), ("a*b*c", "acb")] {
            assert!(!covers(pattern, text), "{pattern} {text}");
        }
    }
}
