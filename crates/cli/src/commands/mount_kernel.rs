//! `weald mount --kernel`: the kernel serves the mount, by EROFS and overlayfs.

use super::mount_args::{KernelArgs, MountArgs, Verity};
use crate::foreign;
use crate::interrupt::interrupt_flag;
use crate::open::{default_cache_len, thread_count};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use rustix::mount::MountAttrFlags;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use weald_format::ByteLen;
use weald_fuse::{MountOptions, MountPoint};
use weald_image::{Image, OpenOptions};
use weald_views::composefs::VerityPolicy;
use weald_views::kernel::{
    self, KernelOptions, Methods, UpperLayer, ViewCache, ViewLimit, ViewOptions,
};

/// Directory of the view cache in a store.
pub const STORE_VIEWS: &str = "views";

/// The view cache of root for image files.
const ROOT_VIEWS: &str = "/var/cache/weald/views";

/// Memory for lists while a view is made, besides the cache of the image.
const MAKING_MEMORY_LEN: u64 = 64 << 20;

/// Share of a file system that a view cache may take by default.
const CAPACITY_SHARE: u64 = 4;

/// The method by which an image is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountMethod {
    /// A server shows everything through FUSE.
    Fuse,
    /// The kernel serves the mount: `--kernel`, `-o kernel`.
    Kernel,
    /// A server shows the metadata, in a user namespace: `--overlay`, `-o overlay`.
    Overlay,
}

/// The method that the flags and the words after `-o` ask for. Words count as flags afterwards.
///
/// # Errors
/// Words that no mount knows, words for a mount by the kernel without one, and two methods at once.
pub fn choose_method(args: &mut MountArgs) -> Result<MountMethod> {
    let words = MountOptions::parse(&args.options)?.kernel;
    let flags = &mut args.kernel;
    flags.kernel |= words.is_on;
    flags.overlay |= words.is_overlay;
    if (flags.kernel || flags.overlay) && weald_remote::is_url(&args.image) {
        let shown = weald_remote::shown(&args.image);
        bail!("{shown}: only FUSE mounts an image by URL");
    }
    match (flags.kernel, flags.overlay) {
        (true, true) => bail!("kernel and overlay are two ways to mount: give one of them"),
        (true, false) => Ok(MountMethod::Kernel),
        (false, true) => Ok(MountMethod::Overlay),
        (false, false) if words == weald_fuse::KernelOptions::default() => Ok(MountMethod::Fuse),
        (false, false) => bail!(
            "options upperdir, workdir, adoptupper, verity, fsverity, viewcache and viewlimit are \
             for mounts by the kernel: give --kernel or -o kernel, too"
        ),
    }
}

/// As [`run`], but nothing happens if the image is mounted there: mount -a does not know the mount
/// as that of the line in fstab.
///
/// # Errors
/// As [`run`].
pub fn run_once(args: &MountArgs) -> Result<ExitCode> {
    if is_mounted(args)? {
        Ok(ExitCode::SUCCESS)
    } else {
        run(args)
    }
}

/// Whether overlayfs shows this image on this directory.
///
/// # Errors
/// `Io` without `/proc`.
pub(super) fn is_mounted(args: &MountArgs) -> Result<bool> {
    let dir = args.dir.canonicalize();
    let found = dir.ok().map(|dir| kernel::mount_on(&dir)).transpose()?;
    Ok(found
        .flatten()
        .is_some_and(|mount| mount.image == args.image))
}

