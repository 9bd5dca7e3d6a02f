//! What a command packs: directories, listed files, a stream, or the image of another file system.

use crate::choice_args::{read_list, separator};
use crate::open_store::show_path;
use crate::shape::{INPUT, SELECTION};
use anyhow::{Context, bail};
use clap::{Args, ValueEnum, ValueHint};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use weald_builder::{
    AddAt, BuildOptions, FollowLinks, Layer, Observer, Report, TakePath, build_layers, list_layers,
};
use weald_filter::PathList;
use weald_format::{Error, Result};
use weald_ingest::{
    FileForm, FileFormat, Format, InputStream, build_from_file, build_from_stream, detect,
    list_file, list_stream,
};
use weald_vfs::shown;

/// Kind of input.
#[derive(Args, Debug)]
pub struct InputArgs {
    /// Format of the input stream (default: detected from its first bytes)
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        help_heading = INPUT
    )]
    pub from: Option<FormatWord>,
    /// Read the tree from SOURCE, an image file of EROFS or SquashFS, without mounting it
    #[arg(
        long,
        conflicts_with_all = ["from", "contents_root"],
        hide_short_help = true,
        help_heading = INPUT
    )]
    pub from_image: bool,
    /// Directory with the contents of the files that an mtree description names
    #[arg(
        long,
        value_name = "DIR",
        value_hint = ValueHint::DirPath,
        hide_short_help = true,
        help_heading = INPUT
    )]
    pub contents_root: Option<PathBuf>,
    /// Directory of the files that --from paths lists (default: the working directory)
    #[arg(
        long,
        value_name = "DIR",
        value_hint = ValueHint::DirPath,
        requires = "from",
        hide_short_help = true,
        help_heading = INPUT
    )]
    pub root: Option<PathBuf>,
}

/// How directories are read.
#[derive(Args, Debug)]
pub struct WalkArgs {
    /// Leave out directories in which nothing but directories is left
    #[arg(long, hide_short_help = true, help_heading = SELECTION)]
    prune_empty_dirs: bool,
    /// Fail, with no image, if a file cannot be read or changes during the build
    #[arg(long, hide_short_help = true, help_heading = SELECTION)]
    strict: bool,
}

impl WalkArgs {
    /// Stores the given values in `options`; `is_stream` if no directory is packed.
    ///
    /// # Errors
    /// If they were given for a stream.
    pub fn apply(&self, is_stream: bool, options: &mut BuildOptions) -> anyhow::Result<()> {
        if is_stream && (self.prune_empty_dirs || self.strict) {
            bail!("--prune-empty-dirs and --strict are for directories, not for streams");
        }
        options.prune_empty_dirs = self.prune_empty_dirs;
        options.is_strict = self.strict;
        Ok(())
    }
}

/// Which symlinks are followed.
#[derive(Args, Debug)]
pub struct FollowArgs {
    /// Pack what symlinks lead to, inside and outside of the source, in place of them
    #[arg(
        long,
        conflicts_with = "dereference_unsafe",
        hide_short_help = true,
        help_heading = SELECTION
    )]
    dereference: bool,
    /// Do so only where a symlink leads out of the source: absolute ones, those with more '..' than
    /// directories above them, and those with a '..' that is not at the beginning
    #[arg(long, hide_short_help = true, help_heading = SELECTION)]
    dereference_unsafe: bool,
}

impl FollowArgs {
    /// Stores the given values in `options`; `is_stream` if no directory is packed.
    ///
    /// # Errors
    /// If they were given for a stream.
    pub fn apply(&self, is_stream: bool, options: &mut BuildOptions) -> anyhow::Result<()> {
        if is_stream && (self.dereference || self.dereference_unsafe) {
            bail!("--dereference and --dereference-unsafe are for directories, not for streams");
        }
        options.follow = match (self.dereference, self.dereference_unsafe) {
            (true, _) => FollowLinks::All,
            (false, true) => FollowLinks::Unsafe,
            (false, false) => FollowLinks::None,
        };
        Ok(())
    }
}

