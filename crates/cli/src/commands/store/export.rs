//! `weald store export`.

use crate::help::{DONE_OR_FAILED, Help};
use crate::json::{Object, put_name};
use crate::open::{keep_private, refuse_stored_target};
use crate::open_store::{open_named, show_path};
use crate::output::Output;
use anyhow::bail;
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weald_format::ErrorKind;
use weald_io::{OutputFile, ReadAt, TargetKind};
use weald_store::StoredImage;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "The file has the bytes of the image that was imported, and its image digest. Only a gc \
         that encoded blocks again changes them; the tree digest never changes.",
        "Export copies bytes and does not decode them: weald check verifies the file.",
    ],
    examples: &[
        (
            "Write an image to a file",
            "weald store export /srv/store:v1 copy.weald",
        ),
        (
            "Send an image to another machine",
            "weald store export /srv/store:v1 - > copy-2.weald",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Write an image of a store to a file
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub(super) struct ExportArgs {
    /// Image of a store
    #[arg(value_name = "STORE:NAME")]
    image: PathBuf,
    /// File to write; - for standard output
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// The file, if store and name come as two words
    #[arg(hide = true)]
    third: Option<PathBuf>,
    /// Replace FILE if it exists
    #[arg(short, long)]
    force: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Bytes per read and write.
const EXPORTED_AT_ONCE_LEN: u64 = 1 << 20;

pub(super) fn run(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    let (image, file) = match &args.third {
        None => (args.image.clone(), &args.file),
        Some(file) => {
            let mut image = OsString::from(&args.image);
            image.push(":");
            image.push(&args.file);
            (PathBuf::from(image), file)
        }
    };
    let (store, name) = open_named(&image)?;
    keep_private(&image);
    let image = StoredImage::open(store.clone(), &name)?;
    let is_stdout = file == Path::new("-");
    refuse_stored_target(file)?;
    if args.json && is_stdout {
        bail!("the image goes to standard output: --json needs a file");
    }
    if !args.force {
        refuse_existing(file)?;
    }
    let mut target = OutputFile::create(file, TargetKind::File)?;
    copy(&image, &mut target)?;
    match target.commit(args.force) {
        Err(error) if error.kind() == ErrorKind::Busy => bail!("{error}; --force replaces it"),
        other => other?,
    };
    if args.json {
        let map = store.map(&name)?;
        let mut object = Object::new();
        object.insert("name".into(), name.into());
        put_name(&mut object, "file", file.as_os_str().as_bytes());
        object.insert("image_len".into(), image.len().into());
        object.insert("image_digest".into(), map.image_digest.to_string().into());
        object.insert("tree_digest".into(), map.tree_digest.to_string().into());
        let mut output = Output::new();
        output.json(&object.into())?;
        output.finish()?;
    }
    Ok(ExitCode::SUCCESS)
}

fn refuse_existing(file: &Path) -> anyhow::Result<()> {
    match weald_io::refuse_existing(file) {
        Err(error) => bail!("{}: {error}; --force replaces it", show_path(file)),
        Ok(()) => Ok(()),
    }
}

fn copy(image: &StoredImage, target: &mut OutputFile) -> weald_format::Result<()> {
    let mut buffer = vec![0; EXPORTED_AT_ONCE_LEN as usize];
    let mut at = 0;
    while at < image.len() {
        let len = EXPORTED_AT_ONCE_LEN.min(image.len() - at);
        let piece = &mut buffer[..len as usize];
        image.read_exact_at(piece, at)?;
        target.write_all(piece)?;
        at += len;
    }
    Ok(())
}
