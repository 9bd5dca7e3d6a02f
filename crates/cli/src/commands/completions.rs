//! `weald completions`: completion scripts for shells.

use crate::help::{DONE_OR_FAILED, Help};
use crate::output::Output;
use clap::{Args, Command};
use clap_complete::{Shell, generate};
use std::io::Write;
use std::process::ExitCode;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[],
    examples: &[
        (
            "Install for bash",
            "weald completions bash > /usr/share/bash-completion/completions/weald",
        ),
        (
            "Install for zsh, in a directory of $fpath",
            "weald completions zsh > ~/.zfunc/_weald",
        ),
        (
            "Install for fish",
            "weald completions fish > ~/.config/fish/completions/weald.fish",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Print a completion script for a shell
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub struct CompletionsArgs {
    /// Shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs the command; `weald` is the definition of all commands.
pub fn run(args: &CompletionsArgs, weald: &mut Command) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    generate(args.shell, weald, "weald", &mut script);
    let mut output = Output::new();
    output.raw().write_all(&script)?;
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}
