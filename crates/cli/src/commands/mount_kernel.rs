//! `weald mount --kernel`: the kernel serves the mount, by EROFS and overlayfs.

use super::mount::MountArgs;
use crate::foreign;
use crate::interrupt::interrupt_flag;
use crate::open::{default_cache_len, thread_count};
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum, ValueHint};
use rustix::mount::MountAttrFlags;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use weald_format::{ByteLen, Digest};
use weald_fuse::{MountOptions, MountPoint};
use weald_image::{Image, OpenOptions};
use weald_views::composefs::VerityPolicy;
use weald_views::kernel::{self, KernelOptions, Methods, ViewCache, ViewOptions};

/// Directory of the view cache in a store.
pub const STORE_VIEWS: &str = "views";

/// Memory for lists while a view is made, besides the cache of the image.
const MAKING_MEMORY_LEN: u64 = 64 << 20;

/// Share of a file system that a view cache may take by default.
const CAPACITY_SHARE: u64 = 4;

/// Whether the kernel verifies objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Verity {
    /// Always: fail without fs-verity
    Require,
    /// If the file system of the view cache has fs-verity
    Try,
    /// Never
    Off,
}

impl From<Verity> for VerityPolicy {
    fn from(verity: Verity) -> Self {
        match verity {
            Verity::Require => Self::Require,
            Verity::Try => Self::Try,
            Verity::Off => Self::Off,
        }
    }
}

/// Flags of a mount that the kernel serves.
#[derive(Debug, Default, Args)]
pub struct KernelArgs {
    /// Let the kernel serve the mount, with EROFS and overlayfs, without a server (root)
    #[arg(long, conflicts_with_all = ["prefetch", "record", "trace", "isolated", "foreground",
        "log"])]
    pub kernel: bool,
    /// Directory of a writable layer, which keeps what is changed; it is made if it is missing
    #[arg(long, value_name = "DIR", requires = "kernel", value_hint = ValueHint::DirPath)]
    pub upper: Option<PathBuf>,
    /// Work directory of the writable layer, on its file system (default: beside the layer; weald
    /// umount removes it)
    #[arg(long, value_name = "DIR", requires = "upper", value_hint = ValueHint::DirPath)]
    pub work: Option<PathBuf>,
    /// Whether the kernel verifies data by fs-verity (default: try)
    #[arg(long, value_name = "WHEN", requires = "kernel", value_enum)]
    pub verity: Option<Verity>,
    /// Require this fs-verity digest of the metadata image: 64 hexadecimal digits, as mkcomposefs
    /// --print-digest prints for the same tree
    #[arg(long, value_name = "HEX", requires = "kernel", value_parser = crate::parse::digest)]
    pub digest: Option<Digest>,
    /// Directory of metadata images and objects (default: as below)
    #[arg(long, value_name = "DIR", requires = "kernel", value_hint = ValueHint::DirPath)]
    pub view_cache: Option<PathBuf>,
    /// Limit of the view cache: when a view was made, others that no mount has are removed beyond
    /// it (default: a quarter of the file system)
    #[arg(long, value_name = "SIZE", requires = "kernel", value_parser = crate::parse::size)]
    pub view_limit: Option<u64>,
}

/// Whether the flags or the words after `-o` ask for a mount by the kernel.
///
/// # Errors
/// Words that no mount knows, and words for such a mount without `kernel`.
pub fn is_wanted(args: &MountArgs) -> Result<bool> {
    let words = MountOptions::parse(&args.options)?.kernel;
    let is_on = args.kernel.kernel || words.is_on;
    if !is_on && words != weald_fuse::KernelOptions::default() {
        bail!(
            "options upperdir, workdir, verity, fsverity, viewcache and viewlimit are for mounts \
             by the kernel: give --kernel or -o kernel, too"
        );
    }
    Ok(is_on)
}

/// As [`run`], but nothing happens if the image is mounted there: mount -a does not know the mount
/// as that of the line in fstab.
///
/// # Errors
/// As [`run`].
pub fn run_once(args: &MountArgs) -> Result<ExitCode> {
    let dir = args.dir.canonicalize();
    let found = dir.ok().map(|dir| kernel::mount_on(&dir)).transpose()?;
    match found.flatten() {
        Some(mount) if mount.image == args.image => Ok(ExitCode::SUCCESS),
        _ => run(args),
    }
}

