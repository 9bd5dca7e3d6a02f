//! `weald store gc`.

use super::show::allocated_len;
use super::store_lock::open_lock;
use super::views;
use super::wait::WaitArgs;
use crate::commands::mount_kernel::STORE_VIEWS;
use crate::help::Help;
use crate::interrupt::interrupt_flag;
use crate::json::{self, Object};
use crate::messages;
use crate::open_store::{StoreDir, open, show_path};
use crate::output::Output;
use crate::progress::{bytes, count};
use crate::runtime_dir::runtime_dir_path;
use crate::status::exit_code;
use crate::writer_name::writer_name;
use anyhow::bail;
use clap::Args;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weald_builder::{Observer, Problem, Progress, ReencodeOptions, Reencoded, reencode};
use weald_daemon::RuntimeDir;
use weald_format::{Error, ErrorKind};
use weald_store::{CollectOptions, Collected, Store, StoreWriter, WriteOptions};
use weald_views::kernel::{self, ViewCache};
use weald_volume::settle_all;

/// Sections of the help.
pub const GC_HELP: Help = Help {
    lists: &[],
    notes: &[
        "Gc works while images of the store are mounted and read. It removes segment files in \
         which no image has a block, and copies the used blocks of sparse ones. In the others it \
         frees unused ranges in place if the file system can. A segment file of which a used block \
         cannot be read stays as it is; gc goes on, and names the images and volumes that use the \
         block.",
        "Before that, gc writes blocks of volumes again of which files use less than 80%, unless \
         --reencode-below is 0, and encodes blocks of images again of which they use less than \
         --reencode-below, without the unused data. An image that gets such blocks has a new \
         image digest; its tree digest stays. Images that are being read, base images of others, \
         and images with several generations stay as they are.",
        "If a volume of the store is mounted, by the same user, its server collects while the \
         volume goes on. Blocks of images are then not encoded again, and the file meta keeps the \
         space of removed names and attributes. Gc is refused while the volume is being sealed or \
         an image is being added; a seal that begins later makes gc wait.",
        "Gc also removes the views of weald mount --kernel of images that are no longer in the \
         store, unless a mount has them. With --views gc empties the whole view cache and leaves \
         the blocks of the store alone. STORE may also be the directory of a --view-cache. Mounted \
         views stay, in whatever mount namespace they are.",
        "The server of a mounted volume collects by itself, too. --pause ends that for this store, \
         until --resume; segments without any used block still go. Gc works meanwhile.",
        "Gc can be interrupted or killed at any moment. Its work until then stays done, and \
         the next gc continues.",
    ],
    examples: &[
        (
            "Return the space of removed images",
            "weald store gc /srv/store",
        ),
        (
            "Return what costs no copying",
            "weald store gc --copy-below 0 /srv/store",
        ),
        (
            "Keep all image digests",
            "weald store gc --reencode-below 0 /srv/store",
        ),
        (
            "Copy at most a gigabyte",
            "weald store gc --max-copy 1G /srv/store",
        ),
        (
            "Let the servers of the store copy nothing for a while",
            "weald store gc --pause /srv/store",
        ),
        (
            "Let them collect again",
            "weald store gc --resume /srv/store",
        ),
        (
            "Remove the views that no mount has",
            "weald store gc --views /srv/store",
        ),
    ],
    exit_status: &[
        ("0", "The command did its work."),
        (
            "1",
            "The command did its work, apart from segment files with damaged blocks, or of images \
             with damaged maps.",
        ),
        ("2", "The command failed; standard error says why."),
    ],
};

