//! Arguments that all reading commands share, and how these open the image.

use crate::looks::Looks;
use crate::{foreign, volume_state};
use clap::{Args, ValueHint};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use weald_format::{ByteLen, Digest, ErrorKind, FileKind};
use weald_image::{Image, ImageStart, Inode, OpenOptions, TreePlace};
use weald_vfs::{Follow, Located, PathGlob, Step, Walker, shown};

/// The image to read and how to open it.
#[derive(Args, Debug, Clone)]
pub struct ImageArgs {
    /// Image file, STORE:NAME or URL
    #[arg(value_hint = ValueHint::FilePath)]
    pub image: PathBuf,
    #[command(flatten)]
    pub trust: TrustArgs,
}

/// The tree to read and how to open it.
#[derive(Args, Debug, Clone)]
pub struct SourceArgs {
    /// Image file, STORE:NAME of an image or a volume, or STORE:VOLUME@SNAPSHOT; with @2 a
    /// generation of an image, and with :/DIR a directory in it
    #[arg(value_hint = ValueHint::FilePath)]
    pub image: PathBuf,
    #[command(flatten)]
    pub trust: TrustArgs,
}

/// Digest, generation and location that the image must have.
#[derive(Args, Debug, Clone)]
pub struct TrustArgs {
    /// Require this image digest: 64 hexadecimal digits
    #[arg(long, value_name = "HEX", value_parser = crate::parse::digest)]
    pub digest: Option<Digest>,
    /// Generation to read (default: the last; weald generations lists them)
    #[arg(long, value_name = "NUMBER", value_parser = crate::parse::number::<u64>)]
    pub generation: Option<u64>,
    /// Directory to search for base images, besides that of the image; repeatable
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub base_dir: Vec<PathBuf>,
    /// Byte offset of the image in the file, or auto to search for it
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = crate::parse::start)]
    pub offset: ImageStart,
    /// Memory limit of the cache for decoded data, 0 for no cache (default: 1/16 of the memory,
    /// between 256M and 2G)
    #[arg(long, value_name = "SIZE", value_parser = crate::parse::size)]
    pub cache: Option<u64>,
}

impl ImageArgs {
    /// Opens the image for a few lookups.
    pub fn open(&self) -> anyhow::Result<Image> {
        self.trust.open(&self.image, 0)
    }

    /// Opens the image for long sequential reads, with prefetch threads.
    pub fn open_for_reading(&self, thread_count: usize) -> anyhow::Result<Image> {
        self.trust.open(&self.image, thread_count)
    }
}

impl SourceArgs {
    /// Opens the tree for a few lookups, of `looks` at most.
    pub fn open(&self, looks: &Looks) -> anyhow::Result<OpenTree> {
        self.open_with(self.trust.options(0), looks)
    }

    /// Opens the tree for long sequential reads of `looks`, with prefetch threads.
    pub fn open_for_reading(&self, looks: &Looks, threads: usize) -> anyhow::Result<OpenTree> {
        self.open_with(self.trust.options(threads), looks)
    }

    /// Opens the tree to read everything in it, with prefetch threads.
    pub fn open_for_everything(&self, thread_count: usize) -> anyhow::Result<OpenTree> {
        self.open_with(
            self.trust.for_everything(thread_count),
            &Looks::everything(),
        )
    }

    fn open_with(&self, options: OpenOptions, looks: &Looks) -> anyhow::Result<OpenTree> {
        let place = TreePlace::parse(&self.image);
        let image = self.trust.open_place_with(&place, options, looks)?;
        Ok(OpenTree {
            image,
            place,
            here: OsString::new(),
        })
    }
}

/// An open tree, or a directory in one.
pub struct OpenTree {
    image: Image,
    place: TreePlace,
    /// The path of the place itself.
    here: OsString,
}

impl std::ops::Deref for OpenTree {
    type Target = Image;

    fn deref(&self) -> &Image {
        &self.image
    }
}

impl OpenTree {
    /// The inode at `path`, which is relative to the place that the name of the source means; an
    /// empty path is that place.
    pub fn locate(&self, path: &OsStr, follow: Follow) -> weald_format::Result<Located> {
        let path = self.place.join(path);
        weald_vfs::resolve(&self.image, path.as_bytes(), follow)
    }

    /// `paths`, or the root if there are none.
    pub fn paths_or_root<'a>(&'a self, paths: &'a [OsString]) -> &'a [OsString] {
        if paths.is_empty() {
            std::slice::from_ref(&self.here)
        } else {
            paths
        }
    }

