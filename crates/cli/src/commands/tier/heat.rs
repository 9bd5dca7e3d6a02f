//! `weald tier heat`: how much the segments of a store were used, and those of paths of a volume.

use crate::help::{DONE_OR_FAILED, Help};
use crate::json::Object;
use crate::named_volume::{Named, inner_path};
use crate::open_store::{open, show_path};
use crate::output::Output;
use crate::progress::{bytes, count, duration};
use crate::volume_state::image::with_reader;
use anyhow::{Context, bail};
use clap::{Args, ValueHint};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weald_format::store::Part;
use weald_format::{FileKind, Ino, SegmentNo};
use weald_store::Store;
use weald_store::tier::{Mover, SegmentUse};
use weald_volume::VolumeReader;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "Reads are counted for each segment, by the server of a mounted volume of a store with \
         tiers: a read of a block counts one, and half after 30 minutes. Reads of mounted images \
         do not count. The counters of a server are up to 10 seconds old.",
        "Of a store, each line has a segment, its tier, its bytes, the reads, and how long ago it \
         was read or written. Of a directory of a volume, each line has a file, its bytes, their \
         tiers, and the most reads and the shortest time of the segments in which they lie. Of a \
         file, each line has a range instead. What else lies in these segments counts, too.",
        "--reset sets the reads of these segments to zero.",
    ],
    examples: &[
        ("Show the segments of a store", "weald tier heat /srv/store"),
        (
            "Show the files of a volume",
            "weald tier heat /srv/store:home .",
        ),
        ("Count anew", "weald tier heat --reset /srv/store"),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Show how much data was read, and when it was used
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub(super) struct HeatArgs {
    /// Store, or a volume: STORE[:NAME]
    #[arg(value_name = "STORE[:NAME]", value_hint = ValueHint::DirPath)]
    name: PathBuf,
    /// A file or directory of the volume, from its root on
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
    /// Set the counters of reads to zero
    #[arg(long)]
    reset: bool,
    /// Print one JSON object per line
    #[arg(long, conflicts_with = "reset")]
    json: bool,
}

/// Use of a file, or of a range of it.
#[derive(Default)]
struct Heat {
    /// Bytes on each tier.
    tiers: BTreeMap<String, u64>,
    reads: f64,
    idle_s: Option<u64>,
}

/// The segments of a store, with their use.
type Uses = BTreeMap<SegmentNo, SegmentUse>;

impl Heat {
    fn add(&mut self, uses: &Uses, number: SegmentNo, len: u64) {
        let Some(segment) = uses.get(&number) else {
            *self.tiers.entry("-".to_owned()).or_default() += len;
            return;
        };
        *self.tiers.entry(segment.tier.clone()).or_default() += len;
        self.reads = self.reads.max(segment.used.hits);
        let idle_s = segment.used.idle_s;
        self.idle_s = Some(self.idle_s.map_or(idle_s, |before| before.min(idle_s)));
    }

    fn len(&self) -> u64 {
        self.tiers.values().sum()
    }

    fn text(&self) -> String {
        let tiers: Vec<&str> = self.tiers.keys().map(String::as_str).collect();
        let tiers = if tiers.is_empty() {
            "-".to_owned()
        } else {
            tiers.join(",")
        };
        let idle = self.idle_s.map_or("-".to_owned(), duration);
        let reads = count(self.reads.round() as u64);
        format!(
            "{:>10}  {tiers:<12} {reads:>8} reads  {idle:>10}",
            bytes(self.len())
        )
    }

    fn insert(&self, object: &mut Object) {
        object.insert("bytes".into(), self.len().into());
        let tiers = self.tiers.iter();
        let tiers: Object = tiers
            .map(|(name, len)| (name.clone(), (*len).into()))
            .collect();
        object.insert("tiers".into(), tiers.into());
        object.insert("reads".into(), self.reads.into());
        object.insert("idle".into(), self.idle_s.into());
    }
}

pub(super) fn heat(args: &HeatArgs) -> anyhow::Result<ExitCode> {
    if weald_store::split(&args.name).is_none() {
        if let Some(path) = &args.path {
            let words = show_path(path);
            bail!("{words}: a path is one of a volume: name it, as in STORE:NAME {words}");
        }
        return of_store(&open(&args.name)?, args);
    }
    let named = Named::open(&args.name)?;
    named.find()?;
    let uses = Mover::new(&named.store)?.uses()?;
    let path = inner_path(args.path.as_deref().unwrap_or(Path::new(".")))?;
    let mut output = Output::new();
    let numbers = with_reader(&named, |reader| {
        let mut walk = PathHeat {
            reader,
            uses: &uses,
            args,
            output: &mut output,
            seen: BTreeSet::new(),
        };
        walk.show(&path)?;
        Ok(walk.seen)
    })?;
    output.finish()?;
    if args.reset {
        Mover::new(&named.store)?.reset_heat(Some(&numbers))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows the segments of a store.
fn of_store(store: &Store, args: &HeatArgs) -> anyhow::Result<ExitCode> {
    let mut mover = Mover::new(store)?;
    if args.reset {
        mover.reset_heat(None)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut output = Output::new();
    let uses = mover.uses()?;
    for (number, segment) in &uses {
        let mut heat = Heat::default();
        heat.add(&uses, *number, segment.len);
        if args.json {
            let mut object = Object::new();
            object.insert("segment".into(), number.0.into());
            heat.insert(&mut object);
            output.json(&object.into())?;
        } else {
            writeln!(output, "{}  segment {}", heat.text(), number.0)?;
        }
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// Shows the files below a path.
struct PathHeat<'a> {
    reader: &'a VolumeReader,
    uses: &'a Uses,
    args: &'a HeatArgs,
    output: &'a mut Output,
    /// The segments that were met.
    seen: BTreeSet<SegmentNo>,
}

impl PathHeat<'_> {
    fn show(&mut self, path: &Path) -> anyhow::Result<()> {
        let mut ino = self.reader.root();
        for name in path {
            let is_dir = self.reader.inode(ino)?.kind == FileKind::Directory;
            let found = match is_dir.then(|| self.reader.find(ino, name.as_bytes())) {
                Some(found) => found?,
                None => None,
            };
            let missing = || format!("{}: no such file in the volume", show_path(path));
            ino = found.with_context(missing)?.ino;
        }
        match self.reader.inode(ino)?.kind {
            FileKind::Directory => self.show_dir(path, ino),
            FileKind::Regular => self.show_ranges(ino),
            _ => bail!("{}: has no data", show_path(path)),
        }
    }

    /// One line for each file below a directory.
    fn show_dir(&mut self, path: &Path, ino: Ino) -> anyhow::Result<()> {
        let mut pending = vec![(path.to_owned(), ino)];
        while let Some((path, ino)) = pending.pop() {
            for name in self.reader.names(ino)? {
                let path = path.join(std::ffi::OsStr::from_bytes(&name.name));
                match name.kind {
                    FileKind::Directory => pending.push((path, name.ino)),
                    FileKind::Regular => self.show_file(&path, name.ino)?,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn show_file(&mut self, path: &Path, ino: Ino) -> anyhow::Result<()> {
        let mut heat = Heat::default();
        self.each_extent(ino, &mut |uses, _, number, len| {
            heat.add(uses, number, len);
            Ok(())
        })?;
        if self.args.reset {
            return Ok(());
        }
        let name = path.as_os_str().as_bytes();
        if self.args.json {
            let mut object = Object::new();
            crate::json::put_name(&mut object, "path", name);
            heat.insert(&mut object);
            self.output.json(&object.into())?;
        } else {
            write!(self.output, "{}  ", heat.text())?;
            self.output.name(name)?;
            writeln!(self.output)?;
        }
        Ok(())
    }

    /// One line for each range of a file that lies in one segment.
    fn show_ranges(&mut self, ino: Ino) -> anyhow::Result<()> {
        let mut ranges: Vec<(u64, u64, SegmentNo)> = Vec::new();
        self.each_extent(ino, &mut |_, start, number, len| {
            match ranges.last_mut() {
                Some((_, end, last)) if *end == start && *last == number => *end += len,
                _ => ranges.push((start, start + len, number)),
            }
            Ok(())
        })?;
        for (start, end, number) in ranges {
            let mut heat = Heat::default();
            heat.add(self.uses, number, end - start);
            if self.args.reset {
                continue;
            }
            if self.args.json {
                let mut object = Object::new();
                object.insert("start".into(), start.into());
                object.insert("segment".into(), number.0.into());
                heat.insert(&mut object);
                self.output.json(&object.into())?;
            } else {
                writeln!(self.output, "{}  {start}-{end}", heat.text())?;
            }
        }
        Ok(())
    }

    /// Visits the data of a file: start and length in bytes, and the segment.
    fn each_extent(
        &mut self,
        ino: Ino,
        visit: &mut dyn FnMut(&Uses, u64, SegmentNo, u64) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        for extent in self.reader.extents(ino)? {
            let Some(place) = extent.block else { continue };
            if let Part::Block { location, .. } = self.reader.part(place.block)? {
                self.seen.insert(location.segment);
                visit(self.uses, extent.start, location.segment, extent.len)?;
            }
        }
        Ok(())
    }
}
