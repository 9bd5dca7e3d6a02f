//! What a user says of a generation: `--comment` and `--history`, and the command line.

use clap::Args;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use weald_format::label::Label;

/// What is kept of a generation besides its label.
#[derive(Args, Debug)]
pub struct RemarkArgs {
    /// What the generation is, at more length: up to 4096 bytes, also several lines; weald info
    /// shows it
    #[arg(long, value_name = "TEXT", value_parser = comment, hide_short_help = true)]
    comment: Option<Label>,
    /// Keep this command line in the image; weald info shows it. The image is then another one for
    /// each way to name source and target
    #[arg(long, hide_short_help = true)]
    history: bool,
}

impl RemarkArgs {
    /// Whether something is given.
    pub fn is_given(&self) -> bool {
        self.comment.is_some() || self.history
    }

    /// The label with what is given here, over what the generation `before` has.
    ///
    /// # Errors
    /// For a command line that is too long.
    pub fn label(
        &self,
        label: Option<&Label>,
        before: Option<&Label>,
    ) -> weald_format::Result<Option<Label>> {
        if label.is_none() && before.is_none() && !self.is_given() {
            return Ok(None);
        }
        let mut all = label.cloned().unwrap_or_default();
        for other in self.comment.iter().chain(before) {
            all = all.over(other);
        }
        if self.history {
            all = all.with_command_line(&command_line())?;
        }
        Ok(Some(all))
    }
}

fn comment(text: &str) -> Result<Label, String> {
    let label = Label::default().with_comment(text);
    label.map_err(|error| error.to_string())
}

/// The command line of this process, as a shell takes it; URLs without their secrets.
fn command_line() -> String {
    let words = std::env::args_os().skip(1).map(|word| {
        let path = Path::new(&word);
        if weald_remote::is_url(path) {
            quoted(OsStr::new(&weald_remote::shown(path).to_string()))
        } else {
            quoted(&word)
        }
    });
    let words: Vec<String> = ["weald".to_owned()].into_iter().chain(words).collect();
    words.join(" ")
}

/// A word as bash takes it, in UTF-8 without control characters.
fn quoted(word: &OsStr) -> String {
    let is_plain = |b: &u8| b.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(b);
    match word.to_str() {
        Some(text) if !text.is_empty() && text.bytes().all(|b| is_plain(&b)) => text.to_owned(),
        Some(text) if !text.chars().any(char::is_control) => {
            format!("'{}'", text.replace('\'', "'\\''"))
        }
        _ => {
            let byte = |&b: &u8| match b {
                b' '..=b'~' if b != b'\'' && b != b'\\' => char::from(b).to_string(),
                b => format!("\\x{b:02x}"),
            };
            let bytes: String = word.as_bytes().iter().map(byte).collect();
            format!("$'{bytes}'")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Would catch: a word that the shell takes for another one, and a line that is two.
    #[test]
    fn words_are_quoted_as_bash_takes_them() {
        for word in [
            &b"plain-1.x"[..],
            b"",
            b"sp ace",
            b"it's",
            b"$HOME `x`",
            b"two\nlines",
            b"\xff\x1b[2J",
            "\u{fc}\u{85}".as_bytes(),
            b"back\\slash\n'",
        ] {
            let text = quoted(OsStr::from_bytes(word));
            assert!(!text.chars().any(char::is_control), "{text:?}");
            let script = format!("printf %s {text}");
            let output = Command::new("bash").args(["-c", &script]).output();
            assert_eq!(output.unwrap().stdout, word, "{text}");
        }
    }
}
