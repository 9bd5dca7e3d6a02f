//! `weald export composefs`.

use super::write_args::WriteArgs;
use crate::help::{DONE_OR_FAILED, Help};
use crate::interrupt::interrupt_flag;
use crate::json::{Object, hex, put_name};
use crate::open::{ImageArgs, keep_private, thread_count};
use crate::output::Output;
use crate::progress::{bytes, count};
use anyhow::bail;
use clap::{Args, ValueEnum, ValueHint};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use weald_io::{OutputFile, TargetKind};
use weald_vfs::shown;
use weald_views::composefs::{
    Format, ImageOptions, ObjectPlace, VerityPolicy, Written, write_image,
};

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "FILE has the bytes that mkcomposefs writes for the same tree. DIR has one object for each \
         distinct content of more than 64 bytes, named by its fs-verity digest; smaller files are \
         in FILE. Objects that DIR has already are kept, so that one DIR serves many images.",
        "mount -t composefs -o basedir=DIR FILE MOUNTPOINT mounts the two, with the tools of \
         composefs.",
        "Format 0 is the default of mkcomposefs. Format 1 (mkcomposefs --min-version=1) also marks \
         directories with whiteouts as opaque: Linux 6.8 and newer look for whiteouts only there.",
    ],
    examples: &[
        (
            "Make a composefs image, and its objects",
            "weald export composefs forest.weald --image root.cfs --objects objects",
        ),
        (
            "Print the digest of the image without writing objects",
            "weald export composefs --json forest.weald --image digest.cfs",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Write a composefs image and the objects that it names
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub(super) struct ComposefsArgs {
    #[command(flatten)]
    source: ImageArgs,
    /// Composefs image to write; - for standard output
    #[arg(long = "image", id = "target", value_name = "FILE", value_hint = ValueHint::FilePath)]
    target: PathBuf,
    /// Directory of objects, created if missing (default: write no objects)
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    objects: Option<PathBuf>,
    /// Format of the image: 0 or 1
    #[arg(long, value_enum, default_value = "0")]
    format: FormatWord,
    /// Protect objects by fs-verity
    #[arg(long, value_enum, default_value = "try")]
    verity: VerityWord,
    #[command(flatten)]
    write: WriteArgs,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum FormatWord {
    #[value(name = "0")]
    V0,
    #[value(name = "1")]
    V1,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum VerityWord {
    /// Fail where the file system cannot do so
    Require,
    /// Protect objects where the file system can
    Try,
    /// Do not protect them
    Off,
}

pub(super) fn run(args: &ComposefsArgs) -> anyhow::Result<ExitCode> {
    let is_stdout = args.target.as_os_str() == "-";
    if args.write.json && is_stdout {
        bail!("the image goes to standard output: --json needs a file");
    }
    args.write.check_target(&args.target)?;
    let image = args.write.memory.open(&args.source)?;
    if let Err(error) = weald_sys::raise_open_file_limit() {
        log::info!("limit of open files: {error}");
    }
    let is_cancelled = interrupt_flag()?;
    keep_private(&args.source.image);
    let mut target = OutputFile::create(&args.target, TargetKind::File)?;
    let options = ImageOptions {
        format: match args.format {
            FormatWord::V0 => Format::V0,
            FormatWord::V1 => Format::V1,
        },
        objects: args.objects.as_deref().map(ObjectPlace::at),
        verity: match args.verity {
            VerityWord::Require => VerityPolicy::Require,
            VerityWord::Try => VerityPolicy::Try,
            VerityWord::Off => VerityPolicy::Off,
        },
        thread_count: thread_count(args.write.threads),
        memory_len: args.write.memory.list_len(),
        temp_dir: &std::env::temp_dir(),
        is_cancelled: &|| is_cancelled.load(Ordering::Relaxed),
    };
    let written = write_image(&image, &mut |bytes| target.write_all(bytes), &options)?;
    args.write.commit(target)?;
    let mut output = Output::new();
    if args.write.json {
        output.json(&summary(args, &written).into())?;
    } else if !args.write.quiet && !is_stdout {
        print_summary(args, &written, &mut output)?;
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

fn print_summary(
    args: &ComposefsArgs,
    written: &Written,
    output: &mut Output,
) -> std::io::Result<()> {
    let (inodes, len) = (count(written.inode_count), bytes(written.image_len));
    let target = shown(args.target.as_os_str().as_bytes());
    writeln!(output, "{target}: {inodes} inodes, {len}")?;
    let digest = hex(&written.image_digest);
    writeln!(output, "{target}: fs-verity digest {digest}")?;
    let Some(objects) = &args.objects else {
        return Ok(());
    };
    let protection = if written.is_protected {
        "protected by fs-verity"
    } else {
        "not protected by fs-verity"
    };
    writeln!(
        output,
        "{}: {} objects, {} of them new ({}), {protection}",
        shown(objects.as_os_str().as_bytes()),
        count(written.object_count),
        count(written.new_object_count),
        bytes(written.new_object_len),
    )
}

fn summary(args: &ComposefsArgs, written: &Written) -> Object {
    let mut object = Object::new();
    put_name(&mut object, "image", args.target.as_os_str().as_bytes());
    object.insert("image_len".into(), written.image_len.into());
    let digest = hex(&written.image_digest);
    object.insert("fsverity_digest".into(), digest.into());
    object.insert("inode_count".into(), written.inode_count.into());
    object.insert("object_count".into(), written.object_count.into());
    object.insert("object_len".into(), written.object_len.into());
    object.insert("new_object_count".into(), written.new_object_count.into());
    object.insert("new_object_len".into(), written.new_object_len.into());
    object.insert("is_protected".into(), written.is_protected.into());
    object
}
