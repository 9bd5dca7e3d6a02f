//! `torture DIR [--big] [--deep LEVELS] [--seed N]`: makes the torture tree in the new directory
//! DIR.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use weald_testkit::torture::{Options, make, make_deep};

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let (mut dir, mut options, mut depth) = (
        None,
        Options {
            seed: 1,
            big: false,
        },
        0,
    );
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|n| n.to_str()?.parse().ok());
        match arg.to_str() {
            Some("--big") => options.big = true,
            Some("--seed") => match number() {
                Some(seed) => options.seed = seed,
                None => return usage(),
            },
            Some("--deep") => match number() {
                Some(levels) => depth = levels,
                None => return usage(),
            },
            _ => dir = Some(PathBuf::from(arg)),
        }
    }
    let Some(dir) = dir else { return usage() };
    let made = std::fs::create_dir(&dir)
        .map_err(|e| e.to_string())
        .and_then(|()| {
            make(&dir, &options).map_err(|e| format!("{e:?}"))?;
            if depth == 0 {
                Ok(())
            } else {
                make_deep(&dir, depth as u32).map_err(|e| format!("{e:?}"))
            }
        });
    match made {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("torture: {}: {error}", dir.display());
            ExitCode::from(2)
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: torture DIR [--big] [--deep LEVELS] [--seed N]");
    ExitCode::from(2)
}
