//! Exit status of the commands.

use std::process::ExitCode;

/// Exit status of a command that was done but found differences, damage or problems.
pub const FOUND: u8 = 1;

/// Exit status of a command that failed.
pub const FAILED: u8 = 2;

/// Exit status of a command that found `problem_count` problems.
pub fn exit_code(problem_count: u64) -> ExitCode {
    if problem_count == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(FOUND)
    }
}
