//! `compare A B [--no-rsync] [--no-holes] [--no-link-counts]`: lists the differences of two trees;
//! exit status 1 if there are any.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use weald_testkit::{CompareOptions, compare};

fn main() -> ExitCode {
    let mut options = CompareOptions::default();
    let mut dirs = Vec::new();
    for arg in std::env::args_os().skip(1) {
        match arg.to_str() {
            Some("--no-rsync") => options.rsync = false,
            Some("--no-holes") => options.holes = false,
            Some("--no-link-counts") => options.link_counts = false,
            _ => dirs.push(PathBuf::from(arg)),
        }
    }
    let [a, b] = dirs.as_slice() else {
        eprintln!("usage: compare A B [--no-rsync] [--no-holes] [--no-link-counts]");
        return ExitCode::from(2);
    };
    match compare(a, b, &options) {
        Ok(differences) => {
            differences.iter().for_each(|line| println!("{line}"));
            if differences.is_empty() {
                ExitCode::SUCCESS
            } else {
                ExitCode::from(1)
            }
        }
        Err(error) => {
            eprintln!("compare: {error:?}");
            ExitCode::from(2)
        }
    }
}
