//! `weald export erofs`.

use super::write_args::WriteArgs;
use crate::help::{DONE_OR_FAILED, Help};
use crate::interrupt::interrupt_flag;
use crate::json::{Object, put_name};
use crate::open::{ImageArgs, keep_private, thread_count};
use crate::output::Output;
use crate::progress::{bytes, count};
use anyhow::bail;
use clap::{Args, ValueHint};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use weald_io::{OutputFile, TargetKind};
use weald_vfs::shown;
use weald_views::erofs::{Codec, ErofsOptions, ErofsWritten, write_image};

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "The image holds the data of all files, equal files once; 'mount -t erofs' mounts it \
         without Weald. Holes stay holes. Sparse files and files of up to 4 KiB are not \
         compressed.",
        "Every kernel with EROFS and its compression mounts lz4 and lz4hc; zstd needs Linux 6.10. \
         Levels are those of the codec: lz4hc:3 to lz4hc:12, zstd:1 to zstd:22.",
        "EROFS keeps no digests of data: damage of FILE can show as other bytes, to the kernel \
         and to weald build --from-image. Keep a digest of FILE, or mount the image with weald \
         mount --kernel and fs-verity.",
        "Memory: 32 bytes for each distinct content; all that grows with the number of names is in \
         temporary files.",
    ],
    examples: &[
        (
            "Make an image that the kernel mounts",
            "weald export erofs forest.weald forest.erofs",
        ),
        (
            "Make a small one",
            "weald export erofs --compress zstd:19 forest.weald small.erofs",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Write an EROFS image with all data, which the kernel mounts
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub(super) struct ErofsArgs {
    #[command(flatten)]
    source: ImageArgs,
    /// EROFS image to write
    #[arg(value_name = "FILE", id = "target", value_hint = ValueHint::FilePath)]
    target: PathBuf,
    /// Compress files: lz4, lz4hc or zstd, with a level as in zstd:19 (default: no compression)
    #[arg(long, value_name = "CODEC", value_parser = codec)]
    compress: Option<Codec>,
    #[command(flatten)]
    write: WriteArgs,
}

/// Parses a codec with its level.
fn codec(text: &str) -> Result<Codec, String> {
    let (word, level) = match text.split_once(':') {
        Some((word, level)) => (word, Some(level)),
        None => (text, None),
    };
    let level = |default: u8, min: u8, max: u8| match level {
        None => Ok(default),
        Some(text) => match text.parse() {
            Ok(level) if (min..=max).contains(&level) => Ok(level),
            _ => Err(format!(
                "expected a level from {min} to {max} after {word}:"
            )),
        },
    };
    match word {
        "lz4" if text == "lz4" => Ok(Codec::Lz4),
        "lz4" => Err("lz4 has no levels: name lz4hc".to_owned()),
        "lz4hc" => Ok(Codec::Lz4Hc(level(9, 3, 12)?)),
        "zstd" => Ok(Codec::Zstd(level(9, 1, 22)?)),
        _ => Err("expected lz4, lz4hc or zstd".to_owned()),
    }
}

pub(super) fn run(args: &ErofsArgs) -> anyhow::Result<ExitCode> {
    if args.target == Path::new("-") {
        bail!("an EROFS image is not written in order, which standard output needs: name a file");
    }
    args.write.check_target(&args.target)?;
    let image = args.write.memory.open(&args.source)?;
    let is_cancelled = interrupt_flag()?;
    keep_private(&args.source.image);
    let mut target = OutputFile::create(&args.target, TargetKind::File)?;
    let temp_dir = std::env::temp_dir();
    let options = ErofsOptions {
        codec: args.compress,
        thread_count: thread_count(args.write.threads),
        memory_len: args.write.memory.list_len(),
        temp_dir: &temp_dir,
        is_cancelled: &|| is_cancelled.load(Ordering::Relaxed),
    };
    let written = write_image(&image, &mut target, &options)?;
    args.write.commit(target)?;
    let mut output = Output::new();
    if args.write.json {
        output.json(&summary(args, &written).into())?;
    } else if !args.write.quiet {
        print_summary(args, &written, &mut output)?;
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

fn print_summary(
    args: &ErofsArgs,
    written: &ErofsWritten,
    output: &mut Output,
) -> std::io::Result<()> {
    let target = shown(args.target.as_os_str().as_bytes());
    writeln!(
        output,
        "{target}: {} inodes, {} contents of {} in {}, {} of metadata, {}",
        count(written.inode_count),
        count(written.content_count),
        bytes(written.content_len),
        bytes(written.stored_len),
        bytes(written.metadata_len),
        bytes(written.image_len),
    )
}

fn summary(args: &ErofsArgs, written: &ErofsWritten) -> Object {
    let mut object = Object::new();
    put_name(&mut object, "image", args.target.as_os_str().as_bytes());
    for (key, number) in [
        ("image_len", written.image_len),
        ("inode_count", written.inode_count),
        ("content_count", written.content_count),
        ("content_len", written.content_len),
        ("stored_len", written.stored_len),
        ("metadata_len", written.metadata_len),
    ] {
        object.insert(key.into(), number.into());
    }
    object
}
