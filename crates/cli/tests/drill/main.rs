//! The drill: 16 bytes are overwritten anywhere in a store of three images and two volumes. What
//! `check` says is compared with what readers then meet, or, where no reader meets it, with what
//! writers read; then a writer and a collection must lose nothing that could be read; and what
//! `salvage` says is compared with what is missing afterwards.
//!
//! It is a program of its own: a lock of a store that this process has taken and given back lasts
//! while another test starts a program, between its fork and its exec.
#![allow(missing_docs)]

#[allow(dead_code)]
#[path = "../store/ground.rs"]
mod ground;
mod scrubs;
mod traced;
mod trees;

use ground::Ground;
use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use traced::{Trace, TracedDisk};
use trees::{Entry, Tree, Trees, digest, look, options};
use weald_format::FileKind;
use weald_store::disk::HostDisk;
use weald_store::engine::Table;
use weald_store::{CollectOptions, SalvageOptions, Salvaged, Store, WriteOptions};
use weald_testkit::Rng;
use weald_vfs::{Ino, NewInode, WritableFs, XattrMode};
use weald_volume::{
    CheckOptions, OpenOptions, OpenStore, Volume, VolumeOptions, check_store, create, salvage_store,
};

/// Bytes that are overwritten together.
const DAMAGED_LEN: usize = 16;
const ROUNDS: usize = 200;
/// Bytes of a segment that are no record: writers that append to it and a salvage read them.
const SEGMENT_SUPERBLOCK_LEN: u64 = 64;
const THREADS: usize = 2;
const IMAGES: [&str; 3] = ["v1", "v2", "based"];
const VOLUMES: [&str; 2] = ["v", "w"];

/// The volume with changes in its log.
const LOGGED: &str = "w";

fn fill(store: &Store) {
    let new = |kind, target: &'static [u8]| NewInode {
        kind,
        permissions: 0o640,
        uid: 1,
        gid: 2,
        rdev: 0,
        target,
        xattrs: &[],
    };
    for name in VOLUMES {
        create(store, name, &VolumeOptions::default(), [7; 16], 5).expect("a volume");
    }
    let shared = OpenStore::open(store, &options(false)).expect("open");
    let mut rng = Rng::new(11);
    for name in VOLUMES {
        let volume = Volume::open_in(&shared, name, options(false)).expect("open");
        let mut dir = Ino::ROOT;
        for no in 0..40u64 {
            // Deep and wide.
            let parent = if no % 4 == 0 { Ino::ROOT } else { dir };
            let made = volume.create(
                parent,
                format!("dir-{no}").as_bytes(),
                &new(FileKind::Directory, &[]),
                no as i128,
            );
            dir = made.expect("mkdir").ino;
            if no == 4 {
                let quota = b"trusted.weald.quota";
                let set = volume.set_xattr(dir, quota, b"1000000000", XattrMode::Set, 1);
                set.expect("a quota");
            }
            for file in 0..12u64 {
                let name = format!("file-{file}");
                let made = volume.create(dir, name.as_bytes(), &new(FileKind::Regular, &[]), 10);
                let ino = made.expect("create").ino;
                let len = [0, 30, 700, 5000, 20_000][(file % 5) as usize];
                if len > 0 {
                    volume.write(ino, 0, &rng.bytes(len), 11).expect("write");
                }
                if file == 3 {
                    volume
                        .write(ino, 3_000_000, b"behind a hole", 11)
                        .expect("write");
                }
                if file % 4 == 1 {
                    let value = format!("{no} {file}");
                    let set =
                        volume.set_xattr(ino, b"user.a", value.as_bytes(), XattrMode::Set, 12);
                    set.expect("an attribute");
                }
                // No links lead out of a quota.
                if file == 5 && !(4..8).contains(&no) {
                    volume
                        .link(ino, Ino::ROOT, format!("hard-{no}").as_bytes(), 13)
                        .expect("link");
                }
            }
            let link = new(FileKind::Symlink, b"../target");
            volume.create(dir, b"link", &link, 14).expect("symlink");
        }
        volume.close().expect("close");
    }
}

