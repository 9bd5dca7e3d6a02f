//! The label of a generation: a short text that says what it is.

use crate::limits::LABEL_LEN_MAX;
use crate::{Error, Result};
use std::fmt::{Display, Formatter};

/// Rule that a wrong label breaks.
const RULE: &str = "F-36.1";

/// A text of 1 to 200 bytes of UTF-8 without control characters, or none: the default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Label(String);

impl Label {
    /// The label `text`.
    ///
    /// # Errors
    /// `Invalid` for an empty text, one that is too long, and one with control characters.
    pub fn new(text: &str) -> Result<Self> {
        match Self::fault(text) {
            Some(fault) => Err(Error::invalid(format!("label: {fault}"))),
            None => Ok(Self(text.to_owned())),
        }
    }

    /// Checks the bytes of a label that an image has.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let text = std::str::from_utf8(bytes);
        let text = text.map_err(|_| bad("expected UTF-8".to_owned()))?;
        match Self::fault(text) {
            Some(fault) => Err(bad(fault)),
            None => Ok(Self(text.to_owned())),
        }
    }

    fn fault(text: &str) -> Option<String> {
        if text.is_empty() || text.len() > LABEL_LEN_MAX {
            let len = text.len();
            return Some(format!("expected 1 to {LABEL_LEN_MAX} bytes, found {len}"));
        }
        let is_control = text.chars().any(char::is_control);
        is_control.then(|| "expected no control characters".to_owned())
    }

    /// Its text; empty if there is none.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Display for Label {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

fn bad(what: String) -> Error {
    Error::corrupt("directory", 0, RULE, format!("label: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writer_and_reader_have_the_same_limits() {
        let (longest, longer) = ("x".repeat(LABEL_LEN_MAX), "x".repeat(LABEL_LEN_MAX + 1));
        for good in ["x", "before the upgrade", "ünï — code", &longest] {
            assert_eq!(Label::new(good).expect(good).as_str(), good);
            assert_eq!(Label::parse(good.as_bytes()).expect(good).as_str(), good);
        }
        for bad in ["", "a\nb", "tab\t", "\u{7f}", "\u{85}", &longer] {
            let written = Label::new(bad).expect_err(bad);
            assert!(written.to_string().contains("label: expected"), "{written}");
            let read = Label::parse(bad.as_bytes()).expect_err(bad);
            assert!(read.to_string().contains("F-36.1"), "{read}");
        }
        Label::parse(b"\xff").expect_err("no UTF-8");
    }
}
