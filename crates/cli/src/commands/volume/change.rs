//! `weald volume create` and `rm`.

use crate::commands::store::wait::WaitArgs;
use crate::foreign;
use crate::help::{DONE_OR_FAILED, DONE_OR_PARTLY, Help};
use crate::interrupt::interrupt_flag;
use crate::json::{Object, put_name};
use crate::messages;
use crate::named_volume::{Named, VolumePath};
use crate::open_store::show_path;
use crate::output::Output;
use crate::parse;
use crate::progress::{bytes, count};
use crate::status::exit_code;
use crate::uuid::random_uuid;
use anyhow::{Context, bail};
use clap::{Args, ValueHint};
use serde_json::Value;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use weald_builder::{CodecSpec, Problem};
use weald_format::{Error, ErrorKind};
use weald_image::{Image, ImageStart, OpenOptions};
use weald_store::check_name;
use weald_vfs::shown_path;
use weald_volume::{
    CHUNK_LEN_MAX, CHUNK_LEN_MIN, Chunking, ImportObserver, ImportSource, VolumeImport,
    VolumeOptions, create_from,
};

/// Sections of the help.
pub const CREATE_HELP: Help = Help {
    lists: &[],
    notes: &[
        "The store must exist; weald store create makes one. A name has 1 to 200 bytes of UTF-8, \
         no '/', no control character and no dot in front. An image and a volume of one store \
         cannot have the same name.",
        "The segments of the store hold the data of the volume's files, whatever the modes of \
         these are. So the first volume of a store without images takes the permissions of group \
         and others from the directory of the store. In a store with images, which others may \
         read, create says so and leaves the directory as it is.",
        "A chunk is the unit of deduplication and of compression. Larger chunks compress better \
         and need less metadata. Smaller chunks find more repeats, and a small read or a small \
         overwrite costs less. The size of a volume's chunks never changes.",
        "Repeats are found if a whole chunk is equal. The option --chunking says where chunks \
         begin in a file that is written in order. With fixed, they begin at multiples of the \
         chunk size. With auto, the content of each member of an archive (tar, cpio, ar) is cut as \
         the file itself, so that an archive and its tree share their data; other files are cut as \
         with fixed. With content, the bytes of other files choose the borders as well, so that \
         data that moved is found again. Chunks then have an eighth of the chunk size on average, \
         and take more memory and metadata. The command weald volume set changes it.",
        "With --from, the volume begins with the files of an image, and changes of the volume \
         never change the image. If the image is in the same store, both share their blocks. Data \
         is copied only if a volume cannot read its blocks: those of programs, of recipes, of \
         dictionaries and of base images. The options --compress and --chunk hold for data that is \
         copied or new. A file whose data cannot be copied, because the image is damaged, is left \
         out whole and named, and so is a damaged directory with what is below it; the exit status \
         is 1. With --strict the command fails then. If the command fails, there is no volume.",
        "lz4 costs little CPU time. zstd makes less data and costs more CPU time; see \
         docs/volume.md.",
    ],
    examples: &[
        ("Make a volume", "weald volume create /srv/store:home"),
        (
            "Make a volume for data that is read rarely",
            "weald volume create --compress zstd:9 --chunk 512K /srv/store:archive",
        ),
        (
            "Make a volume for backups, whose files differ in a few places",
            "weald volume create --chunking content /srv/store:backups",
        ),
        (
            "Make a volume with the files of an image",
            "weald volume create /srv/store:work --from forest.weald",
        ),
        (
            "Make a volume that finds README and readme to be the same name",
            "weald volume create --case-insensitive /srv/store:share",
        ),
    ],
    exit_status: DONE_OR_PARTLY,
};