/// Leaves changes in the log of `w`, as a killed server does. Returns the store as it is then.
fn leave_log(store: &Store, from: &Path, to: &Path) {
    let logged = OpenOptions {
        syncs_without_log: 0,
        log_len: 128 << 10,
        ..options(false)
    };
    let volume = Volume::open(store, LOGGED, logged).expect("open");
    for no in 0..6 {
        let new = NewInode {
            kind: FileKind::Regular,
            permissions: 0o600,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: &[],
            xattrs: &[],
        };
        let name = format!("synced-{no}");
        let made = volume.create(Ino::ROOT, name.as_bytes(), &new, 20);
        let ino = made.expect("create").ino;
        volume
            .write(ino, 0, name.repeat(100).as_bytes(), 21)
            .expect("write");
        volume.sync().expect("sync");
    }
    copy(from, to);
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("a directory");
    for entry in fs::read_dir(from).expect("list") {
        let entry = entry.expect("an entry");
        let to = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy(&entry.path(), &to)
        } else {
            fs::copy(entry.path(), to).expect("copy");
        }
    }
}

/// Files of the store by kind.
fn files(store: &Path) -> Vec<(&'static str, Vec<PathBuf>)> {
    let list = |dir: &str| -> Vec<PathBuf> {
        let entries = fs::read_dir(store.join(dir)).expect("list");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let mut paths: Vec<_> = paths.filter(|path| path.is_file()).collect();
        paths.sort();
        paths.retain(|path| path.metadata().is_ok_and(|m| m.len() > 0));
        paths
    };
    let is_hidden = |path: &PathBuf| {
        let name = path
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        name.starts_with('.')
    };
    let (digests, maps): (Vec<_>, Vec<_>) = list("images").into_iter().partition(is_hidden);
    let mut kinds = vec![
        ("meta", vec![store.join("meta")]),
        ("journal", list("journal")),
        ("segment", list("segments")),
        ("map", maps),
        ("digests", digests),
        ("volumes", list("volumes")),
        ("replicas", list("replicas")),
        (
            "store",
            ["store", "store.copy"]
                .map(|name| store.join(name))
                .to_vec(),
        ),
        (
            "other",
            ["lock", "mark", "scrub", "scrub.report"]
                .map(|name| store.join(name))
                .to_vec(),
        ),
    ];
    for (_, paths) in &mut kinds {
        paths.retain(|path| path.is_file());
    }
    kinds.retain(|(_, paths)| !paths.is_empty());
    kinds
}

/// How often a kind of file is damaged.
fn weight(kind: &str) -> usize {
    match kind {
        "meta" => 8,
        "segment" => 4,
        "journal" => 3,
        "map" | "volumes" => 2,
        _ => 1,
    }
}

/// Overwrites bytes; returns the place in words, the offset and the kind of file.
fn damage(
    rng: &mut Rng,
    (whole, trace): (&Path, &Trace),
    copies: &[PathBuf],
) -> (String, u64, &'static str) {
    let kinds = files(whole);
    let weighted = kinds
        .iter()
        .flat_map(|kind| std::iter::repeat_n(kind, weight(kind.0)));
    let weighted: Vec<_> = weighted.collect();
    let (kind, paths) = weighted[rng.below(weighted.len() as u64) as usize];
    let path = &paths[rng.below(paths.len() as u64) as usize];
    let mut bytes = fs::read(path).expect("read");
    let mut end = bytes.len().saturating_sub(DAMAGED_LEN) as u64 + 1;
    if *kind == "meta" && rng.below(8) == 0 {
        end = 512;
    }
    let mut at = rng.below(end) as usize;
    let mut until = bytes.len().min(at + DAMAGED_LEN);
    // Three of four places have bytes that are no zeros, or that somebody reads: much of the tables
    // and the log is empty.
    for _ in 0..20 * rng.below(4).min(1) {
        let is_used = match *kind {
            "meta" => trace.has(at as u64..until as u64),
            _ => true,
        };
        if is_used && bytes[at..until].iter().any(|byte| *byte != 0) {
            break;
        }
        at = rng.below(end) as usize;
        until = bytes.len().min(at + DAMAGED_LEN);
    }
    for byte in &mut bytes[at..until] {
        *byte ^= rng.below(255) as u8 + 1;
    }
    let name = path.strip_prefix(whole).expect("a file of the store");
    for copy in copies {
        fs::write(copy.join(name), &bytes).expect("write");
    }
    (format!("{}, byte {at}", name.display()), at as u64, kind)
}

