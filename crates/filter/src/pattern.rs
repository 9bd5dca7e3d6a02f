//! One pattern of a filter and its comparison with a path, compatible with rsync.
//!
//! # Source
//! rsync(1), "PATTERN MATCHING RULES"; details were found by comparison with rsync.

/// A parsed pattern.
#[derive(Debug, Clone)]
pub struct Pattern {
    tokens: Vec<Token>,
    /// The pattern ended with a slash: it matches directories only.
    is_dir_only: bool,
    /// The pattern ended with `***`: it matches a directory as if the path ended with a slash.
    is_whole_dir: bool,
    search: Search,
}

/// Part of a path that a pattern is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Search {
    /// The whole path.
    Whole,
    /// The whole path after a slash, so that `**/x` also finds `x` at the root.
    WholeBehindSlash,
    /// The last components, as many as this.
    LastComponents(usize),
    /// The part after any slash, or the whole path.
    AnyTail,
}

/// A piece of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    /// This byte.
    Byte(u8),
    /// One byte other than a slash.
    AnyByte,
    /// Any bytes other than slashes.
    Star,
    /// Any bytes.
    StarStar,
    /// One byte of a class, never a slash.
    Class(Box<[bool; 256]>),
    /// Matches nothing: a malformed class.
    Never,
}

impl Pattern {
    /// Heap memory of the pattern, bytes.
    pub fn heap_len(&self) -> usize {
        let classes = self.tokens.iter().filter(|t| matches!(t, Token::Class(_)));
        self.tokens.capacity() * size_of::<Token>() + classes.count() * size_of::<[bool; 256]>()
    }

    /// Parses a pattern. Every non-empty byte string is valid; a malformed class matches nothing.
    pub fn parse(pattern: &[u8]) -> Self {
        let is_dir_only = pattern.len() > 1 && pattern.ends_with(b"/");
        let body = if is_dir_only {
            &pattern[..pattern.len() - 1]
        } else {
            pattern
        };
        let is_wild = body.iter().any(|b| b"*[?".contains(b));
        let has_star_star = body.windows(2).any(|pair| pair == b"**");
        let slash_count = body.iter().filter(|&&b| b == b'/').count();
        let is_anchored = body.starts_with(b"/");
        let search = match (has_star_star, is_anchored) {
            (true, _) if body.starts_with(b"**") => Search::WholeBehindSlash,
            (true, false) => Search::AnyTail,
            (_, true) => Search::Whole,
            (false, false) => Search::LastComponents(slash_count + 1),
        };
        let body = if is_anchored { &body[1..] } else { body };
        let tokens = if is_wild {
            tokens_of(body)
        } else {
            body.iter().map(|&b| Token::Byte(b)).collect()
        };
        Self {
            tokens,
            is_dir_only,
            is_whole_dir: has_star_star && body.ends_with(b"***"),
            search,
        }
    }

    /// Parses a pattern from a file of directory `dir`: a leading slash anchors it there. `dir` is
    /// relative to the root, and its bytes are taken literally.
    pub fn parse_below(dir: &[u8], pattern: &[u8]) -> Self {
        let mut parsed = Self::parse(pattern);
        if pattern.starts_with(b"/") && !dir.is_empty() {
            let front = dir.iter().chain(b"/").map(|&byte| Token::Byte(byte));
            parsed.tokens.splice(0..0, front);
        }
        parsed
    }

    /// Whether the pattern matches `path`, which is relative to the root and without a leading
    /// slash.
    pub fn matches(&self, path: &[u8], is_dir: bool) -> bool {
        if path.is_empty() || (self.is_dir_only && !is_dir) {
            return false;
        }
        let mut text = Vec::with_capacity(path.len() + 2);
        if self.search == Search::WholeBehindSlash {
            text.push(b'/');
        }
        text.extend_from_slice(path);
        if self.is_whole_dir && is_dir {
            text.push(b'/');
        }
        match self.search {
            Search::Whole | Search::WholeBehindSlash => self.is_match(&text),
            Search::LastComponents(count) => {
                last_components(&text, count).is_some_and(|t| self.is_match(t))
            }
            Search::AnyTail => self.matches_a_tail(&text),
        }
    }

    fn is_match(&self, text: &[u8]) -> bool {
        compare(&self.tokens, text) == Outcome::Match
    }

    fn matches_a_tail(&self, text: &[u8]) -> bool {
        let tails = text
            .iter()
            .enumerate()
            .filter(|&(_, &b)| b == b'/')
            .map(|(i, _)| &text[i + 1..]);
        std::iter::once(text)
            .chain(tails)
            .any(|tail| self.is_match(tail))
    }
}

/// The last `count` components of `path`, if it has as many.
fn last_components(path: &[u8], count: usize) -> Option<&[u8]> {
    let mut slashes = path
        .iter()
        .enumerate()
        .rev()
        .filter(|&(_, &b)| b == b'/')
        .map(|(i, _)| i);
    match slashes.by_ref().nth(count - 1) {
        Some(slash) => Some(&path[slash + 1..]),
        None => (path.iter().filter(|&&b| b == b'/').count() + 1 == count).then_some(path),
    }
}

fn tokens_of(pattern: &[u8]) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = pattern;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        tokens.push(match byte {
            b'?' => Token::AnyByte,
            b'*' if rest.starts_with(b"*") => {
                rest = &rest[rest.iter().take_while(|&&b| b == b'*').count()..];
                Token::StarStar
            }
            b'*' => Token::Star,
            b'[' => parse_class(&mut rest),
            b'\\' => match rest.split_first() {
                Some((&escaped, after)) => {
                    rest = after;
                    Token::Byte(escaped)
                }
                None => Token::Never,
            },
            other => Token::Byte(other),
        });
    }
    tokens
}

