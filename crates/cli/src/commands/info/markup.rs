//! Text in HTML: names that cannot become markup.

/// Text for a place between tags or in quotes: control characters and bidirectional controls become
/// `\xNN`, what HTML gives a meaning becomes a character reference.
pub fn escaped(text: &str) -> String {
    let text = weald_vfs::safe_line(text);
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// The beginning of `words`, `count` characters at most.
pub fn cut(words: &str, count: usize) -> String {
    if words.chars().count() <= count {
        return words.to_owned();
    }
    let kept = words.chars().take(count.saturating_sub(1));
    kept.chain(std::iter::once('…')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_counts_characters() {
        assert_eq!(cut("grüße", 5), "grüße");
        assert_eq!(cut("grüße", 4), "grü…");
    }
}
