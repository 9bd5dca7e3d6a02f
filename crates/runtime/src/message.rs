//! Messages of the runtime on standard error, one line each.

use std::io::Write;
use std::process::ExitCode;
use weald_format::Error;
use weald_vfs::error_text::describe;

/// Exit status of what could not be done.
const FAILED: u8 = 2;

/// Exit status of what was done, but for some entries.
pub const FOUND: u8 = 1;

/// Writes one message as one line. Errors of standard error are ignored.
pub fn line(text: &str) {
    let text = format!("weald: {}\n", weald_vfs::safe_line(text));
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Reports the error, and returns the status of the process.
pub fn failed(error: &Error) -> ExitCode {
    line(&describe(causes_of(error), false).concat());
    ExitCode::from(FAILED)
}

/// Reports a problem with one path.
pub fn problem(path: &[u8], error: &(dyn std::error::Error + 'static)) {
    let mut texts = vec![weald_vfs::shown_path(path)];
    texts.extend(causes_of(error));
    line(&describe(texts, false).concat());
}

fn causes_of(error: &(dyn std::error::Error + 'static)) -> Vec<String> {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect()
}

/// Warnings of the libraries.
pub struct Logger;

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("weald")
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            line(&record.args().to_string());
        }
    }

    fn flush(&self) {}
}
