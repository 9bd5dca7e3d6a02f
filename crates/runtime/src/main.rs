//! `weald-runtime`: starts the program in the image behind it, and does nothing else.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    weald_runtime::small::main(&std::env::args_os().collect::<Vec<_>>())
}