/// Mounts the image; returns when the mount is complete.
///
/// # Errors
/// Any error before the mount is complete.
pub fn run(args: &MountArgs) -> Result<ExitCode> {
    kernel::check_rights()?;
    let prepared = Prepared::new(args)?;
    let digest = args.kernel.digest;
    let digest = digest.or(prepared.options.kernel.metadata_digest);
    let kernel_options = KernelOptions {
        upper: prepared.layer(args),
        expected_digest: digest.map(|digest| digest.0),
        attributes: mount_attributes(&prepared.options),
        methods: Methods::default(),
        view: prepared.view_options(),
    };
    let point = prepared.point.as_fd();
    let (image, cache) = (&prepared.image, &prepared.cache);
    let view = kernel::mount(image, cache, &prepared.source, point, &kernel_options)?;
    let is_new = view.is_new;
    // Until the lock of the view is gone, nothing can be removed.
    drop(view);
    if is_new && let Err(error) = kernel::trim(cache, prepared.limit.len_max) {
        log::warn!("the view cache stays as it is: {error:?}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Files and directories of a mount, opened and checked.
pub(super) struct Prepared {
    pub(super) options: MountOptions,
    pub(super) point: MountPoint,
    pub(super) image: Image,
    pub(super) cache: ViewCache,
    /// The image as `/proc/mounts` shows it.
    pub(super) source: OsString,
    limit: ViewLimit,
    verity: VerityPolicy,
    is_cancelled: Box<dyn Fn() -> bool + Sync>,
}

impl Prepared {
    pub(super) fn new(args: &MountArgs) -> Result<Self> {
        let options = MountOptions::parse(&args.options)?;
        refuse_fuse_options(&options)?;
        let (flags, words) = (&args.kernel, &options.kernel);
        if let Some(what) = foreign::describe(&args.image, options.start) {
            bail!("{}: {what}", args.image.display());
        }
        let point = MountPoint::open(&args.dir)?;
        let image = open(args, &options)?;
        let cache = match flags.view_cache.as_ref().or(words.cache.as_ref()) {
            Some(path) => ViewCache::open(path)?,
            None => ViewCache::open(&default_cache(args)?)?,
        };
        let given = flags.view_limit.or(words.cache_len.map(|len| len.0));
        let limit = ViewLimit {
            len_max: match given {
                Some(limit) => limit,
                None => capacity(cache.path())? / CAPACITY_SHARE,
            },
            is_strict: given.is_some(),
        };
        if let Err(error) = weald_sys::raise_open_file_limit() {
            log::info!("limit of open files: {error}");
        }
        let source = match weald_store::split(&args.image) {
            Some(_) => std::path::absolute(&args.image),
            None => args.image.canonicalize(),
        };
        let source = source.with_context(|| args.image.display().to_string())?;
        let name = options.source_name.clone().map(OsString::from);
        let flag = interrupt_flag()?;
        Ok(Self {
            source: name.unwrap_or_else(|| source.into_os_string()),
            verity: verity(flags, words.verity.as_deref()),
            options,
            point,
            image,
            cache,
            limit,
            is_cancelled: Box::new(move || flag.load(Ordering::Relaxed)),
        })
    }

    /// How the view is made.
    pub(super) fn view_options(&self) -> ViewOptions<'_> {
        ViewOptions {
            verity: self.verity,
            thread_count: thread_count(0),
            memory_len: MAKING_MEMORY_LEN,
            limit: self.limit,
            is_cancelled: &*self.is_cancelled,
        }
    }

    /// The writable layer and its work directory.
    pub(super) fn layer<'a>(&'a self, args: &'a MountArgs) -> Option<UpperLayer<'a>> {
        let (flags, words) = (&args.kernel, &self.options.kernel);
        Some(UpperLayer {
            dir: flags.upper.as_deref().or(words.upper.as_deref())?,
            work: flags.work.as_deref().or(words.work.as_deref()),
            is_adopted: flags.adopt_upper || words.adopts_upper,
        })
    }
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

/// Attributes of the mount.
pub(super) fn mount_attributes(options: &MountOptions) -> MountAttrFlags {
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
        ("follow", options.follows_name),
        ("map_uid and map_gid", options.maps_owners()),
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

/// The view cache of an image for which none is named: in its store, unless another user owns the
/// store or can exchange it, or nobody can write to it.
fn default_cache(args: &MountArgs) -> Result<PathBuf> {
    if let Some((store, _)) = weald_store::split(&args.image)
        && !args.kernel.overlay
        && ViewCache::is_safe_in(&store)?
        && rustix::fs::access(&store, rustix::fs::Access::WRITE_OK).is_ok()
    {
        return Ok(store.join(STORE_VIEWS));
    }
    let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(cache) = of("XDG_CACHE_HOME") {
        return Ok(PathBuf::from(cache).join("weald/views"));
    }
    // Root of a user namespace is a user elsewhere.
    if !args.kernel.overlay {
        return Ok(PathBuf::from(ROOT_VIEWS));
    }
    let home = of("HOME").context("there is no $HOME for the view cache: give --view-cache DIR")?;
    Ok(PathBuf::from(home).join(".cache/weald/views"))
}

/// Bytes of the file system that holds `path`.
fn capacity(path: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(path).with_context(|| path.display().to_string())?;
    Ok(ByteLen(stat.f_blocks.saturating_mul(stat.f_frsize)).0)
}