    /// `paths`, or the place itself if its name has a path in the tree.
    ///
    /// # Errors
    /// If there are none.
    pub fn paths_or_place<'a>(&'a self, paths: &'a [OsString]) -> anyhow::Result<&'a [OsString]> {
        if paths.is_empty() && self.place.path.is_empty() {
            anyhow::bail!("which path? Name one behind the image, or as IMAGE:/PATH");
        }
        Ok(self.paths_or_root(paths))
    }

    /// `paths`, each pattern replaced by the paths that match it, in the order of their
    /// directories. A path that exists is none, and a pattern that nothing matches stays.
    ///
    /// # Errors
    /// If the tree cannot be read.
    /// # Cost
    /// For a pattern, a walk over the tree.
    pub fn expanded(&self, paths: &[OsString]) -> anyhow::Result<Vec<OsString>> {
        let mut expanded = Vec::new();
        for path in paths {
            let is_pattern = path.as_bytes().iter().any(|byte| b"*?[".contains(byte));
            let mut found = Vec::new();
            if is_pattern && self.locate(path, Follow::No).is_err() {
                found = self.matching(path)?;
            }
            if found.is_empty() {
                expanded.push(path.clone());
            }
            expanded.append(&mut found);
        }
        Ok(expanded)
    }

    /// The paths that match a pattern, relative to the place.
    fn matching(&self, pattern: &OsStr) -> anyhow::Result<Vec<OsString>> {
        // What is no pattern is a path that is not there.
        let Ok(glob) = PathGlob::parse(pattern.as_bytes()) else {
            return Ok(Vec::new());
        };
        let root = self.locate(&self.here, Follow::Yes)?;
        let above = root.path.len() + usize::from(!root.path.is_empty());
        let mut walker = Walker::new(&self.image, root);
        let mut found = Vec::new();
        while let Some(step) = walker.step()? {
            let path = walker.path().get(above..).unwrap_or_default();
            if matches!(step, Step::Enter(_)) && !path.is_empty() && glob.matches(path) {
                found.push(OsStr::from_bytes(path).to_owned());
            }
        }
        Ok(found)
    }

    /// The directory that the name of the source means; that is the root without a path in it.
    ///
    /// # Errors
    /// If it is no directory.
    pub fn directory(&self) -> anyhow::Result<Inode> {
        let place = self.locate(&self.here, Follow::Yes)?;
        if place.inode.kind != FileKind::Directory {
            anyhow::bail!("{}: is no directory", shown(&place.path));
        }
        Ok(place.inode)
    }
}

impl TrustArgs {
    /// Opens the image at `path`.
    pub fn open(&self, path: &Path, prefetch_threads: usize) -> anyhow::Result<Image> {
        self.open_with(path, self.options(prefetch_threads))
    }

    /// Opens the image at `path` to read everything in it.
    pub fn open_for_everything(&self, path: &Path, threads: usize) -> anyhow::Result<Image> {
        self.open_with(path, self.for_everything(threads))
    }

    /// Opens the tree of a place: an image, a volume, or a snapshot of a volume.
    fn open_place_with(
        &self,
        place: &TreePlace,
        options: OpenOptions,
        looks: &Looks,
    ) -> anyhow::Result<Image> {
        let named = place.generation()?;
        if named.is_some() && self.generation.is_some() {
            anyhow::bail!(
                "{}: the name tells a generation, and so does --generation: leave one out",
                shown(place.image.as_os_str().as_bytes())
            );
        }
        let generation = named.or(options.generation);
        let options = OpenOptions {
            generation,
            ..options
        };
        let error = match Image::open_path(&place.image, self.offset, &options) {
            Ok(image) => return Ok(image),
            Err(error) => error,
        };
        let shown = looks.shown(place);
        if error.kind() == ErrorKind::NotFound
            && let Some(image) =
                volume_state::image::open(&place.image, &options, shown.as_deref())?
        {
            return Ok(image);
        }
        Err(foreign::explain(&place.image, self.offset, error))
    }

    /// Opens what differs between two states of a volume, if the paths name such.
    pub fn open_changed(&self, paths: [&Path; 2]) -> anyhow::Result<Option<[Image; 2]>> {
        volume_state::image::open_changed(paths, &self.options(0))
    }

    fn for_everything(&self, threads: usize) -> OpenOptions {
        OpenOptions {
            reads_everything: true,
            ..self.options(threads)
        }
    }