/// What is packed.
pub enum Input {
    /// Directories, each laid over those before it.
    Directories(Directories),
    /// A stream.
    Stream(InputStream, Format),
    /// An archive or an image that is read at any place.
    AnyPlace(PathBuf, FileFormat),
}

/// Directories, and their places in the tree.
pub struct Directories {
    dirs: Vec<(PathBuf, AddAt)>,
    /// The only paths that are taken of them.
    list: Option<PathList>,
}

impl Directories {
    /// The directories as the builder takes them.
    pub fn layers(&self) -> Vec<Layer<'_>> {
        let dirs = self.dirs.iter();
        dirs.map(|(dir, at)| Layer {
            at: at.clone(),
            list: self.list.as_ref(),
            ..Layer::plain(dir)
        })
        .collect()
    }
}

impl Input {
    /// Whether no directory is packed.
    pub fn is_stream(&self) -> bool {
        !matches!(self, Self::Directories(_))
    }

    /// Builds an image of the source at `target`.
    ///
    /// # Errors
    /// As [`build_layers`], [`build_from_stream`] and [`build_from_file`].
    pub fn build(
        self,
        target: &Path,
        overwrite: bool,
        options: &BuildOptions,
        observer: &dyn Observer,
    ) -> Result<Report> {
        match self {
            Self::Directories(dirs) => {
                build_layers(&dirs.layers(), target, overwrite, options, observer)
            }
            Self::Stream(stream, format) => {
                build_from_stream(stream, format, target, overwrite, options, observer)
            }
            Self::AnyPlace(path, format) => {
                build_from_file((&path, format), target, overwrite, options, observer)
            }
        }
    }
}

impl Input {
    /// Calls `take` for each entry that [`Input::build`] would pack. Returns the count of problems.
    ///
    /// # Errors
    /// As [`list_layers`], [`list_stream`] and [`list_file`].
    pub fn list(
        self,
        target: &Path,
        options: &BuildOptions,
        observer: &dyn Observer,
        take: &mut TakePath<'_>,
    ) -> Result<u64> {
        match self {
            Self::Directories(dirs) => list_layers(&dirs.layers(), target, options, observer, take),
            Self::Stream(stream, format) => {
                list_stream(stream, format, target, options, observer, take)
            }
            Self::AnyPlace(path, format) => {
                list_file((&path, format), target, options, observer, take)
            }
        }
    }
}

impl InputArgs {
    /// Opens the sources: one stream (`-`, or a file), one archive or image of another file system,
    /// or directories.
    ///
    /// # Errors
    /// Streams that cannot be opened, lists that cannot be read, and options that do not fit.
    pub fn input(&self, sources: &[PathBuf]) -> anyhow::Result<Input> {
        let standard = Path::new("-");
        let is_stream = self.from_image || self.from.is_some();
        let found = match sources {
            [source] if source != standard => detect(source).ok().flatten(),
            _ => None,
        };
        let source = match sources {
            [source] if is_stream || found.is_some() || source == standard => source,
            [_] => return self.directories(sources),
            _ if is_stream || sources.iter().any(|source| source == standard) => {
                bail!("several sources: only directories can be packed together")
            }
            _ => return self.directories(sources),
        };
        let is_standard = source == standard;
        if self.from_image && is_standard {
            bail!(
                "--from-image reads the image in any order, which standard input does not allow: \
                 name a file"
            );
        }
        let any_place = |format| Ok(Input::AnyPlace(source.clone(), format));
        if self.from_image {
            return match found {
                Some(FileForm::AnyPlace(FileFormat::Squashfs)) => any_place(FileFormat::Squashfs),
                _ => any_place(FileFormat::Erofs),
            };
        }
        let word = self.from.unwrap_or(FormatWord::Auto);
        if self.contents_root.is_some() && word != FormatWord::Mtree {
            bail!("--contents-root is for mtree descriptions: add --from mtree, or leave it out");
        }
        if word == FormatWord::Paths {
            return self.listed(source);
        }
        if self.root.is_some() {
            bail!("--root is for lists of files to pack: add --from paths, or leave it out");
        }
        match (word, found) {
            (FormatWord::Zip, _) if is_standard => bail!(
                "a zip archive is read at any place, which standard input does not allow: name a \
                 file"
            ),
            (FormatWord::Zip, _) => return any_place(FileFormat::Zip),
            (FormatWord::Auto, Some(FileForm::AnyPlace(format))) => return any_place(format),
            _ => {}
        }
        let stream: InputStream = if is_standard {
            Box::new(std::io::stdin())
        } else {
            let file = File::open(source);
            Box::new(file.map_err(|e| Error::io(source.display().to_string(), e))?)
        };
        let format = match word {
            // An archive was taken above.
            FormatWord::Auto | FormatWord::Zip => Format::Auto,
            FormatWord::Tar => Format::Tar,
            FormatWord::Cpio => Format::Cpio,
            FormatWord::Lines => Format::Lines,
            FormatWord::Listing | FormatWord::Paths => Format::Listing,
            FormatWord::Mtree => Format::Mtree {
                contents: self.contents_root.clone(),
            },
        };
        Ok(Input::Stream(stream, format))
    }