/// Make a volume in a store, empty or with the files of an image
#[derive(Args, Debug)]
#[command(after_help = CREATE_HELP.short(), after_long_help = CREATE_HELP.long())]
pub(super) struct CreateArgs {
    /// Volume to make: STORE:NAME
    #[arg(value_name = "STORE:NAME", value_hint = ValueHint::DirPath)]
    volume: PathBuf,
    /// Begin with the files of this image: a file, or STORE:NAME
    #[arg(long, value_name = "IMAGE", value_hint = ValueHint::AnyPath)]
    from: Option<PathBuf>,
    /// Size of a chunk: a power of two from 4K to 16M
    #[arg(long, value_name = "SIZE", default_value = "128K", value_parser = chunk)]
    chunk: u32,
    /// Codec of new data: lz4, zstd[:1-22] or none
    #[arg(long, value_name = "CODEC", default_value = "lz4", value_parser = codec)]
    compress: CodecSpec,
    /// Where files that are written in order are cut: auto, fixed or content
    #[arg(long, value_name = "WORD", default_value = "auto", value_parser = chunking)]
    chunking: Chunking,
    /// Find names without regard to case; they keep the case that they were made with. To change
    /// only the case of a name, rename it to a third name first: Linux ends the direct way itself
    #[arg(long)]
    case_insensitive: bool,
    /// Fail if a file of the image is damaged, instead of leaving it out
    #[arg(long, requires = "from")]
    strict: bool,
    #[command(flatten)]
    wait: WaitArgs,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

/// Parses a length of chunks.
pub(super) fn chunk(text: &str) -> Result<u32, String> {
    let len = parse::size(text)?;
    let len = u32::try_from(len).ok().filter(|len| len.is_power_of_two());
    len.filter(|len| (CHUNK_LEN_MIN..=CHUNK_LEN_MAX).contains(len))
        .ok_or_else(|| "expected a power of two from 4K to 16M, such as 128K".to_owned())
}

/// Parses a kind of chunking.
pub(super) fn chunking(text: &str) -> Result<Chunking, String> {
    Chunking::parse(text).ok_or_else(|| "expected auto, fixed or content".to_owned())
}

/// Parses a codec of volumes.
fn codec(text: &str) -> Result<CodecSpec, String> {
    let expected = "expected lz4, zstd, zstd:1 to zstd:22, or none";
    match text.split_once(':') {
        None => match text {
            "none" => Ok(CodecSpec::None),
            "lz4" => Ok(CodecSpec::Lz4),
            "zstd" => Ok(CodecSpec::Zstd(3)),
            _ => Err(expected.to_owned()),
        },
        Some(("zstd", level)) => match level.parse() {
            Ok(level) if (1..=22).contains(&level) => Ok(CodecSpec::Zstd(level)),
            _ => Err(expected.to_owned()),
        },
        Some(_) => Err(expected.to_owned()),
    }
}

pub(super) fn create(args: &CreateArgs) -> anyhow::Result<ExitCode> {
    let named = Named::open(&args.volume)?;
    check_name(&named.name)?;
    let words = named.shown();
    if named.store.names()?.contains(&named.name) {
        bail!("{words}: the store has an image of this name: choose another name for the volume");
    }
    if named.store.volume_names()?.contains(&named.name) {
        bail!("{words}: this volume is there already: 'weald volume info {words}' describes it");
    }
    let options = VolumeOptions {
        chunk_len: args.chunk,
        codec: args.compress,
        chunking: args.chunking,
        is_case_insensitive: args.case_insensitive,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        ..VolumeOptions::default()
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_nanos() as i128);
    args.wait.until_free(&named.store)?;
    let is_private = keep_others_out(&named)?;
    let mut left_out = Vec::new();
    let imported = match &args.from {
        Some(image) => {
            let mut watch = Watch {
                interrupted: interrupt_flag()?,
                is_strict: args.strict,
                left_out: Vec::new(),
            };
            let imported = import(&named, image, (&options, now), &mut watch)?;
            left_out = watch.left_out;
            Some(imported)
        }
        None => {
            weald_volume::create(&named.store, &named.name, &options, random_uuid()?, now)?;
            None
        }
    };
    if !is_private && !args.quiet {
        let store = named.store.shown();
        messages::line(&format!(
            "{store}: other users can enter this directory, and read what is in the volume \
             whatever the modes of its files are: 'chmod go= {store}' keeps them out"
        ));
    }
    let mut output = Output::new();
    if args.json {
        let mut object = Object::new();
        object.insert("name".into(), named.name.as_str().into());
        object.insert("chunk_len".into(), args.chunk.into());
        object.insert("is_case_insensitive".into(), args.case_insensitive.into());
        if let Some(imported) = imported {
            object.insert("name_count".into(), imported.name_count.into());
            object.insert("shared_len".into(), imported.shared_len.into());
            object.insert("copied_len".into(), imported.copied_len.into());
            object.insert("left_out".into(), left_out_json(&left_out));
        }
        output.json(&object.into())?;
    } else if !args.quiet {
        let path = show_path(&args.volume);
        match imported {
            None => writeln!(output, "{path}: an empty volume")?,
            Some(imported) => writeln!(
                output,
                "{path}: {} names, {} shared with the image, {} copied",
                count(imported.name_count),
                bytes(imported.shared_len),
                bytes(imported.copied_len)
            )?,
        }
    }
    output.finish()?;
    Ok(exit_code(left_out.len() as u64))
}

/// Paths of an image or a volume that are left out, and why.
pub(super) fn left_out_json(left_out: &[Problem]) -> Value {
    let objects = left_out.iter().map(|problem| {
        let mut object = Object::new();
        put_name(&mut object, "path", &problem.path);
        object.insert("what".into(), problem.what.as_str().into());
        object.into()
    });
    Value::Array(objects.collect())
}

/// Follows an import: names what is left out.
struct Watch {
    interrupted: Arc<AtomicBool>,
    is_strict: bool,
    left_out: Vec<Problem>,
}

impl ImportObserver for Watch {
    fn progress(&mut self, _: &VolumeImport) -> bool {
        !self.interrupted.load(Ordering::Relaxed)
    }