/// Mounts the image; returns when the mount is live.
///
/// # Errors
/// Whatever keeps the mount from going live.
pub fn run(args: &MountArgs) -> Result<ExitCode> {
    kernel::check_rights()?;
    let options = MountOptions::parse(&args.options)?;
    refuse_fuse_options(&options)?;
    let (flags, words) = (&args.kernel, &options.kernel);
    if let Some(what) = foreign::describe(&args.image, options.start) {
        bail!("{}: {what}", args.image.display());
    }
    let point = MountPoint::open(&args.dir)?;
    let image = open(args, &options)?;
    let cache_path = match flags.view_cache.as_ref().or(words.cache.as_ref()) {
        Some(path) => path.clone(),
        None => default_cache(&args.image)?,
    };
    let cache = ViewCache::open(&cache_path)?;
    let limit = flags.view_limit.or(words.cache_len.map(|len| len.0));
    let limit = match limit {
        Some(limit) => limit,
        None => capacity(cache.path())? / CAPACITY_SHARE,
    };
    if let Err(error) = weald_sys::raise_open_file_limit() {
        log::info!("limit of open files: {error}");
    }
    let flag = interrupt_flag()?;
    let view = ViewOptions {
        verity: verity(flags, words.verity.as_deref()),
        thread_count: thread_count(0),
        memory_len: MAKING_MEMORY_LEN,
        is_cancelled: &|| flag.load(Ordering::Relaxed),
    };
    let digest = flags.digest.or(words.metadata_digest);
    let kernel_options = KernelOptions {
        upper: flags.upper.as_deref().or(words.upper.as_deref()),
        work: flags.work.as_deref().or(words.work.as_deref()),
        expected_digest: digest.map(|digest| digest.0),
        attributes: attributes(&options),
        methods: Methods::default(),
        view,
    };
    let source = match weald_store::split(&args.image) {
        Some(_) => std::path::absolute(&args.image),
        None => args.image.canonicalize(),
    };
    let source = source.with_context(|| args.image.display().to_string())?;
    let is_new = {
        use std::os::fd::AsFd;
        let source = options
            .source_name
            .clone()
            .map_or(source.into_os_string(), Into::into);
        kernel::mount(&image, &cache, &source, point.as_fd(), &kernel_options)?.is_new
    };
    if is_new && let Err(error) = kernel::trim(&cache, limit) {
        log::warn!("the view cache stays as it is: {error:?}");
    }
    Ok(ExitCode::SUCCESS)
}

fn open(args: &MountArgs, options: &MountOptions) -> Result<Image> {
    let open_options = OpenOptions {
        cache_len: options.cache_len.unwrap_or_else(default_cache_len),
        expected_digest: options.expected_digest,
        generation: options.generation,
        prefetch_threads: 0,
        base_dirs: options.base_dirs.clone(),
        ..OpenOptions::default()
    };
    let opened = Image::open_path(&args.image, options.start, &open_options);
    opened.map_err(|error| foreign::explain(&args.image, options.start, error))
}

fn verity(flags: &KernelArgs, word: Option<&str>) -> VerityPolicy {
    let word = word.and_then(|word| Verity::from_str(word, false).ok());
    flags.verity.or(word).unwrap_or(Verity::Try).into()
}

fn attributes(options: &MountOptions) -> MountAttrFlags {
    let mut flags = MountAttrFlags::empty();
    flags.set(MountAttrFlags::MOUNT_ATTR_NODEV, !options.has_devices);
    flags.set(MountAttrFlags::MOUNT_ATTR_NOSUID, !options.has_suid);
    flags.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, options.is_noexec);
    flags.set(MountAttrFlags::MOUNT_ATTR_NOATIME, options.is_noatime);
    flags
}

/// Refuses options that only a mount through FUSE has.
fn refuse_fuse_options(options: &MountOptions) -> Result<()> {
    let given = [
        (
            "uid, gid and umask",
            options.overrides != weald_fuse::Overrides::default(),
        ),
        ("subdir", options.subdir.is_some()),
        ("workers", options.worker_count.is_some()),
        ("max_readahead", options.read_ahead_len.is_some()),
        ("subtype", options.subtype.is_some()),
        ("allow_other and allow_root", options.access.is_some()),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((name, _)) => bail!(
            "option {name}: a mount by the kernel has no such option; leave it out, or mount \
             through FUSE without --kernel"
        ),
        None => Ok(()),
    }
}

/// The view cache of an image for which none is named.
fn default_cache(image: &Path) -> Result<PathBuf> {
    if let Some((store, _)) = weald_store::split(image) {
        return Ok(store.join(STORE_VIEWS));
    }
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/cache/weald/views"));
    }
    let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = of("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| of("HOME").map(|home| PathBuf::from(home).join(".cache")));
    let cache = cache.context("there is no $HOME for the view cache: give --view-cache DIR")?;
    Ok(cache.join("weald/views"))
}

/// Bytes of the file system that holds `path`.
fn capacity(path: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(path).with_context(|| path.display().to_string())?;
    Ok(ByteLen(stat.f_blocks.saturating_mul(stat.f_frsize)).0)
}