/// Whether a check finds nothing, and its findings. It changes no byte.
fn is_clean(dir: &Path) -> (bool, String) {
    let before = bytes_of(dir);
    let checked = Store::open(Arc::new(HostDisk::new(dir))).and_then(|store| {
        let writer = store.write_for_check("a check")?;
        let options = CheckOptions { reads_data: true };
        check_store(&writer, &options, &mut |_| {})
    });
    assert!(bytes_of(dir) == before, "a check changes the store");
    match checked {
        Ok(report) => {
            let text = report.findings.iter().map(|finding| format!("{finding}\n"));
            (report.findings.is_empty(), text.collect())
        }
        Err(error) => (false, error.to_string()),
    }
}

/// The digests of all files below a directory.
fn bytes_of(dir: &Path) -> BTreeMap<PathBuf, [u8; 32]> {
    let mut digests = BTreeMap::new();
    for entry in fs::read_dir(dir).expect("list") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            digests.extend(bytes_of(&path))
        } else {
            digests.insert(path.clone(), digest(&fs::read(path).expect("read")));
        }
    }
    digests
}

/// Does what writers do: collects, moves pages, and changes both volumes.
fn work(store: &Store) -> Result<(), String> {
    {
        let mut writer = store
            .write(WriteOptions::new("a collection"))
            .map_err(|e| e.to_string())?;
        let options = CollectOptions {
            copy_below_percent: 100,
            ..CollectOptions::default()
        };
        let collected = writer.collect(&options, &mut |_| ControlFlow::Continue(()));
        collected.map_err(|e| e.to_string())?;
        writer.engine().compact().map_err(|e| e.to_string())?;
    }
    for name in VOLUMES {
        let volume = Volume::open(store, name, options(false)).map_err(|e| e.to_string())?;
        let new = NewInode {
            kind: FileKind::Regular,
            permissions: 0o600,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: &[],
            xattrs: &[],
        };
        let made = volume.create(Ino::ROOT, b"made later", &new, 30);
        let ino = made
            .map_err(|f| format!("{name}: create: {:?}", f.errno))?
            .ino;
        let written = volume.write(ino, 0, name.repeat(3000).as_bytes(), 31);
        written.map_err(|f| format!("{name}: write: {:?}", f.errno))?;
        volume.close().map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// The bytes of `meta` that readers of all rows and writers read.
fn trace(dir: &Path) -> Trace {
    let trace = Trace::default();
    let store = Store::open(Arc::new(TracedDisk::new(dir, &trace))).expect("the store");
    let writer = store.write(WriteOptions::new("a reader")).expect("open");
    for table in Table::ALL {
        let mut visit = |_: &[u8], _: &[u8]| Ok(ControlFlow::Continue(()));
        writer.engine().scan(table, &[], &mut visit).expect("rows");
    }
    drop(writer);
    work(&store).expect("a writer");
    trace
}

/// What a salvage says of an image or a volume: nothing is lost, or these lines, or everything.
enum Told {
    Complete,
    Lost(String),
    Everything,
    Unnamed,
}

fn told(salvaged: &Salvaged, name: &str) -> Told {
    let is = |other: &String| other == name;
    if salvaged.images.iter().chain(&salvaged.volumes).any(is) {
        return Told::Complete;
    }
    if salvaged.lost_volumes.iter().any(is) || salvaged.set_aside.iter().any(|(n, _)| is(n)) {
        return Told::Everything;
    }
    let images = salvaged.damaged.iter().filter(|image| image.name == name);
    let mut losses: Vec<_> = images.flat_map(|image| &image.losses).collect();
    let volumes = salvaged
        .damaged_volumes
        .iter()
        .filter(|volume| volume.name == name);
    losses.extend(volumes.flat_map(|volume| &volume.losses));
    if losses.is_empty() {
        return Told::Unnamed;
    }
    Told::Lost(losses.iter().map(|loss| format!("{loss}\n")).collect())
}

/// Compares what is left after a salvage with what was there, and both with what it says. Returns
/// the number of files that are not as they were, and what is wrong.
fn compare(salvaged: &Salvaged, name: &str, trees: [&Tree; 3]) -> (usize, Vec<String>) {
    let [whole, damaged, after] = trees;
    let whole = whole.as_ref().expect("a whole tree");
    let mut wrong = Vec::new();
    let (text, after) = match (told(salvaged, name), after) {
        (Told::Everything, _) => {
            if damaged.is_ok() {
                wrong.push(format!("{name}: given up, and was readable"));
            }
            return (whole.len(), wrong);
        }
        (Told::Complete, after) => {
            if after.as_ref() != Ok(whole) {
                let differs = difference(whole, after);
                wrong.push(format!("{name}: called complete, but {differs}"));
            }
            return (0, wrong);
        }
        (Told::Unnamed, _) => {
            wrong.push(format!("{name}: is not named"));
            return (0, wrong);
        }
        (Told::Lost(text), Ok(after)) => (text, after),
        (Told::Lost(text), Err(error)) => {
            if !text.contains(error) && !text.contains("root directory") {
                wrong.push(format!("{name}: {error}, but told is: {text}"));
            }
            return (whole.len(), wrong);
        }
    };
    let mut lost_count = 0;
    for (path, entry) in whole {
        let found = after.get(path);
        if found == Some(entry) {
            continue;
        }
        lost_count += 1;
        let path = path.trim_start_matches('/');
        let adopted = after.iter().find(|(place, found)| {
            place.starts_with("/lost+found/") && found.content == entry.content
        });
        let is_told = text.contains(&format!("{path:?}"))
            || path.is_empty() && text.contains("root directory")
            // Directories above it are told.
            || path.match_indices('/').any(|(at, _)| text.contains(&format!("{:?}", &path[..at])));
        if !(is_told || adopted.is_some()) {
            wrong.push(format!(
                "{name}: {path:?} was {entry:?}, is {found:?}; told is: {text}"
            ));
        }
        // What could be read of the damaged store can be read now.
        let was_readable = damaged
            .as_ref()
            .is_ok_and(|tree| tree.get(&format!("/{path}")) == Some(entry));
        if was_readable && adopted.is_none() {
            wrong.push(format!("{name}: {path:?} was readable: {found:?}"));
        }
    }
    if lost_count == 0 {
        wrong.push(format!("{name}: nothing is missing of {text}"));
    }
    (lost_count, wrong)
}

/// Would catch: damage that a check does not find although a reader meets it, a check that finds
/// what nobody meets, a salvage that gives up more than the damage took, that says nothing of a
/// loss, or that says "complete" of what is not.
#[test]
fn damage_is_found_brought_back_and_told() {
    let ground = Ground::with_images();
    ground.weald(&["store", "create", "-q", "--segment-size", "256K", "store"]);
    ground.weald(&["store", "import", "-q", "store", "v1.weald", "v2.weald"]);
    ground.sh("cp -a v2 v3; seq 30000 > v3/usr/numbers");
    ground.weald(&["build", "-q", "--base", "store:v1", "v3", "based.weald"]);
    // Segments with dead blocks, which a collection empties.
    ground.sh("mkdir gone; cp v1/noise gone/noise
        for n in 1 2 3 4 5 6; do seq $n 7 90000 > gone/$n; done");
    ground.weald(&[
        "build",
        "-q",
        "--level",
        "1",
        "--block-size",
        "64K",
        "gone",
        "gone.weald",
    ]);
    ground.weald(&[
        "store",
        "import",
        "-q",
        "store",
        "gone.weald",
        "based.weald",
    ]);
    ground.weald(&["store", "rm", "store:gone"]);
    let dir = ground.at("store");
    let store = Store::open(Arc::new(HostDisk::new(&dir))).expect("the store");
    fill(&store);
    ground.weald(&["store", "backup", "-q", "store", "place"]);
    assert!(scrubs::scrub(&dir).is_ok_and(|report| report.findings.is_empty()));
    let whole_dir = ground.at("whole");
    leave_log(&store, &dir, &whole_dir);
    drop(store);
    copy(&whole_dir, &ground.at("first"));
    let whole = look(&ground.at("first"));
    for (name, tree) in &whole {
        let tree = tree.as_ref().expect("a tree");
        assert!(
            tree.len() > 5 && tree.values().all(|e| e.content.is_ok()),
            "{name}: {tree:?}"
        );
    }
    copy(&whole_dir, &ground.at("second"));
    assert_eq!(is_clean(&ground.at("second")), (true, String::new()));
    let trace = trace(&ground.at("second"));
    let meta_len = fs::metadata(whole_dir.join("meta")).expect("meta").len();
    println!("of {meta_len} bytes of meta, {} are read", trace.len());
    assert!(
        (trace.len() as u64) < meta_len,
        "all of meta is in use: the drill tells nothing"
    );
    let whole = (&*whole_dir, &whole, &trace);

    // `make soak PART=drill` takes other seeds.
    let mut rng = match std::env::var_os("WEALD_SEED") {
        Some(_) => Rng::from_environment(),
        None => Rng::new(1),
    };
    let rngs = [0; THREADS].map(|_| Rng::new(rng.next_u64()));
    let drills = std::thread::scope(|scope| {
        let drills = rngs.map(|rng| scope.spawn(|| drill(&ground, whole, rng)));
        drills.map(|drill| drill.join().expect("a drill"))
    });
    let mut counts: BTreeMap<&str, [usize; 5]> = BTreeMap::new();
    let mut wrong = Vec::new();
    for (kind, count, found) in drills.into_iter().flatten() {
        let sum = counts.entry(kind).or_default();
        (0..5).for_each(|no| sum[no] += count[no]);
        wrong.extend(found);
    }
    for (kind, [rounds, differ, found, lost, of_writers]) in counts {
        println!(
            "{kind}: {rounds} places, reads differ after {differ}, check finds {found}, \
             {of_writers} of them by writers only, {lost} files differ after salvage"
        );
    }
    assert!(
        wrong.is_empty(),
        "{} faults:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Damages and compares, in a part of the rounds.
fn drill(
    ground: &Ground,
    (whole_dir, whole, trace): (&Path, &Trees, &Trace),
    mut rng: Rng,
) -> Vec<(&'static str, [usize; 5], Vec<String>)> {
    let thread = rng.next_u64();
    let rounds = (0..ROUNDS / THREADS).map(|_| {
        let copies = ["a", "b", "c"].map(|name| ground.at(format!("{name}{thread}")));
        copies.iter().for_each(|to| copy(whole_dir, to));
        let (place, at, kind) = damage(&mut rng, (whole_dir, trace), &copies);
        let is_read = match kind {
            "meta" => trace.has(at..at + DAMAGED_LEN as u64),
            "segment" => at < SEGMENT_SUPERBLOCK_LEN,
            // Nobody reads it while the tables are whole. A log is read by the next writer.
            "journal" | "volumes" => true,
            // What was asked of a scrub, and what the last one found, is shown to users alone.
            "other" => place.starts_with("scrub"),
            _ => false,
        };
        let (count, found) = round_of(whole, &copies, (kind, is_read));
        copies
            .iter()
            .for_each(|dir| fs::remove_dir_all(dir).expect("remove"));
        let found = found.into_iter();
        let found = found.map(|what| format!("{place}: {what}")).collect();
        (kind, count, found)
    });
    rounds.collect()
}

/// Reads, checks, changes and salvages copies of a store with a damaged file of this kind.
/// `is_read` says whether writers or readers of all rows read what was damaged. Returns counts
/// (places, reads that differ, findings, losses, findings of what only writers read) and what is
/// wrong.
fn round_of(
    whole: &Trees,
    copies: &[PathBuf; 3],
    (kind, is_read): (&str, bool),
) -> ([usize; 5], Vec<String>) {
    let mut wrong = Vec::new();
    let damaged = look(&copies[0]);
    let (is_clean, findings) = is_clean(&copies[0]);
    let is_same = damaged == *whole;
    let is_of_writers = is_same && !is_clean;
    let mut count = [true, !is_same, !is_clean, false, is_of_writers].map(usize::from);
    if !is_same && is_clean {
        let differs = differences(whole, &damaged);
        wrong.push(format!("the check is clean, but {differs}"));
    }
    match scrubs::scrub(&copies[2]) {
        Ok(report) => {
            wrong.extend(scrubs::faults(&report, whole, &damaged));
            if !report.findings.is_empty() && is_clean {
                let found = &report.findings;
                wrong.push(format!("the check is clean, and a scrub finds {found:?}"));
            }
        }
        Err(error) if is_clean => wrong.push(format!("no scrub: {error}")),
        Err(_) => {}
    }
    if is_same && !is_clean && !is_read {
        wrong.push(format!("nobody meets {findings}"));
    }
    let worked = Store::open(Arc::new(HostDisk::new(&copies[0])))
        .map_err(|error| error.to_string())
        .and_then(|store| work(&store));
    if let Err(error) = worked
        && is_clean
    {
        wrong.push(format!("the check is clean, but a writer says: {error}"));
    }
    let lost = || {
        let later = look(&copies[0]);
        let lost = whole.iter().filter_map(|(name, tree)| {
            let lost = lost_later([tree, &damaged[name], &later[name]])?;
            Some(format!("{name}: a writer has lost {lost}"))
        });
        lost.collect::<Vec<_>>()
    };
    let mut lost_later = lost();
    if !lost_later.is_empty() && !is_clean {
        // A writer that meets damage of the tables may leave them to a salvage.
        let store = Store::open(Arc::new(HostDisk::new(&copies[0])));
        let salvaged = store.and_then(|store| salvage_store(&store, &SalvageOptions::default()));
        lost_later = lost();
        lost_later.extend(salvaged.err().map(|error| error.to_string()));
    }
    wrong.extend(lost_later);
    let options = SalvageOptions::default();
    let salvaged = Store::open(Arc::new(HostDisk::new(&copies[1])))
        .and_then(|store| salvage_store(&store, &options));
    match salvaged {
        Ok(salvaged) => {
            let after = look(&copies[1]);
            for (name, tree) in whole {
                let trees = [tree, &damaged[name], &after[name]];
                let (lost_count, faults) = compare(&salvaged, name, trees);
                count[3] += lost_count;
                wrong.extend(faults);
            }
            // There are two copies of the metadata, and logs have parity.
            if matches!(kind, "meta" | "journal" | "volumes") && salvaged.damaged_count() > 0 {
                wrong.push(format!("rows are lost: {salvaged:?}"));
            }
        }
        Err(error) => wrong.push(format!("no salvage: {error}")),
    }
    (count, wrong)
}

/// What could be read of a damaged store, and cannot be read since writers changed it.
fn lost_later([whole, damaged, later]: [&Tree; 3]) -> Option<String> {
    let (Ok(whole), Ok(damaged)) = (whole, damaged) else {
        return None;
    };
    let later = match later {
        Err(error) => return Some(format!("everything: {error}")),
        Ok(later) => later,
    };
    // The root has a new file.
    let left = damaged.iter().filter(|(path, _)| !path.is_empty());
    let mut left = left.filter(|(path, entry)| whole.get(*path) == Some(entry));
    let (path, entry) = left.find(|(path, entry)| later.get(*path) != Some(entry))?;
    Some(format!("{path:?}: was {entry:?}, is {:?}", later.get(path)))
}

fn differences(whole: &Trees, damaged: &Trees) -> String {
    let names = whole.keys().filter(|name| whole[*name] != damaged[*name]);
    let texts = names.map(|name| {
        let tree = whole[name].as_ref().expect("a whole tree");
        format!("{name}: {}", difference(tree, &damaged[name]))
    });
    texts.collect::<Vec<_>>().join("; ")
}

fn difference(whole: &BTreeMap<String, Entry>, found: &Tree) -> String {
    let found = match found {
        Ok(found) => found,
        Err(error) => return error.clone(),
    };
    for (path, entry) in whole {
        if found.get(path) != Some(entry) {
            let found = found.get(path);
            return format!("{path:?} was {entry:?}, is {found:?}");
        }
    }
    let more = found.keys().find(|path| !whole.contains_key(*path));
    format!("there is more: {more:?}")
}
