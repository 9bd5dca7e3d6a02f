//! `crash_load run DIR SEED LOG`: works in DIR until a call fails. `crash_load judge DIR SEED LOG`:
//! compares DIR with the calls that LOG says were made and synced; exit status 1 if it is no prefix
//! of them.
#![forbid(unsafe_code)]

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use weald_testkit::crash_load::{judge, run};

const USAGE: &str = "usage: crash_load run|judge DIR SEED LOG";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match work(&args) {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(what) => {
            eprintln!("crash_load: {what}");
            ExitCode::from(1)
        }
    }
}

fn work(args: &[String]) -> Result<String, String> {
    let [command, dir, seed, log] = args else {
        return Err(USAGE.to_owned());
    };
    let seed: u64 = seed.parse().map_err(|e| format!("{seed}: {e}"))?;
    let dir = Path::new(dir);
    match command.as_str() {
        "run" => {
            let opened = OpenOptions::new().create(true).append(true).open(log);
            let mut file = opened.map_err(|e| format!("{log}: {e}"))?;
            let (made, error) = run(dir, seed, &mut file).map_err(|e| format!("{log}: {e}"))?;
            writeln!(file, "end {made}").map_err(|e| format!("{log}: {e}"))?;
            Ok(format!("{made} calls, then: {error}"))
        }
        "judge" => {
            let text = fs::read_to_string(log).map_err(|e| format!("{log}: {e}"))?;
            let numbers = |prefix: &str| {
                let lines = text.lines().filter_map(|line| line.strip_prefix(prefix));
                lines.filter_map(|line| line.parse::<u64>().ok()).max()
            };
            let synced = numbers("").unwrap_or(0);
            let made = numbers("end ").ok_or("the log has no end")?;
            let survived = judge(dir, seed, synced, made)?;
            Ok(format!(
                "{survived} of {made} calls survived, {synced} were synced"
            ))
        }
        _ => Err(USAGE.to_owned()),
    }
}
