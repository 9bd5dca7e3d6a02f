//! `weald man`: writes man pages, from the same definitions as the help.

use crate::commands::mount_args;
use crate::help::{Help, Item, put_items, write_roff_examples};
use crate::output::Output;
use anyhow::Context;
use clap::{Args, Command, ValueHint};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// File name of the page of the mount helper; section 8 is system administration.
const HELPER_PAGE: &str = "mount.weald.8";

/// Write the manual pages: all of them into DIR, or weald(1) to standard output
#[derive(Args, Debug)]
#[command(hide = true)]
pub struct ManArgs {
    /// Directory for the pages; created if missing
    #[arg(value_hint = ValueHint::DirPath)]
    dir: Option<PathBuf>,
}

/// All that the pages are made from.
pub struct Manual {
    /// Definition of all commands.
    pub command: Command,
    /// Sections of weald(1).
    pub help: &'static Help,
    /// Sections of the page of a command.
    pub help_of: fn(&str) -> Option<&'static Help>,
    /// Sections of the page of a command of a group, by the names of both.
    pub help_in_group: fn(&str, &str) -> Option<&'static Help>,
}

/// Runs the command.
pub fn run(args: &ManArgs, manual: Manual) -> anyhow::Result<ExitCode> {
    let mut command = manual.command.disable_help_subcommand(true);
    command.build();
    let manual = Manual { command, ..manual };
    match &args.dir {
        Some(dir) => write_pages(&manual, dir).with_context(|| dir.display().to_string())?,
        None => {
            let mut output = Output::new();
            let page = page(&manual.command, manual.help)?;
            output.raw().write_all(&page)?;
            output.finish()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn write_pages(manual: &Manual, dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    let page_of_weald = page(&manual.command, manual.help)?;
    std::fs::write(dir.join("weald.1"), page_of_weald)?;
    let commands = manual.command.get_subcommands();
    for command in commands.filter(|c| !c.is_hide_set()) {
        let name = command.get_name();
        let Some(help) = (manual.help_of)(name) else {
            continue;
        };
        let file = dir.join(format!("weald-{name}.1"));
        std::fs::write(file, page(command, help)?)?;
        write_sub_pages(manual, command, dir)?;
    }
    std::fs::write(dir.join(HELPER_PAGE), helper_page())
}

/// Writes the pages of the commands of a group such as `weald store`.
fn write_sub_pages(manual: &Manual, command: &Command, dir: &Path) -> io::Result<()> {
    for inner in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        let name = inner.get_name();
        let group = command.get_name();
        if let Some(help) = (manual.help_in_group)(group, name) {
            let file = dir.join(format!("weald-{group}-{name}.1"));
            std::fs::write(file, page(inner, help)?)?;
        }
    }
    Ok(())
}

/// Formats one page. A page has no date, so that the same program always gives the same page.
fn page(command: &Command, help: &Help) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim().to_owned();
    roff.text([bold(usage)]);
    roff.to_writer(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut roff = Roff::new();
    help.write_roff(&mut roff);
    roff.control("SH", ["SEE ALSO"]);
    let name = command.get_display_name().unwrap_or(command.get_name());
    roff.text([roman(see_also(name))]);
    roff.to_writer(&mut page)?;
    Ok(page)
}

fn see_also(name: &str) -> &'static str {
    match name {
        "weald" => "mount.weald(8), mount(8), tar(1), rsync(1)",
        "weald-mount" | "weald-umount" | "weald-mounts" | "weald-serve" => {
            "weald(1), weald-mount(1), weald-umount(1), weald-mounts(1), weald-serve(1), \
             mount.weald(8), mount(8)"
        }
        name if name.starts_with("weald-store-") => "weald(1), weald-store(1)",
        name if name.starts_with("weald-volume-") => {
            "weald(1), weald-volume(1), weald-mount(1), weald-umount(1)"
        }
        "weald-volume" => "weald(1), weald-store(1), weald-mount(1), weald-umount(1)",
        name if name.starts_with("weald-export-") => "weald(1), weald-export(1)",
        name if name.starts_with("weald-import-") => "weald(1), weald-import(1)",
        _ => "weald(1)",
    }
}

/// Options that mount(8) passes to a helper.
const HELPER_OPTIONS: &[Item] = &[
    ("-o OPTIONS", "Mount options, separated by commas."),
    ("-s", "Ignore unknown options."),
    ("-f", "Check the command line, and do not mount."),
    ("-n, -v, -t TYPE", "Accepted and ignored."),
];

const HELPER_EXAMPLES: &[Item] = &[
    (
        "Mount an image",
        "mount -t weald /srv/forest.weald /mnt/forest",
    ),
    (
        "Mount an image at boot, by fstab(5)",
        "/srv/forest.weald  /mnt/forest  weald  nofail  0  0",
    ),
    (
        "Mount an image when it is first used, by systemd",
        "/srv/forest.weald  /mnt/forest  weald  noauto,x-systemd.automount  0  0",
    ),
];

const HELPER_STATUS: &[Item] = &[
    ("0", "The image is mounted."),
    ("1", "The command line is wrong."),
    ("32", "The mount failed; standard error says why."),
];

const HELPER_DESCRIPTION: &[&str] = &[
    "mount.weald is the helper that mount(8) and fstab(5) use for the file system type weald. It \
     is a link to weald(1). Users call mount(8) or weald-mount(1) instead.",
    "If a shared server runs, the helper asks it to mount the image. Otherwise it starts a process \
     for this mount only, because a server that a mount unit of systemd starts would end with that \
     unit. An automount always gets its own process.",
    "With the option kernel the kernel serves the mount, without a server. The option overlay is \
     for users who are root in a user namespace. There, mount(8) and mount -a -T FILE mount as \
     weald mount --overlay does. Outside user namespaces the helper refuses overlay, because root \
     mounts with kernel.",
];

/// Formats mount.weald(8), with the mount options of weald-mount(1).
fn helper_page() -> String {
    let mut roff = Roff::new();
    let source = concat!("weald ", env!("CARGO_PKG_VERSION"));
    roff.control("TH", ["mount.weald", "8", "", source]);
    roff.control("SH", ["NAME"]);
    roff.text([roman("mount.weald - mount a Weald image for mount(8)")]);
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([
        bold("mount.weald"),
        roman(" IMAGE DIR [-sfnv] [-o OPTIONS] [-t TYPE]"),
    ]);
    roff.control("SH", ["DESCRIPTION"]);
    for paragraph in HELPER_DESCRIPTION {
        roff.control("PP", []);
        roff.text([roman(*paragraph)]);
    }
    roff.control("SH", ["OPTIONS"]);
    put_items(&mut roff, HELPER_OPTIONS);
    for (heading, items) in mount_args::HELP.lists {
        roff.control("SH", [*heading]);
        put_items(&mut roff, items);
    }
    write_roff_examples(&mut roff, HELPER_EXAMPLES);
    roff.control("SH", ["EXIT STATUS"]);
    put_items(&mut roff, HELPER_STATUS);
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman("weald-mount(1), weald-serve(1), mount(8), fstab(5)")]);
    roff.render()
}