/// Parses the part after `[` up to the closing `]`.
fn parse_class(rest: &mut &[u8]) -> Token {
    let mut class = Box::new([false; 256]);
    let is_negated = matches!(rest.first(), Some(b'!' | b'^'));
    if is_negated {
        *rest = &rest[1..];
    }
    let mut range_start = None;
    let mut is_first = true;
    loop {
        let Some((&byte, after)) = rest.split_first() else {
            return Token::Never;
        };
        *rest = after;
        if byte == b']' && !is_first {
            break;
        }
        is_first = false;
        if byte == b'-' && range_start.is_some() && !matches!(rest.first(), None | Some(b']')) {
            let Some(end) = take_byte(rest) else {
                return Token::Never;
            };
            let start = range_start.take().unwrap_or(end);
            (start..=end).for_each(|b| class[usize::from(b)] = true);
        } else if byte == b'[' && rest.first() == Some(&b':') {
            match parse_named_class(rest, &mut class) {
                Named::Class => range_start = None,
                Named::Plain => range_start = Some(b'['),
                Named::Malformed => return Token::Never,
            }
        } else {
            let literal = if byte == b'\\' {
                take_plain(rest)
            } else {
                Some(byte)
            };
            let Some(literal) = literal else {
                return Token::Never;
            };
            class[usize::from(literal)] = true;
            range_start = Some(literal);
        }
    }
    class.iter_mut().for_each(|member| *member ^= is_negated);
    class[usize::from(b'/')] = false;
    Token::Class(class)
}

fn take_plain(rest: &mut &[u8]) -> Option<u8> {
    let (&byte, after) = rest.split_first()?;
    *rest = after;
    Some(byte)
}

/// The next byte of a class; a backslash before it is removed.
fn take_byte(rest: &mut &[u8]) -> Option<u8> {
    match take_plain(rest)? {
        b'\\' => take_plain(rest),
        byte => Some(byte),
    }
}

/// Result of parsing `[:` in a class.
enum Named {
    /// A named class such as `[:digit:]`, which was consumed.
    Class,
    /// A plain `[`; nothing was consumed.
    Plain,
    /// No end, or an unknown name.
    Malformed,
}

fn parse_named_class(rest: &mut &[u8], class: &mut [bool; 256]) -> Named {
    let Some(end) = rest[1..].iter().position(|&b| b == b']').map(|i| i + 1) else {
        return Named::Malformed;
    };
    let Some(name) = rest[1..end].strip_suffix(b":") else {
        class[usize::from(b'[')] = true;
        return Named::Plain;
    };
    let Some(is_member) = named_class(name) else {
        return Named::Malformed;
    };
    (0..=255).for_each(|b: u8| class[usize::from(b)] |= is_member(&b));
    *rest = &rest[end + 1..];
    Named::Class
}

fn named_class(name: &[u8]) -> Option<fn(&u8) -> bool> {
    Some(match name {
        b"alnum" => u8::is_ascii_alphanumeric,
        b"alpha" => u8::is_ascii_alphabetic,
        b"blank" => |b| matches!(b, b' ' | b'\t'),
        b"cntrl" => u8::is_ascii_control,
        b"digit" => u8::is_ascii_digit,
        b"graph" => u8::is_ascii_graphic,
        b"lower" => u8::is_ascii_lowercase,
        b"print" => |b| matches!(b, b' '..=b'~'),
        b"punct" => u8::is_ascii_punctuation,
        b"space" => |b| matches!(b, b' ' | b'\t'..=b'\r'),
        b"upper" => u8::is_ascii_uppercase,
        b"xdigit" => u8::is_ascii_hexdigit,
        _ => return None,
    })
}

/// Result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Match,
    No,
    /// The text was too short: no later start can match.
    TextEnded,
    /// A `*` reached a slash: only an earlier `**` can still match.
    StarEnded,
}

fn compare(tokens: &[Token], text: &[u8]) -> Outcome {
    let mut text = text;
    for (index, token) in tokens.iter().enumerate() {
        if let Token::Star | Token::StarStar = token {
            return compare_star(*token == Token::StarStar, &tokens[index + 1..], text);
        }
        let Some((&byte, after)) = text.split_first() else {
            return Outcome::TextEnded;
        };
        let is_match = match token {
            Token::Byte(b) => *b == byte,
            Token::AnyByte => byte != b'/',
            Token::Class(class) => class[usize::from(byte)],
            Token::Never => return Outcome::TextEnded,
            Token::Star | Token::StarStar => false,
        };
        if !is_match {
            return Outcome::No;
        }
        text = after;
    }
    if text.is_empty() {
        Outcome::Match
    } else {
        Outcome::No
    }
}

fn compare_star(crosses_slashes: bool, tokens: &[Token], text: &[u8]) -> Outcome {
    if tokens.is_empty() {
        let is_match = crosses_slashes || !text.contains(&b'/');
        return if is_match {
            Outcome::Match
        } else {
            Outcome::No
        };
    }
    for (index, &byte) in text.iter().enumerate() {
        match compare(tokens, &text[index..]) {
            Outcome::No if !crosses_slashes && byte == b'/' => return Outcome::StarEnded,
            Outcome::No => {}
            Outcome::StarEnded if crosses_slashes => {}
            decided => return decided,
        }
    }
    Outcome::TextEnded
}