    fn directories(&self, sources: &[PathBuf]) -> anyhow::Result<Input> {
        if self.contents_root.is_some() {
            bail!(
                "--contents-root is for mtree descriptions, and the source is a directory: leave \
                 it out"
            );
        }
        let dirs = sources.iter().map(|source| placed(source));
        Ok(Input::Directories(Directories {
            dirs: dirs.collect::<Result<_>>()?,
            list: None,
        }))
    }

    /// The files that the list `file` names.
    fn listed(&self, file: &Path) -> anyhow::Result<Input> {
        let text = read_list(file).with_context(|| show_path(file))?;
        let root = self.root.as_deref().unwrap_or(Path::new("."));
        let real = root.canonicalize().with_context(|| show_path(root))?;
        let end = separator(&text);
        let paths = text.split(|byte| *byte == end);
        let below: anyhow::Result<Vec<&[u8]>> = paths.map(|path| below_root(path, &real)).collect();
        let list = PathList::new(below?).with_context(|| show_path(file))?;
        Ok(Input::Directories(Directories {
            dirs: vec![(root.to_owned(), AddAt::root())],
            list: Some(list),
        }))
    }
}

/// The part of `path` below `root`; a relative path is below it already.
fn below_root<'a>(path: &'a [u8], root: &Path) -> anyhow::Result<&'a [u8]> {
    if path.first() != Some(&b'/') {
        return Ok(path);
    }
    match Path::new(OsStr::from_bytes(path)).strip_prefix(root) {
        Ok(below) => Ok(below.as_os_str().as_bytes()),
        Err(_) => bail!(
            "{}: is not below {}: name a directory above it with --root",
            shown(path),
            show_path(root)
        ),
    }
}

/// Splits `DIRECTORY:/PATH`, a directory and its place in the image. A directory that is called
/// like this wins.
fn placed(source: &Path) -> Result<(PathBuf, AddAt)> {
    let bytes = source.as_os_str().as_bytes();
    let cut = bytes.windows(2).rposition(|pair| pair == b":/");
    match cut.filter(|_| source.symlink_metadata().is_err()) {
        None => Ok((source.to_owned(), AddAt::root())),
        Some(cut) => {
            let (dir, at) = bytes.split_at(cut);
            let at = AddAt::new(at.get(1..).unwrap_or_default(), weald_sys::effective_ids())?;
            Ok((OsStr::from_bytes(dir).into(), at))
        }
    }
}

/// Format of the input stream.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum FormatWord {
    /// Detect tar, cpio, zip and mtree, and images of EROFS and SquashFS, from the first bytes
    Auto,
    /// A tar archive: v7, ustar, GNU or pax
    Tar,
    /// A cpio archive: newc or crc, such as an initramfs
    Cpio,
    /// A zip archive: a file, not standard input
    Zip,
    /// Paths that end in zero bytes, as find -print0 writes them
    Listing,
    /// Paths, one per line
    Lines,
    /// An mtree(5) description; contents come from --contents-root
    Mtree,
    /// Paths of files to pack, below --root; they end in zero bytes, or else in newlines
    Paths,
}
