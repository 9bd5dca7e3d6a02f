//! `weald completions`: scripts that teach shells the words.

use crate::args::Cli;
use crate::output::Output;
use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};
use std::io::Write;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  weald completions bash > /usr/share/bash-completion/completions/weald
  weald completions zsh > ~/.zfunc/_weald
  weald completions fish > ~/.config/fish/completions/weald.fish";

/// Print a completion script for a shell
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CompletionsArgs {
    /// Which shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs the command.
pub fn run(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "weald", &mut script);
    let mut output = Output::new();
    output.raw().write_all(&script)?;
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}
