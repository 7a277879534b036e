//! Splits a source into tokens. Comments are dropped and literals become empty tokens, so that no path is found in them.

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

/// Returns the tokens of a source, with the brackets of groups.
pub fn tokens(text: &str) -> Result<Vec<String>, impl std::error::Error> {
    let stream: Result<TokenStream, _> = text.parse();
    stream.map(|stream| {
        let mut tokens = Vec::new();
        flatten(stream, &mut tokens);
        tokens
    })
}

fn flatten(stream: TokenStream, tokens: &mut Vec<String>) {
    let mut joint = None;
    for tree in stream {
        let before = joint.take();
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::None => ("", ""),
                };
                tokens.push(open.to_owned());
                flatten(group.stream(), tokens);
                tokens.push(close.to_owned());
            }
            TokenTree::Ident(name) => tokens.push(name.to_string()),
            TokenTree::Literal(_) => tokens.push(String::new()),
            TokenTree::Punct(sign) => match (before, sign.as_char(), tokens.last_mut()) {
                // `::` separates segments, and an arrow closes no angle bracket.
                (Some(':'), ':', Some(last)) | (Some('-' | '='), '>', Some(last)) => last.push(sign.as_char()),
                _ => {
                    tokens.push(sign.to_string());
                    joint = (sign.spacing() == Spacing::Joint).then(|| sign.as_char());
                }
            },
        }
    }
}

/// Returns the tokens without the items under `#[cfg(test)]`.
pub fn without_tests<'a>(mut tokens: &[&'a str]) -> Vec<&'a str> {
    let mut kept = Vec::new();
    while let [first, rest @ ..] = tokens {
        if let ["#", "[", "cfg", "(", "test", ")", "]", item @ ..] = tokens {
            tokens = &item[item_length(item)..];
        } else {
            kept.push(*first);
            tokens = rest;
        }
    }
    kept
}

/// Returns the number of tokens of the item, field or statement at the start of `tokens`.
fn item_length(tokens: &[&str]) -> usize {
    let (mut depth, mut angles) = (0, 0);
    for (at, token) in tokens.iter().enumerate() {
        depth += nesting(token);
        if depth == 0 {
            angles += angle(token);
        }
        match *token {
            // The bracket around the last field of a type.
            _ if depth < 0 => return at,
            "}" if depth == 0 => return at + 1 + usize::from(tokens.get(at + 1) == Some(&";")),
            ";" if depth == 0 => return at + 1,
            "," if depth == 0 && angles == 0 => return at + 1,
            _ => {}
        }
    }
    tokens.len()
}

/// Returns the number of tokens of the group whose bracket opens at the start of `tokens`, with both brackets.
pub fn group_length(tokens: &[&str]) -> usize {
    let mut depth = 0;
    let end = tokens.iter().position(|token| {
        depth += nesting(token);
        depth == 0
    });
    end.expect("a group must end") + 1
}

/// Returns the change of depth in brackets.
pub fn nesting(token: &str) -> isize {
    match token {
        "(" | "[" | "{" => 1,
        ")" | "]" | "}" => -1,
        _ => 0,
    }
}

/// Returns the change of depth in angle brackets.
pub fn angle(token: &str) -> isize {
    match token {
        "<" => 1,
        ">" => -1,
        _ => 0,
    }
}

pub fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}
