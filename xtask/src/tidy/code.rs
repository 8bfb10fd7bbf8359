//! Rust source as far as the rules need it: words and paths, without comments and strings.
//!
//! Not a parser: `syn` would triple the time that `cargo xtask` takes to build, and the rules ask only which names
//! occur.

/// A word, `::`, or one other character.
#[derive(Clone, Debug, PartialEq)]
struct Token {
    text: String,
    line: usize,
}

impl Token {
    fn is_word(&self) -> bool {
        self.text.starts_with(|c: char| c.is_alphabetic() || c == '_')
    }
}

/// `a::b::c` as written, or as a `use` of it says after its braces are spelt out.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Path {
    pub(super) segments: Vec<String>,
    pub(super) line: usize,
    /// Followed by `!`.
    pub(super) is_macro: bool,
}

impl Path {
    pub(super) fn starts_with(&self, start: &[&str]) -> bool {
        self.segments.len() >= start.len() && self.segments.iter().zip(start).all(|(a, b)| a == b)
    }

    pub(super) fn has(&self, part: &[&str]) -> bool {
        self.segments.windows(part.len()).any(|w| w == part)
    }
}

#[derive(Debug)]
pub(super) struct Code {
    tokens: Vec<Token>,
}

impl Code {
    pub(super) fn of(source: &str) -> Self {
        Self { tokens: tokens(&blank(source)) }
    }

    /// The lines on which this word stands.
    pub(super) fn lines_of<'a>(&'a self, word: &'a str) -> impl Iterator<Item = usize> + 'a {
        self.tokens.iter().filter(move |t| t.text == word).map(|t| t.line)
    }

    /// The lines on which these tokens follow each other.
    pub(super) fn lines_of_sequence<'a>(&'a self, words: &'a [&str]) -> impl Iterator<Item = usize> + 'a {
        let same = move |w: &&[Token]| w.iter().zip(words).all(|(t, word)| t.text == *word);
        self.tokens.windows(words.len()).filter(same).map(|w| w[0].line)
    }

    /// All of two segments or more, and every name in a `use`.
    pub(super) fn paths(&self) -> Vec<Path> {
        let mut found = Vec::new();
        let mut rest = &self.tokens[..];
        while let Some(token) = rest.first() {
            if token.text == "use" && rest.get(1).is_some_and(|t| t.text != "<") {
                rest = use_tree(&rest[1..], Vec::new(), &mut found);
            } else if token.is_word() {
                let (path, after) = plain_path(rest, token.line);
                rest = after;
                if path.segments.len() > 1 {
                    found.push(path);
                }
            } else {
                rest = &rest[1..];
            }
        }
        found
    }
}

fn is(tokens: &[Token], text: &str) -> bool {
    tokens.first().is_some_and(|t| t.text == text)
}

fn plain_path(mut rest: &[Token], line: usize) -> (Path, &[Token]) {
    let mut segments = Vec::new();
    while let Some(word) = rest.first().filter(|t| t.is_word()) {
        segments.push(word.text.clone());
        rest = &rest[1..];
        match rest {
            [colons, word, ..] if colons.text == "::" && word.is_word() => rest = &rest[1..],
            _ => break,
        }
    }
    (Path { segments, line, is_macro: is(rest, "!") }, rest)
}

/// One tree of a `use`, up to what follows it: `,`, `}` or `;`.
fn use_tree<'a>(mut rest: &'a [Token], prefix: Vec<String>, found: &mut Vec<Path>) -> &'a [Token] {
    let mut segments = prefix;
    let line = rest.first().map_or(0, |t| t.line);
    loop {
        match rest {
            [t, ..] if t.text == "::" => rest = &rest[1..],
            [t, ..] if t.text == "{" => {
                rest = &rest[1..];
                while !rest.is_empty() && !is(rest, "}") && !is(rest, ";") {
                    rest = use_tree(rest, segments.clone(), found);
                    rest = if is(rest, ",") { &rest[1..] } else { rest };
                }
                return if is(rest, "}") { &rest[1..] } else { rest };
            }
            [t, new, ..] if t.text == "as" && new.is_word() => rest = &rest[2..],
            [t, ..] if t.is_word() || t.text == "*" => {
                segments.push(t.text.clone());
                rest = &rest[1..];
            }
            [t, ..] if !matches!(t.text.as_str(), "," | "}" | ";") => rest = &rest[1..],
            _ => {
                let is_macro = false;
                if !segments.is_empty() {
                    found.push(Path { segments, line, is_macro });
                }
                return rest;
            }
        }
    }
}

fn tokens(code: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    for (line, text) in (1..).zip(code.lines()) {
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let length = if first.is_alphanumeric() || first == '_' {
                rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            let (text, after) = rest.split_at(length);
            if !first.is_whitespace() {
                tokens.push(Token { text: text.to_owned(), line });
            }
            rest = after;
        }
    }
    tokens
}

