//! `weald commit`: makes the next image of what a writable layer over an image has changed.

use super::build;
use super::store::add::Adding;
use super::store::import_target::ImportTarget;
use super::store::wait::WaitArgs;
use crate::help::Help;
use crate::input_args::WalkArgs;
use crate::open_store::{open_dir, show_path};
use crate::pack::{DisplayArgs, PackArgs, ResourceArgs};
use crate::shape::{INPUT, OUTPUT};
use crate::writer_name::writer_name;
use anyhow::{Context, bail};
use clap::{Args, ValueHint};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use weald_builder::{
    AddAt, BuildOptions, Layer, LayerKind, StoreSource, UpperXattrs, build_into_store, build_layers,
};
use weald_image::{Image, OpenOptions};
use weald_store::WriteOptions;
use weald_views::kernel::{self, XattrKind};

/// Memory for the index of a store's blocks, bytes.
const INDEX_LEN: u64 = 64 << 20;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "A mount by 'weald mount --kernel --upper DIR' is written to at the speed of the file \
         system of DIR, and keeps there what is changed. Weald reads DIR alone: what it does not \
         have stays in the new image as it is in the base image, and is not read.",
        "SOURCE is such a mount, or DIR after the mount has ended; then --base names the image. \
         While the mount is written to, files that change during the command are left as they are \
         in the base image and named, with exit status 1.",
        "TARGET is STORE:NAME in the store of the base image, for a new image that continues it, \
         or the base image itself, a file, which gets the next generation. The layer stays as it \
         is, over the old image; over the new one, start with an empty one.",
        "Layers that other programs made, such as podman's, are taken with --adopt-upper, if \
         nothing in them depends on another image than the base image: files with data of their \
         own, no renamed directories.",
        "Options about what to keep apply to the layer alone: what they leave out is as in the \
         base image.",
    ],
    examples: &[
        (
            "Mount a version so that it can be changed at the speed of the kernel",
            "weald mount --kernel --upper changes /srv/store:v1 /mnt",
        ),
        (
            "Make the next version of what was changed",
            "weald commit /mnt /srv/store:v2",
        ),
        ("End the mount; the layer stays", "weald umount /mnt"),
        (
            "Append what was changed to an image file with the same tree as version 1",
            "weald commit --base v1.weald changes v1.weald",
        ),
        (
            "Make an image of a layer that another program made over the same tree",
            "weald commit --base /srv/store:v1 --adopt-upper upper /srv/store:v3",
        ),
    ],
    exit_status: &[
        ("0", "The new image or generation is complete."),
        (
            "1",
            "It is complete except for files that could not be read or that changed during the \
             command; standard error names each.",
        ),
        ("2", "The command failed; nothing new is there."),
    ],
};

/// Make the next image of what was changed in a writable layer over an image
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub struct CommitArgs {
    /// Mount by the kernel with a writable layer, or the directory of such a layer
    #[arg(value_hint = ValueHint::DirPath)]
    source: PathBuf,
    /// STORE:NAME of the new image, or the image file that gets the next generation
    #[arg(value_hint = ValueHint::AnyPath)]
    target: PathBuf,
    /// Image, or STORE:NAME, that the layer was made over (default: the mounted one)
    #[arg(
        long,
        value_name = "IMAGE",
        value_hint = ValueHint::FilePath,
        help_heading = INPUT
    )]
    base: Option<PathBuf>,
    /// Take a layer that was made over another tree, if nothing in it depends on that one
    #[arg(long, help_heading = INPUT)]
    adopt_upper: bool,
    /// Such a layer is of a mount with the option userxattr, as users without root make them
    #[arg(long, requires = "adopt_upper", help_heading = INPUT)]
    userxattr: bool,
    /// Replace an image of the same name in the store
    #[arg(long, help_heading = OUTPUT)]
    replace: bool,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    walk: WalkArgs,
    #[command(flatten)]
    pack: PackArgs,
    #[command(flatten)]
    display: DisplayArgs,
    #[command(flatten)]
    resources: ResourceArgs,
}

