//! `weald man`: manual pages, from the same words as the help.

use crate::args::Cli;
use crate::output::Output;
use anyhow::Context;
use clap::{Args, CommandFactory, ValueHint};
use clap_mangen::Man;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Write the manual pages: all of them into DIR, or weald(1) to standard output
#[derive(Args, Debug)]
#[command(hide = true)]
pub struct ManArgs {
    /// Directory for the pages; made if missing
    #[arg(value_hint = ValueHint::DirPath)]
    dir: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &ManArgs) -> anyhow::Result<ExitCode> {
    let mut command = Cli::command();
    command.build();
    match &args.dir {
        Some(dir) => std::fs::create_dir_all(dir)
            .and_then(|()| clap_mangen::generate_to(Cli::command(), dir))
            .with_context(|| dir.display().to_string())?,
        None => {
            let mut output = Output::new();
            output.raw().write_all(&page(command)?)?;
            output.finish()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// One page. It bears no date, so that the same program gives the same page.
fn page(command: clap::Command) -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    Ok(page)
}
