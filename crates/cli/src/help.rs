//! Sections after the options in the help of a command and in its man page: lists of items, notes,
//! examples, exit status. Each text is written once, as data. [`Help::long`] formats it for the
//! terminal and [`Help::write_roff`] for man(1).
//!
//! A paragraph is a single line, because it is wrapped at the terminal's width.

use clap_mangen::roff::{Roff, bold, roman};

/// A word and its meaning.
pub type Item = (&'static str, &'static str);

/// The sections of one command.
pub struct Help {
    /// Headings and their items, such as the words of `mount -o`.
    pub lists: &'static [(&'static str, &'static [Item])],
    /// Paragraphs.
    pub notes: &'static [&'static str],
    /// Purpose and command line of each example; a test runs them.
    pub examples: &'static [Item],
    /// Exit status and its meaning.
    pub exit_status: &'static [Item],
}

/// Exit status of a command that either succeeds or fails.
pub const DONE_OR_FAILED: &[Item] = &[
    ("0", "The command did its work."),
    ("2", "The command failed; standard error says why."),
];

/// Exit status of a command that tells what is damaged or missing.
pub const DONE_OR_DAMAGED: &[Item] = &[
    ("0", "The command did its work."),
    ("1", "Something is damaged or missing; the rest is done."),
    ("2", "The command failed; standard error says why."),
];

/// Exit status of commands that perform or show a scrub.
pub const SCRUBBED: &[Item] = &[
    (
        "0",
        "The command did its work, and the scrub found nothing.",
    ),
    (
        "1",
        "Something is damaged, or could not be read for the time being; standard output names it.",
    ),
    ("2", "The command failed; standard error says why."),
];

/// Exit status of a command that continues after a problem with one path.
pub const DONE_OR_PARTLY: &[Item] = &[
    ("0", "The command did its work."),
    (
        "1",
        "The command went on after problems with single paths; standard error names each.",
    ),
    ("2", "The command failed; standard error says why."),
];

/// Number of examples in the short help.
const SHORT_EXAMPLE_COUNT: usize = 3;

impl Help {
    /// Text for `--help`.
    pub fn long(&self) -> String {
        let mut text = String::new();
        for (heading, items) in self.lists {
            begin(&mut text, heading);
            for (item, meaning) in *items {
                text.push_str(&format!("  {item}\n          {meaning}\n"));
            }
        }
        if !self.notes.is_empty() {
            begin(&mut text, "NOTES");
            let notes: Vec<String> = self.notes.iter().map(|note| format!("  {note}")).collect();
            text.push_str(&notes.join("\n\n"));
            text.push('\n');
        }
        put_examples(&mut text, self.examples);
        begin(&mut text, "EXIT STATUS");
        for (status, meaning) in self.exit_status {
            text.push_str(&format!("  {status}  {meaning}\n"));
        }
        text.trim_end().to_owned()
    }

    /// Text for `-h`.
    pub fn short(&self) -> String {
        let mut text = String::new();
        let count = self.examples.len().min(SHORT_EXAMPLE_COUNT);
        put_examples(&mut text, &self.examples[..count]);
        text.push_str("\nOption --help shows all options, notes, examples and the exit status.");
        text
    }

    /// Text for a man page.
    pub fn write_roff(&self, roff: &mut Roff) {
        for (heading, items) in self.lists {
            roff.control("SH", [*heading]);
            put_items(roff, items);
        }
        if !self.notes.is_empty() {
            roff.control("SH", ["NOTES"]);
            for note in self.notes {
                roff.control("PP", []);
                roff.text([roman(*note)]);
            }
        }
        write_roff_examples(roff, self.examples);
        roff.control("SH", ["EXIT STATUS"]);
        put_items(roff, self.exit_status);
    }
}

fn begin(text: &mut String, heading: &str) {
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(heading);
    text.push('\n');
}

fn put_examples(text: &mut String, examples: &[Item]) {
    begin(text, "EXAMPLES");
    for (what, line) in examples {
        text.push_str(&format!("  {what}:\n      {line}\n"));
    }
}

/// Writes the items of a list in a man page.
pub fn put_items(roff: &mut Roff, items: &[Item]) {
    for (item, meaning) in items {
        roff.control("TP", []);
        roff.text([bold(*item)]);
        roff.text([roman(*meaning)]);
    }
}

/// Writes the examples of a man page.
pub fn write_roff_examples(roff: &mut Roff, examples: &[Item]) {
    roff.control("SH", ["EXAMPLES"]);
    for (what, line) in examples {
        roff.control("PP", []);
        roff.text([roman(format!("{what}:"))]);
        roff.control("RS", ["4"]);
        roff.control("nf", []);
        roff.text([roman(*line)]);
        roff.control("fi", []);
        roff.control("RE", []);
    }
}
