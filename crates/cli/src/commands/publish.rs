//! `weald publish`: puts an image into a bucket, as an object or into a store of images.

mod into_store;

use crate::help::{DONE_OR_FAILED, Help};
use crate::json::Object;
use crate::output::Output;
use crate::progress::bytes;
use anyhow::{Context, bail};
use clap::{Args, ValueHint};
use into_store::Lens;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;
use weald_format::Digest;
use weald_format::directory::Base;
use weald_image::{Generation, Image, OpenOptions, generations};
use weald_io::{FileSource, ReadAt};
use weald_remote::{Location, Publication};

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "Readers see the new object when all of it is there, and the old one until then. An upload \
         that is interrupted leaves no object; its parts are invisible, and a rule of the bucket \
         (AbortIncompleteMultipartUpload) removes them.",
        "If the object is the same image already, nothing is sent, except with --force. Otherwise \
         all of it is sent, also if an older version is there. An image that was built with --base \
         is small, and its readers need the base image beside it: publish that first.",
        "s3://BUCKET/STORE:NAME names an image of a store in the bucket, which the first image \
         makes. Records that the image NAME has there, or images with similar names, are not sent \
         again. Nothing is removed: readers of a replaced image go on.",
    ],
    examples: &[
        (
            "Publish an image",
            "weald publish forest.weald s3://bucket/forest.weald",
        ),
        (
            "Replace it by the next version",
            "weald publish --force forest-2.weald s3://bucket/forest.weald",
        ),
        (
            "Mount it elsewhere",
            "weald mount s3://bucket/forest.weald /mnt",
        ),
        (
            "Publish the versions of a store, each sending what is new",
            "weald publish /srv/store:forest s3://bucket/store:forest",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Put an image into a bucket, for reading by URL
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub struct PublishArgs {
    /// Image file, or STORE:NAME
    #[arg(value_hint = ValueHint::FilePath)]
    image: PathBuf,
    /// Where it goes: s3://BUCKET/KEY, or s3://BUCKET/STORE:NAME
    #[arg(value_hint = ValueHint::Url)]
    url: PathBuf,
    /// Replace what is there, whatever it is
    #[arg(short, long)]
    force: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print errors only
    #[arg(short, long)]
    quiet: bool,
}

/// Runs the command.
pub fn run(args: &PublishArgs) -> anyhow::Result<ExitCode> {
    let shown = weald_remote::shown(&args.url);
    let Some(location) = Location::parse(&args.url) else {
        bail!("{shown}: expected a URL, s3://BUCKET/KEY");
    };
    let location = location?;
    let opened = Image::open_path(&args.image, 0, &OpenOptions::default());
    let start = weald_image::ImageStart::default();
    let image = opened.map_err(|error| crate::foreign::explain(&args.image, start, error))?;
    let digest = image.summary().image_digest;
    let source: Box<dyn ReadAt> = match weald_store::find(&args.image)? {
        Some(stored) => Box::new(stored),
        None => Box::new(FileSource::open(&args.image, 0)?),
    };
    if let Some(publication) = Publication::begin(&location)? {
        let replaces = args.force;
        let lens = into_store::publish(publication, &args.image, &*source, digest, replaces)?;
        check_published(args, digest)?;
        for base in &image.directory().bases {
            warn_of_base(base, &location);
        }
        report(args, &shown, digest, source.len(), lens)?;
        return Ok(ExitCode::SUCCESS);
    }
    let sent_len = if is_there(args, &location, digest)? {
        0
    } else {
        let sent = weald_remote::publish(&*source, &location)?;
        check_published(args, digest)?;
        sent.0
    };
    for base in &image.directory().bases {
        warn_of_base(base, &location);
    }
    let lens = Lens {
        sent: sent_len,
        present: source.len().saturating_sub(sent_len),
    };
    report(args, &shown, digest, source.len(), lens)?;
    Ok(ExitCode::SUCCESS)
}

/// Opens what was published as its readers will.
fn check_published(args: &PublishArgs, digest: Digest) -> anyhow::Result<()> {
    let shown = weald_remote::shown(&args.url);
    let found = generations(&args.url).with_context(|| format!("{shown}: reading it back"))?;
    if found.first().map(|newest| newest.image_digest) != Some(digest) {
        bail!("{shown}: the object is not what was sent: another writer, or a faulty server");
    }
    Ok(())
}

/// Whether the object is the image with `digest` already. With `--force` it is sent in any case,
/// because its data may be damaged.
///
/// # Errors
/// Another object, which `--force` would replace.
fn is_there(args: &PublishArgs, location: &Location, digest: Digest) -> anyhow::Result<bool> {
    if weald_remote::find(location)?.is_none() || args.force {
        return Ok(false);
    }
    let shown = location.shown();
    let newest = |found: Vec<Generation>| Some(found.first()?.image_digest);
    match generations(&args.url).ok().and_then(newest) {
        Some(found) if found == digest => Ok(true),
        Some(_) => bail!("{shown}: another image is there: --force replaces it"),
        None => bail!("{shown}: there is an object that is no image: --force replaces it"),
    }
}

/// Says that readers will not find a base image.
fn warn_of_base(base: &Base, location: &Location) {
    let dir = PathBuf::from(location.parent());
    let name = OsStr::from_bytes(&base.name);
    let beside = Location::beside(&dir, name).and_then(|url| weald_remote::find(&url));
    if !matches!(beside, Ok(Some(_))) {
        log::warn!(
            "{}: readers need its base image, too: publish it as {} in the same place",
            location.shown(),
            base.name.escape_ascii()
        );
    }
}

fn report(
    args: &PublishArgs,
    shown: &str,
    digest: Digest,
    len: u64,
    lens: Lens,
) -> anyhow::Result<()> {
    let mut output = Output::new();
    if args.json {
        let mut object = Object::new();
        object.insert("url".into(), shown.into());
        object.insert("image_digest".into(), digest.to_string().into());
        object.insert("image_len".into(), len.into());
        object.insert("sent_len".into(), lens.sent.into());
        object.insert("present_len".into(), lens.present.into());
        output.json(&object.into())?;
    } else if !args.quiet {
        let sent = match lens {
            Lens { sent: 0, .. } => "is there already, and nothing was sent".to_owned(),
            Lens { sent, present: 0 } => format!("{} sent", bytes(sent)),
            Lens { sent, present } => {
                format!("{} sent, {} there already", bytes(sent), bytes(present))
            }
        };
        output.text(&format!(
            "{}: {}, {sent}\n",
            weald_vfs::safe_line(shown),
            bytes(len)
        ))?;
    }
    output.finish()?;
    Ok(())
}