    fn options(&self, prefetch_threads: usize) -> OpenOptions {
        OpenOptions {
            cache_len: self.cache.map_or_else(default_cache_len, ByteLen),
            expected_digest: self.digest,
            generation: self.generation,
            prefetch_threads,
            base_dirs: self.base_dir.clone(),
            ..OpenOptions::default()
        }
    }

    fn open_with(&self, path: &Path, options: OpenOptions) -> anyhow::Result<Image> {
        let opened = Image::open_path(path, self.offset, &options);
        opened.map_err(|error| foreign::explain(path, self.offset, error))
    }
}

/// Refuses STORE:NAME and a URL, which `of_store` and `of_object` are about.
pub fn refuse_all_but_files(path: &Path, of_object: &str, of_store: &str) -> anyhow::Result<()> {
    if weald_remote::is_url(path) {
        anyhow::bail!("{}: {of_object}", weald_remote::shown(path));
    }
    if weald_store::split(path).is_some() {
        anyhow::bail!("{}: {of_store}", shown(path.as_os_str().as_bytes()));
    }
    Ok(())
}

/// Refuses STORE:NAME, and a URL, as the file that a command writes.
pub fn refuse_stored_target(path: &Path) -> anyhow::Result<()> {
    if weald_remote::is_url(path) {
        let shown = weald_remote::shown(path);
        anyhow::bail!(
            "{shown}: names an object of a server, which this command does not write to: write a \
             file, then 'weald publish FILE {shown}'"
        );
    }
    let Some((store, name)) = weald_store::split(path) else {
        return Ok(());
    };
    let (path, store) = (
        shown(path.as_os_str().as_bytes()),
        shown(store.as_os_str().as_bytes()),
    );
    anyhow::bail!(
        "{path}: names an image of a store, which this command does not write to: \
         'weald store add {store} SOURCE --name {name}' builds one there, and \
         'weald store import {store} IMAGE' puts an image file there"
    )
}

/// Default limit of the cache in bytes, on this machine.
pub fn default_cache_len() -> ByteLen {
    weald_image::default_cache_len(weald_sys::memory_len())
}

/// Number of threads: `asked`, or one per processor for 0.
pub fn thread_count(asked: usize) -> usize {
    let processors = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if asked == 0 { processors() } else { asked }
}

/// Lets new files of this process be for their owner alone if `image` lies in a store that other
/// users cannot enter: what is in a store is for who may read the store.
pub fn keep_private(image: &Path) {
    if let Some((store, _)) = weald_store::split(image) {
        keep_private_of_store(&store);
    }
}

/// As [`keep_private`], for the directory of a store.
pub fn keep_private_of_store(store: &Path) {
    let keeps_others_out = store
        .canonicalize()
        .is_ok_and(|store| keeps_others_out(&store));
    if keeps_others_out {
        weald_io::keep_new_files_private();
    }
}

/// Whether users other than the owner, and root, are kept out of `dir`, by its mode or by that of a
/// directory above it. A group does not count: a new file may belong to another one.
fn keeps_others_out(dir: &Path) -> bool {
    const OTHERS_ENTER: u32 = 0o001;
    dir.ancestors().any(|dir| {
        let metadata = std::fs::metadata(dir);
        metadata.map_or(true, |metadata| {
            metadata.permissions().mode() & OTHERS_ENTER == 0
        })
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use weald_image::page_len_max;

    /// Would catch: a help text whose default cache size differs from the code's, or whose share
    /// for metadata does.
    #[test]
    fn help_tells_the_default_cache() {
        assert_eq!(page_len_max(1 << 40), (1 << 40) / 16);
        assert_eq!(weald_image::default_cache_len(16 << 30).0, 1 << 30);
        let len_for = weald_image::default_cache_len;
        let (least, most) = (len_for(0).0 >> 20, len_for(u64::MAX).0 >> 30);
        let default = format!("default: 1/16 of the memory, between {least}M and {most}G");
        let share = format!("{}M or 1/16 of the cache", page_len_max(0) >> 20);
        let mut all = crate::args::Cli::command();
        let words = |command: &mut clap::Command| {
            let help = command.render_long_help().to_string();
            let words: Vec<&str> = help.split_whitespace().collect();
            words.join(" ")
        };
        for name in ["cat", "mount", "serve"] {
            let help = words(all.find_subcommand_mut(name).expect("a command"));
            assert!(help.contains(&default), "{name}: {help}");
        }
        let help = words(&mut all);
        assert!(help.contains(&share), "{help}");
    }
}