/// Runs the command.
pub fn run(args: &CommitArgs) -> anyhow::Result<ExitCode> {
    let mut options = args.pack.options(&args.resources)?;
    args.walk.apply(false, &mut options)?;
    options.validate()?;
    if !options.keep_xattrs {
        bail!("--no-xattrs: a layer of overlayfs cannot be read without its xattrs");
    }
    weald_sys::check_preload()?;
    weald_sys::want_large_pages();
    let (upper, base) = upper_and_base(args)?;
    let image = Image::open_path(&base, 0, &OpenOptions::default());
    let image = image.with_context(|| show_path(&base))?;
    let given = if args.userxattr {
        XattrKind::User
    } else {
        XattrKind::Trusted
    };
    let adopted = args.adopt_upper.then_some(given);
    let (shown, over) = (show_path(&upper), image.summary().tree_digest);
    drop(image);
    let root = weald_sys::open_dir(&upper).with_context(|| shown.clone())?;
    let xattrs = match kernel::layer_over(&root, &shown, &over, adopted)? {
        XattrKind::Trusted => UpperXattrs::Trusted,
        XattrKind::User => UpperXattrs::User,
    };
    let layer = Layer {
        kind: LayerKind::Upper { xattrs, over },
        root: Some(root.as_fd()),
        ..Layer::plain(&upper)
    };
    if weald_store::split(&args.target).is_some() {
        return into_store(args, &base, layer, &options);
    }
    if args.replace {
        bail!("--replace is for an image of a store");
    }
    if !is_same_file(&base, &args.target) {
        bail!(
            "{}: expected the base image {}, which gets the next generation, or STORE:NAME in its \
             store",
            show_path(&args.target),
            show_path(&base)
        );
    }
    (options.append, options.at) = (true, Some(AddAt::root()));
    options.allow_removal = true;
    let display = args.display.display()?;
    let start = Instant::now();
    let built = build_layers(&[layer], &args.target, false, &options, &display);
    display.finish();
    build::print(&args.display, &built?, start.elapsed())
}

fn into_store(
    args: &CommitArgs,
    base: &Path,
    layer: Layer<'_>,
    options: &BuildOptions,
) -> anyhow::Result<ExitCode> {
    let Some((dir, name)) = weald_store::split(&args.target) else {
        bail!("{}: expected STORE:NAME", show_path(&args.target));
    };
    let store = open_dir(&dir)?;
    let Some((base_dir, like)) = weald_store::split(base) else {
        bail!(
            "{}: the base image is not in the store of {}: 'weald store import' takes it in; mount \
             it from there",
            show_path(base),
            show_path(&args.target)
        );
    };
    if !is_same_file(&base_dir, &dir) {
        bail!(
            "{}: the base image is in another store than {}",
            show_path(base),
            show_path(&args.target)
        );
    }
    args.wait.until_free(&store)?;
    let write_options = WriteOptions {
        index_len: INDEX_LEN,
        ..WriteOptions::new(writer_name("commit"))
    };
    let target = ImportTarget::open(&store, &dir, write_options)?;
    let adding = Adding {
        store: &store,
        dir: &dir,
        name: &name,
        like: Some(&like),
        index_len: INDEX_LEN,
        replaces: args.replace,
        pack: &|target, observer| {
            let source = StoreSource::Onto(std::slice::from_ref(&layer));
            Ok(build_into_store(source, target, options, observer)?)
        },
    };
    adding.run(target, &args.display)
}

/// The directory of the layer, and the image below it.
fn upper_and_base(args: &CommitArgs) -> anyhow::Result<(PathBuf, PathBuf)> {
    let source = args.source.canonicalize();
    let source = source.with_context(|| show_path(&args.source))?;
    let Some(mount) = kernel::mount_on(&source)? else {
        return match &args.base {
            Some(base) => Ok((source, base.clone())),
            None => bail!(
                "{}: is no mount by 'weald mount --kernel --upper': if it is the directory of a \
                 layer, --base names the image that it was made over",
                show_path(&args.source)
            ),
        };
    };
    let Some(upper) = mount.upper else {
        bail!(
            "{}: this mount has no writable layer, so that nothing was changed: 'weald mount \
             --kernel --upper DIR' makes one",
            show_path(&args.source)
        );
    };
    match &args.base {
        Some(base) => Ok((upper, base.clone())),
        None if mount.image.is_absolute() => Ok((upper, mount.image)),
        None => bail!(
            "{}: the table of mounts has not the whole path of its image: name it with --base",
            show_path(&args.source)
        ),
    }
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let inode = |path| weald_sys::stat_path(path).map(|stat| (stat.dev, stat.ino));
    matches!((inode(one), inode(other)), (Ok(one), Ok(other)) if one == other)
}