/// The source with spaces for comments, strings and characters; lines stay where they are.
fn blank(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut in_word = false;
    while let Some(first) = rest.chars().next() {
        let hidden = comment(rest).or_else(|| if in_word { None } else { prefixed_string(rest) });
        let hidden = hidden.or_else(|| string(rest)).or_else(|| character(rest));
        let (text, after) = rest.split_at(hidden.unwrap_or(first.len_utf8()));
        if hidden.is_some() {
            out.extend(text.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            in_word = false;
        } else {
            out.push(first);
            in_word = first.is_alphanumeric() || first == '_';
        }
        rest = after;
    }
    out
}

fn comment(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if !text.starts_with("/*") {
        return None;
    }
    let (mut depth, mut at) = (0_usize, 0);
    while at < text.len() {
        let here = &text.as_bytes()[at..];
        let (change, step) = match here {
            [b'/', b'*', ..] => (1, 2),
            [b'*', b'/', ..] => (-1, 2),
            _ => (0, 1),
        };
        depth = depth.saturating_add_signed(change);
        at += step;
        if depth == 0 {
            break;
        }
    }
    Some(at)
}

/// `r"…"`, `br#"…"#` and the like; a word that only ends in `r` is excluded by the caller.
fn prefixed_string(text: &str) -> Option<usize> {
    let raw = ["br", "cr", "r"].iter().find_map(|p| text.strip_prefix(p));
    if let Some(raw) = raw {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if let Some(inside) = raw[hashes..].strip_prefix('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let start = text.len() - inside.len();
            return Some(inside.find(&end).map_or(text.len(), |n| start + n + end.len()));
        }
    }
    let plain = text.strip_prefix(['b', 'c'])?;
    string(plain).or_else(|| character(plain)).map(|n| n + 1)
}

fn string(text: &str) -> Option<usize> {
    let inside = text.strip_prefix('"')?;
    Some(1 + past_quote(inside, '"').unwrap_or(inside.len()))
}

/// A character, not a lifetime.
fn character(text: &str) -> Option<usize> {
    let inside = text.strip_prefix('\'')?;
    let first = inside.chars().next()?;
    if first == '\\' || inside[first.len_utf8()..].starts_with('\'') {
        return Some(1 + past_quote(inside, '\'')?);
    }
    None
}

fn past_quote(inside: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in inside.char_indices() {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if c == quote {
            return Some(at + c.len_utf8());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<String> {
        Code::of(source).tokens.into_iter().map(|t| t.text).collect()
    }

    fn paths(source: &str) -> Vec<String> {
        Code::of(source).paths().iter().map(|p| p.segments.join("::")).collect()
    }

    #[test]
    fn comments_and_strings_are_no_code() {
        assert_eq!(words("a // b\nc /* d /* e */ f */ g"), ["a", "c", "g"]);
        assert_eq!(words(r#"a "b \" c" d 'e' '\'' f"#), ["a", "d", "f"]);
        assert_eq!(words("a r#\"b \"c\" \"# d br\"e\" f b\"g\" h b'i' j"), ["a", "d", "f", "h", "j"]);
        assert_eq!(words("x: &'a T, 'é', b"), ["x", ":", "&", "'", "a", "T", ",", ",", "b"]);
        assert_eq!(words("var\"s\" r"), ["var", "r"]);
    }

    #[test]
    fn a_broken_end_is_no_endless_loop() {
        for source in ["/* a", "\"a", "r#\"a", "'", "'\\", "use a::{b", "use", "use ;", "b'"] {
            assert!(Code::of(source).paths().iter().all(|p| !p.segments.is_empty()));
        }
    }

    #[test]
    fn lines_are_kept() {
        let code = Code::of("/* 1\n 2 */\n\"3\n4\"\nunsafe {}");
        assert_eq!(code.lines_of("unsafe").collect::<Vec<_>>(), [5]);
        assert_eq!(code.lines_of_sequence(&["{", "}"]).collect::<Vec<_>>(), [5]);
    }

    #[test]
    fn a_use_is_spelt_out() {
        assert_eq!(
            paths("use crate::{model::{Event, rank as r}, rules::*};\nuse std::fs;"),
            ["crate::model::Event", "crate::model::rank", "crate::rules::*", "std::fs"]
        );
        assert_eq!(paths("pub(crate) use ::std::{fs::{self, File},};"), ["std::fs::self", "std::fs::File"]);
    }

    #[test]
    fn paths_in_code_are_found() {
        assert_eq!(paths("fn f() -> a::B { let x = Vec::<u8>::new(); c::d::<T>(y) }"), ["a::B", "c::d"]);
        assert_eq!(paths("#[tokio::main] fn f() -> impl X + use<'a> {}"), ["tokio::main"]);
        let code = Code::of("crate::log!(1)").paths();
        assert!(code[0].is_macro && code[0].starts_with(&["crate", "log"]));
        assert!(code[0].has(&["log"]) && !code[0].has(&["crate", "x"]));
    }
}