/// Return the space of blocks that no image of the store has
#[derive(Args, Debug)]
#[command(after_help = GC_HELP.short(), after_long_help = GC_HELP.long())]
pub(super) struct GcArgs {
    #[command(flatten)]
    location: StoreDir,
    #[command(flatten)]
    wait: WaitArgs,
    /// Copy what is used of a segment file, and remove the file, if less than this share of it is
    /// used; 0 copies nothing
    #[arg(long, value_name = "PERCENT", default_value_t = 80,
        value_parser = clap::value_parser!(u64).range(0..=100))]
    copy_below: u64,
    /// Copy at most this many bytes; the next gc continues
    #[arg(long, value_name = "SIZE", value_parser = crate::parse::size)]
    max_copy: Option<u64>,
    /// Encode a block again if less than this share of its data is used; 0 encodes none
    /// (default: 50)
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(0..=100))]
    reencode_below: Option<u64>,
    /// Encode at most this much data per second (default: no limit)
    #[arg(long, value_name = "SIZE", value_parser = crate::parse::size)]
    reencode_rate: Option<u64>,
    /// Memory limit for encoding: larger blocks stay as they are
    #[arg(short, long, value_name = "SIZE", default_value = "128M",
        value_parser = crate::parse::size)]
    memory: u64,
    /// Collect the view cache of the store instead: remove views that no mount by the kernel has,
    /// and their objects
    #[arg(long, conflicts_with_all = ["max_copy", "reencode_rate"])]
    views: bool,
    /// Let the servers of mounted volumes not collect by themselves
    #[arg(long, conflicts_with_all = ["max_copy", "reencode_rate", "views"])]
    pause: bool,
    /// Let them collect by themselves again
    #[arg(long, conflicts_with_all = ["max_copy", "reencode_rate", "views", "pause"])]
    resume: bool,
    /// With --views: keep views that were used last, within this limit of all views together
    #[arg(long, value_name = "SIZE", requires = "views", default_value = "0",
        value_parser = crate::parse::size)]
    view_limit: u64,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

/// Cancels encoding after a signal.
struct Interrupt(Arc<AtomicBool>);

impl Observer for Interrupt {
    fn progress(&self, _: &Progress) {}

    fn problem(&self, _: &Problem) {}

    fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Collects the view cache of a store, or one beside a store.
fn collect_views(args: &GcArgs) -> anyhow::Result<ExitCode> {
    let place = &args.location.store;
    let path = if weald_store::is_store(place) {
        place.join(STORE_VIEWS)
    } else {
        place.clone()
    };
    let done = match ViewCache::find(&path)? {
        Some(cache) => kernel::collect(&cache, args.view_limit, true)?,
        None if weald_store::is_store(place) => Some(kernel::Collected::default()),
        None => bail!(
            "{}: neither a store nor the view cache of weald mount --kernel is here",
            show_path(place)
        ),
    };
    let done = done.unwrap_or_default();
    let mut output = Output::new();
    if args.json {
        let mut json = Object::new();
        for (name, value) in [
            ("removed_view_count", done.removed_view_count),
            ("removed_object_count", done.removed_object_count),
            ("removed_bytes", done.removed_len),
            ("kept_view_count", done.kept_view_count),
            ("mounted_view_count", done.mounted_view_count),
            ("kept_bytes", done.kept_len),
        ] {
            json.insert(name.into(), value.into());
        }
        output.json(&json.into())?;
    } else if !args.quiet {
        output.text(&format!(
            "views removed  {}, with {} objects, {}\nviews kept     {}, {} of them mounted, {}\n",
            count(done.removed_view_count),
            count(done.removed_object_count),
            bytes(done.removed_len),
            count(done.kept_view_count),
            count(done.mounted_view_count),
            bytes(done.kept_len),
        ))?;
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn gc(args: &GcArgs) -> anyhow::Result<ExitCode> {
    if args.views {
        return collect_views(args);
    }
    if args.pause || args.resume {
        open(&args.location.store)?.pause_collection(args.pause)?;
        return Ok(ExitCode::SUCCESS);
    }
    let flag = interrupt_flag()?;
    let store = open(&args.location.store)?;
    let mut options = CollectOptions {
        copy_below_percent: args.copy_below,
        copy_len_max: args.max_copy.unwrap_or(u64::MAX),
    };
    let mut below_percent = args.reencode_below.unwrap_or(REENCODE_BELOW);
    args.wait.until_free(&store)?;
    let is_full = store.release_reserve()?;
    let mut writer = match store.write(WriteOptions::new(writer_name("store gc"))) {
        Err(error) if error.kind() == ErrorKind::Busy => {
            return gc_mounted(args, &store, &options, &error, &flag);
        }
        other => other?,
    };
    let before = disk_len(Path::new(&store.shown()))?;
    if is_full && !has_room_for_copies(&store, &mut writer)? {
        log::warn!("the disk of the store has no room for copies: what needs none is done");
        (options.copy_below_percent, below_percent) = (0, 0);
    }
    if below_percent > 0 && !store.volume_names()?.is_empty() {
        drop(writer);
        settle_volumes(&store, &flag)?;
        writer = store.write(WriteOptions::new(writer_name("store gc")))?;
    }
    let reencode_options = ReencodeOptions {
        below_percent,
        memory_len: args.memory,
        rate_max: args.reencode_rate.unwrap_or(0),
    };
    let observer = Interrupt(flag.clone());
    let (mut writer, reencoded) = match below_percent {
        0 => (writer, Reencoded::default()),
        _ => match reencode(writer, &reencode_options, &observer) {
            Err(_) if observer.is_cancelled() => bail!("{INTERRUPTED}"),
            // Damage stops no collection.
            Err(error) if error.is_unreadable() => {
                messages::problem(store.shown().as_bytes(), &error);
                let writer = store.write(WriteOptions::new(writer_name("store gc")))?;
                (writer, Reencoded::default())
            }
            other => other?,
        },
    };
    let is_over = || flag.load(Ordering::Relaxed);
    let done = writer.collect(&options, &mut |_| {
        if is_over() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    if !is_over() {
        // Removed names and attributes leave pages without rows. To move pages needs space first.
        match writer.engine().compact() {
            Err(error) if error.kind() != ErrorKind::Full => return Err(error.into()),
            _ => {}
        }
    }
    writer.renew_reserve();
    if let Err(error) = store.sweep_tiers() {
        messages::problem(store.shown().as_bytes(), &error);
    }
    let views = views::collect_gone(&store)?;
    let freed = before.saturating_sub(disk_len(Path::new(&store.shown()))?);
    let users = match done.segments_kept {
        0 => BTreeSet::new(),
        _ => writer.users_of(&writer.damaged_blocks().into_keys().collect())?,
    };
    tell_kept(&store, &done, &users);
    let mut output = Output::new();
    if args.json {
        let mut object = json(&done, &reencoded, freed);
        put_views(&mut object, &views);
        object.insert("damaged".into(), users.into_iter().collect());
        output.json(&object.into())?;
    } else if !args.quiet {
        output.text(&reencoded_text(&reencoded))?;
        output.text(&text(&done, freed))?;
        output.text(&views_text(&views))?;
    }
    output.finish()?;
    if is_over() {
        bail!("{INTERRUPTED}");
    }
    Ok(exit_code(done.segments_kept + done.maps_damaged))
}

/// Returns the space of a full disk that can be had without a copy. Returns whether there is room
/// for copies then.
fn has_room_for_copies(store: &Store, writer: &mut StoreWriter) -> anyhow::Result<bool> {
    /// Copies of a step, and the rows of their commit.
    const ROOM_LEN: u64 = 16 << 20;
    let without = CollectOptions {
        copy_below_percent: 0,
        ..CollectOptions::default()
    };
    writer.collect(&without, &mut |_| ControlFlow::Continue(()))?;
    Ok(store.space()?.free >= ROOM_LEN)
}

/// Writes blocks of volumes again of which files use a part.
fn settle_volumes(store: &Store, flag: &AtomicBool) -> anyhow::Result<()> {
    let check = &mut || {
        if flag.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let settled = settle_all(store, &writer_name("store gc"), check)?;
    for (name, error) in settled.failures {
        messages::problem(name.as_bytes(), &error);
    }
    Ok(())
}

/// Lets the server collect that has a volume of the store mounted; `busy` is the error if there is
/// none.
fn gc_mounted(
    args: &GcArgs,
    store: &Store,
    options: &CollectOptions,
    busy: &Error,
    flag: &AtomicBool,
) -> anyhow::Result<ExitCode> {
    if args.reencode_below.is_some_and(|share| share > 0) || args.reencode_rate.is_some() {
        bail!(
            "{busy}; --reencode-below and --reencode-rate need a store of which no volume is \
             mounted"
        );
    }
    let lock = open_lock(Path::new(&store.shown()))?;
    let is_over = || flag.load(Ordering::Relaxed);
    let before = disk_len(Path::new(&store.shown()))?;
    let done = match RuntimeDir::find(&runtime_dir_path())? {
        Some(dir) => weald_daemon::collect(&dir, lock.as_fd(), options, &is_over)?,
        None => None,
    };
    let done = done.ok_or_else(|| busy.duplicate())?;
    let freed = before.saturating_sub(disk_len(Path::new(&store.shown()))?);
    let skips = args.reencode_below.is_none();
    let views = views::collect_gone(store)?;
    tell_kept(store, &done, &BTreeSet::new());
    let mut output = Output::new();
    if args.json {
        let mut object = json(&done, &Reencoded::default(), freed);
        put_views(&mut object, &views);
        object.insert("is_reencoding_skipped".into(), skips.into());
        output.json(&object.into())?;
    } else if !args.quiet {
        output.text(&text(&done, freed))?;
        output.text(&views_text(&views))?;
        if skips {
            output.text(
                "half-used blocks stay as they are: gc encodes them again when no volume of the \
                 store is mounted\n",
            )?;
        }
    }
    output.finish()?;
    if is_over() {
        bail!("{INTERRUPTED}");
    }
    Ok(exit_code(done.segments_kept + done.maps_damaged))
}

/// Says on standard error why segments stay, and who uses what is damaged in them.
fn tell_kept(store: &Store, done: &Collected, users: &BTreeSet<String>) {
    if done.segments_kept == 0 {
        return;
    }
    let shown = store.shown();
    let names: Vec<&str> = users.iter().map(String::as_str).collect();
    let of = if names.is_empty() {
        String::new()
    } else {
        format!(" of {}", names.join(", "))
    };
    let (count, which) = match done.segments_kept {
        1 => ("1 segment file stays".to_owned(), "it"),
        more => (format!("{} segment files stay", count(more)), "them"),
    };
    let what = format!(
        "{count}: blocks{of} in {which} cannot be read: 'weald store check --data {shown}' names \
         what is damaged"
    );
    messages::problem(shown.as_bytes(), &Error::new(ErrorKind::Corrupt, what));
}

fn put_views(object: &mut Object, views: &kernel::Collected) {
    let numbers = [
        ("removed_view_count", views.removed_view_count),
        ("removed_view_bytes", views.removed_len),
    ];
    object.append(&mut json::numbers(&numbers));
}

/// Describes the views of images that are gone; an empty string if there were none.
fn views_text(views: &kernel::Collected) -> String {
    match views.removed_view_count {
        0 => String::new(),
        removed => format!(
            "{} views of images that are gone removed, {}\n",
            count(removed),
            bytes(views.removed_len)
        ),
    }
}

/// Default of `--reencode-below`.
const REENCODE_BELOW: u64 = 50;

/// Message of an interrupted collection.
const INTERRUPTED: &str =
    "interrupted: what was collected until then is done; the next gc continues";

/// Describes the blocks that were encoded again; an empty string if there are none.
fn reencoded_text(done: &Reencoded) -> String {
    let mut text = String::new();
    if done.block_count > 0 {
        text.push_str(&format!(
            "{} half-used blocks of {} images encoded again: {} instead of {}\n",
            count(done.block_count),
            count(done.image_count),
            bytes(done.new_len),
            bytes(done.old_len),
        ));
    }
    if done.too_large_count > 0 {
        text.push_str(&format!(
            "{} half-used blocks need more memory than --memory allows\n",
            count(done.too_large_count)
        ));
    }
    text
}

fn json(done: &Collected, reencoded: &Reencoded, freed: u64) -> Object {
    let numbers = [
        ("freed_len", freed),
        ("segments_removed", done.segments_removed),
        ("removed_len", done.removed_len),
        ("copied_len", done.copied_len),
        ("punched_len", done.punched_len),
        ("blocks_forgotten", done.blocks_forgotten),
        ("segments_kept", done.segments_kept),
        ("maps_damaged", done.maps_damaged),
        ("reencoded_block_count", reencoded.block_count),
        ("reencoded_image_count", reencoded.image_count),
        ("reencoded_old_len", reencoded.old_len),
        ("reencoded_new_len", reencoded.new_len),
        ("skipped_image_count", reencoded.skipped_count),
        ("too_large_block_count", reencoded.too_large_count),
        ("unused_len", done.dead_len),
    ];
    json::numbers(&numbers)
}

/// `freed` are the bytes by which the files of the store shrank on the disk.
fn text(done: &Collected, freed: u64) -> String {
    format!(
        "{} returned to the disk: {} segment files removed, {} copied, {} freed in place; {} stay \
         unused\n",
        bytes(freed),
        count(done.segments_removed),
        bytes(done.copied_len),
        bytes(done.punched_len),
        bytes(done.dead_len),
    )
}

/// Bytes that the segments and tables of a store take on the disk.
fn disk_len(store: &Path) -> anyhow::Result<u64> {
    let meta = std::fs::metadata(store.join("meta"));
    let meta = meta.map_or(0, |meta| meta.blocks().saturating_mul(512));
    Ok(allocated_len(&store.join("segments"))?.saturating_add(meta))
}
