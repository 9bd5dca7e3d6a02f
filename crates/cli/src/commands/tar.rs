//! `weald tar`: writes an image as a tar stream.

use crate::attribute_args::AttributeChoiceArgs;
use crate::choice_args::{ChoiceArgs, StripArgs};
use crate::commands::extract::Problems;
use crate::help::{DONE_OR_PARTLY, Help};
use crate::messages;
use crate::open::{SourceArgs, thread_count};
use crate::output::Output;
use crate::progress::count;
use crate::reading::ReadingArgs;
use crate::status::exit_code;
use anyhow::bail;
use clap::{Args, ValueEnum, ValueHint};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use weald_export::{
    LineFormat, TarOptions, ZipReport, write_cpio, write_lines, write_tar, write_zip,
};

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "The format is pax: names of any length, times in nanoseconds, extended attributes \
         (SCHILY.xattr), hard links, and holes as GNU sparse files. The same image gives the \
         same bytes. Sockets have no form in tar; weald reports them and leaves them out.",
        "With --format cpio it is an archive of the kind newc, which the kernel unpacks as an \
         initramfs: no extended attributes, no holes, no nanoseconds, files below 4 GiB.",
        "With --format zip it is a zip archive with modes, owners and times of Unix, times in \
         steps of 100 ns. Zip has no extended attributes, and no hard links: each name becomes a \
         file. Devices, fifos and sockets are left out, with exit status 1. Weald says how many \
         there are.",
        "--format mtree and listing write lines of text about the entries: a description that \
         mtree, bsdtar and weald build read, and what unsquashfs -llnumeric prints.",
        "GNU tar restores extended attributes with tar -xp --xattrs --xattrs-include='*'. Names \
         with '=' are written twice, for GNU tar and for bsdtar (LIBARCHIVE.xattr). GNU tar warns \
         that it ignores the second form; bsdtar also restores the first one, with '%3D' in the \
         name.",
    ],
    examples: &[
        (
            "Unpack with tar",
            "mkdir out && weald tar forest.weald | tar -xpC out",
        ),
        (
            "Compress a part of the tree",
            "weald tar forest.weald usr/lib 'etc/*.conf' | zstd > part.tar.zst",
        ),
        (
            "Make an initramfs",
            "weald tar --format cpio forest.weald | zstd > initramfs.img",
        ),
        (
            "Make a zip archive",
            "weald tar --format zip forest.weald > forest.zip",
        ),
        (
            "Compare a directory with the attributes in an image",
            "weald tar --format mtree forest.weald > spec && mtree -f spec -p forest",
        ),
        (
            "Write what a list names, without objects",
            "weald tar --files-from paths.txt --exclude '*.o' forest.weald > part.tar",
        ),
    ],
    exit_status: DONE_OR_PARTLY,
};

/// Write an image as a tar stream to standard output
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub struct TarArgs {
    #[command(flatten)]
    image: SourceArgs,
    /// Patterns of paths from the root of the image (default: everything)
    #[arg(value_name = "PATTERN", value_hint = ValueHint::Other)]
    patterns: Vec<OsString>,
    #[command(flatten)]
    choice: ChoiceArgs,
    #[command(flatten)]
    strip: StripArgs,
    /// Do not write extended attributes
    #[arg(long)]
    no_xattrs: bool,
    #[command(flatten)]
    attributes: AttributeChoiceArgs,
    /// Format of the stream
    #[arg(long, value_enum, default_value = "pax")]
    format: FormatWord,
    #[command(flatten)]
    reading: ReadingArgs,
}

/// Formats of streams.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum FormatWord {
    /// Tar with pax headers
    Pax,
    /// Cpio of the kind newc
    Cpio,
    /// Zip, with DEFLATE and attributes of Unix
    Zip,
    /// A description of mtree(5), without contents
    Mtree,
    /// Lines as unsquashfs -llnumeric prints them
    Listing,
}

/// Runs the command.
pub fn run(args: &TarArgs) -> anyhow::Result<ExitCode> {
    let mut chosen = args.choice.chosen(&args.patterns)?;
    chosen.choice.dropped_names = args.strip.strip_components;
    let options = TarOptions {
        choice: chosen.choice.clone(),
        drops_xattrs: args.no_xattrs,
        attributes: args.attributes.choice(),
        is_layer: false,
        temp_dir: std::env::temp_dir(),
    };
    let threads = thread_count(0);
    weald_sys::want_large_pages();
    let source = if options.choice.is_everything() {
        args.image.open_for_everything(threads)?
    } else {
        args.image.open_for_reading(&chosen.looks(), threads)?
    };
    let root = source.directory()?;
    let mut output = Output::new();
    let lines = match args.format {
        FormatWord::Pax | FormatWord::Cpio | FormatWord::Zip => None,
        FormatWord::Mtree => Some(LineFormat::Mtree),
        FormatWord::Listing => Some(LineFormat::Listing {
            is_terminal: output.is_terminal(),
        }),
    };
    if let Some(format) = lines {
        let report = args.reading.during("lines", &[&source], false, || {
            let chosen = (&options.choice, &options.attributes);
            write_lines(&source, root, chosen, format, output.raw(), &Problems)
        })?;
        output.finish()?;
        let unmatched_count = chosen.report(&report.unmatched);
        return Ok(exit_code(report.problem_count + unmatched_count));
    }
    if output.is_terminal() {
        bail!("an archive is not written to a terminal");
    }
    if args.format == FormatWord::Cpio {
        let report = args.reading.during("cpio", &[&source], false, || {
            write_cpio(
                &source,
                root,
                (&options.choice, &options.attributes),
                output.raw(),
                &Problems,
            )
        })?;
        output.finish()?;
        if report.without_xattrs_count > 0 && !args.no_xattrs {
            messages::line(&format!(
                "extended attributes are not written, as cpio has no form for them; entries that \
                 have some: {} (--no-xattrs: they are not wanted)",
                count(report.without_xattrs_count)
            ));
        }
        let unmatched_count = chosen.report(&report.unmatched);
        return Ok(exit_code(report.problem_count + unmatched_count));
    }
    if args.format == FormatWord::Zip {
        let report = args.reading.during("zip", &[&source], false, || {
            let chosen = (&options.choice, &options.attributes);
            let output = (output.raw() as &mut dyn Write, &*options.temp_dir);
            write_zip(&source, root, chosen, output, &Problems)
        })?;
        output.finish()?;
        tell_lost(&report, args.no_xattrs);
        let lost_count = report.problem_count + report.special_count;
        return Ok(exit_code(lost_count + chosen.report(&report.unmatched)));
    }
    let report = args.reading.during("tar", &[&source], false, || {
        write_tar(&source, root, &options, output.raw(), &Problems)
    })?;
    output.finish()?;
    let unmatched_count = chosen.report(&report.unmatched);
    Ok(exit_code(report.problem_count + unmatched_count))
}

/// Says what a zip archive does not hold of the tree.
fn tell_lost(report: &ZipReport, drops_xattrs: bool) {
    let xattrs_count = if drops_xattrs {
        0
    } else {
        report.without_xattrs_count
    };
    for (lost_count, what) in [
        (
            xattrs_count,
            "extended attributes are not written, as zip has no form for them (--no-xattrs: they \
             are not wanted); entries that have some",
        ),
        (
            report.special_count,
            "devices, fifos and sockets are left out, as zip has no form for them",
        ),
        (
            report.linked_count,
            "names of files with several names become files of their own, as zip has no hard links",
        ),
    ] {
        if lost_count > 0 {
            messages::line(&format!("{what}: {}", count(lost_count)));
        }
    }
}