    fn left_out(&mut self, path: &[u8], error: Error) -> Result<(), Error> {
        let path = path.strip_prefix(b"/").unwrap_or(path);
        if self.is_strict {
            return Err(error.context(shown_path(path)));
        }
        let what = messages::one_line(&error.context("left out"));
        messages::line(&format!("{}: {what}", shown_path(path)));
        self.left_out.push(Problem {
            path: path.to_vec(),
            what,
        });
        Ok(())
    }
}

/// Makes the directory of a store that has nothing yet private: its files hold the data of all
/// files of the volume. Another store is left as it is, since others may read its images. Returns
/// whether the directory is private.
fn keep_others_out(named: &Named) -> anyhow::Result<bool> {
    const OTHERS: u32 = 0o077;
    let words = || show_path(&named.dir);
    let metadata = std::fs::metadata(&named.dir).with_context(words)?;
    let mode = metadata.permissions().mode();
    let is_new = named.store.names()?.is_empty() && named.store.volume_names()?.is_empty();
    let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
    if mode & OTHERS != 0 && is_new && is_own {
        let private = Permissions::from_mode(mode & 0o7777 & !OTHERS);
        std::fs::set_permissions(&named.dir, private).with_context(words)?;
        return Ok(true);
    }
    Ok(mode & OTHERS == 0)
}

/// Makes the volume with the files of `image`.
fn import(
    named: &Named,
    path: &Path,
    (options, now): (&VolumeOptions, i128),
    watch: &mut Watch,
) -> anyhow::Result<VolumeImport> {
    let image = Image::open_path(path, ImageStart::Auto, &OpenOptions::default())
        .map_err(|error| foreign::explain(path, ImageStart::default(), error))?;
    let stored = weald_store::split(path);
    let is_own = |dir: &Path| dir.canonicalize().is_ok_and(|dir| dir == named.dir);
    let name = stored.filter(|(dir, _)| is_own(dir)).map(|(_, name)| name);
    let source = ImportSource {
        image: &image,
        name: name.as_deref(),
    };
    let options = (options, random_uuid()?, now);
    let imported = create_from(&named.store, &named.name, source, options, watch);
    match imported {
        Err(error) if error.kind() == ErrorKind::Busy => Err(error.into()),
        other => other.with_context(|| show_path(path)),
    }
}

/// Sections of the help.
pub const RM_HELP: Help = Help {
    lists: &[],
    notes: &[
        "All files of the volume are gone when the command returns. A mounted volume is not \
         removed: unmount it first. A volume with snapshots is removed with --snapshots only, and \
         one with a snapshot that is held never.",
    ],
    examples: &[("Remove a volume", "weald volume rm /srv/store:home")],
    exit_status: DONE_OR_FAILED,
};

/// Remove a volume and its files from a store
#[derive(Args, Debug)]
#[command(after_help = RM_HELP.short(), after_long_help = RM_HELP.long())]
pub(super) struct RmArgs {
    #[command(flatten)]
    path: VolumePath,
    /// Remove its snapshots, too
    #[arg(long)]
    snapshots: bool,
    #[command(flatten)]
    wait: WaitArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn rm(args: &RmArgs) -> anyhow::Result<ExitCode> {
    let named = Named::open(&args.path.volume)?;
    named.find()?;
    args.wait.until_free(&named.store)?;
    named.refuse_mounted("removed")?;
    weald_volume::remove(&named.store, &named.name, args.snapshots)?;
    let mut output = Output::new();
    if args.json {
        let mut object = Object::new();
        object.insert("removed".into(), named.name.as_str().into());
        output.json(&object.into())?;
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a chunk length or a codec that a volume does not have.
    #[test]
    fn chunks_and_codecs_have_limits() {
        assert_eq!(chunk("128K"), Ok(128 << 10));
        assert_eq!((chunk("4K"), chunk("16M")), (Ok(4 << 10), Ok(16 << 20)));
        for text in ["3", "0", "2K", "96K", "32M", "4G", "-4K", "x", ""] {
            assert!(chunk(text).is_err(), "{text}");
        }
        assert_eq!(codec("zstd:22"), Ok(CodecSpec::Zstd(22)));
        assert_eq!(codec("none"), Ok(CodecSpec::None));
        for text in ["", "zstd:0", "zstd:23", "zstd:", "lz4:1", "xz", "gzip"] {
            assert!(codec(text).is_err(), "{text}");
        }
    }
}
