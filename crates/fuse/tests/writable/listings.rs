//! Listings of directories of a writable mount, and the caches of the kernel.

use super::*;
use rustix::fs::RawDir;
use weald_testkit::rng::Rng;

#[test]
fn a_large_directory_is_listed_once_and_whole() {
    let (_, live) = mounted("");
    let names: BTreeSet<String> = (0..10_000).map(|at| format!("name-{at:05}")).collect();
    for name in &names {
        File::create(live.path(name)).expect("created");
    }
    let listed: Vec<_> = fs::read_dir(&live.dir).expect("list").flatten().collect();
    assert_eq!(listed.len(), names.len());
    assert_eq!(listed.into_iter().collect_names(), names);
    // A listing that goes on while names come and go.
    let mut seen = BTreeSet::new();
    for (at, entry) in fs::read_dir(&live.dir).expect("list").flatten().enumerate() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("name-") {
            assert!(seen.insert(name.clone()), "{name} came twice");
            fs::remove_file(live.path(&name)).expect("removed");
        }
        if at % 100 == 0 {
            File::create(live.path(&format!("more-{at}"))).expect("created");
            assert!(fs::read_dir(&live.dir).expect("list").count() > 0);
        }
    }
    assert_eq!(seen, names);
    live.sh(r#"rm -r "$1"/more-*"#);
    assert_eq!(fs::read_dir(&live.dir).expect("list").count(), 0);
}

/// Would catch: the end of a listing whose position was removed, at the end of pages that the
/// kernel filled for another listing.
#[test]
fn a_listing_goes_on_whatever_others_remove_and_list() {
    let (_, live) = mounted("");
    // With "." and "..", and without one name: entries of 32 bytes that fill eight pages.
    let names: BTreeSet<String> = (0..8 * 128 - 1).map(|at| format!("n-{at:06}")).collect();
    for name in &names {
        File::create(live.path(name)).expect("created");
    }
    let dir = File::open(&live.dir).expect("opened");
    let mut buffer = [std::mem::MaybeUninit::uninit(); 256];
    let mut listing = RawDir::new(&dir, &mut buffer);
    let mut seen = BTreeSet::new();
    let mut last = String::new();
    while seen.len() < 300 || !listing.is_buffer_empty() {
        let entry = listing.next().expect("more entries").expect("list");
        last = entry.file_name().to_string_lossy().into_owned();
        seen.insert(last.clone());
    }
    fs::remove_file(live.path(&last)).expect("removed");
    for _ in 0..2 {
        let others = fs::read_dir(&live.dir).expect("list").flatten();
        assert_eq!(others.count(), names.len() - 1);
    }
    while let Some(entry) = listing.next() {
        let name = entry
            .expect("list")
            .file_name()
            .to_string_lossy()
            .into_owned();
        assert!(seen.insert(name.clone()), "{name} came twice");
    }
    assert_eq!(seen.len(), names.len() + 2);
}

/// Would catch: removed names in a listing that began later, because the kernel completes it from
/// the pages of an older one.
#[test]
fn a_listing_lacks_what_was_gone_when_it_began() {
    let (_, live) = mounted("");
    for at in 0..2000 {
        File::create(live.path(&format!("n-{at:06}"))).expect("created");
    }
    let lists_some = |listing: &mut RawDir<'_, &File>, count: usize| {
        let mut names = Vec::new();
        while names.len() < count || !listing.is_buffer_empty() {
            let Some(entry) = listing.next() else { break };
            names.push(entry.expect("list").file_name().to_owned());
        }
        names
    };
    // The first listing fills pages with names and stops.
    let first = File::open(&live.dir).expect("opened");
    let mut buffer = [std::mem::MaybeUninit::uninit(); 256];
    let mut old = RawDir::new(&first, &mut buffer);
    lists_some(&mut old, 1500);
    for at in 1000..1400 {
        fs::remove_file(live.path(&format!("n-{at:06}"))).expect("removed");
    }
    // The second one begins after that, and goes on when the third one has reached the end.
    let second = File::open(&live.dir).expect("opened");
    let mut buffer = [std::mem::MaybeUninit::uninit(); 256];
    let mut listing = RawDir::new(&second, &mut buffer);
    let mut names = lists_some(&mut listing, 10);
    assert_eq!(fs::read_dir(&live.dir).expect("list").count(), 1600);
    names.extend(lists_some(&mut listing, usize::MAX));
    let distinct: BTreeSet<_> = names.iter().collect();
    assert_eq!((names.len(), distinct.len()), (1602, 1602));
}

/// Requests for listings so far.
fn listing_request_count(live: &Live) -> u64 {
    request_count(live, "readdir") + request_count(live, "readdirplus")
}

/// Names in the directory `dir`, and how many requests listing it took.
fn listed(live: &Live, dir: &Path) -> (BTreeSet<String>, u64) {
    let before = listing_request_count(live);
    let names = fs::read_dir(dir).expect("list").flatten().collect_names();
    (names, listing_request_count(live) - before)
}

#[test]
fn opening_a_directory_takes_no_request() {
    let (_, live) = mounted("");
    fs::create_dir(live.path("dir")).expect("mkdir");
    for _ in 0..20 {
        fs::read_dir(live.path("dir")).expect("list");
        File::open(live.path("dir"))
            .expect("opened")
            .sync_all()
            .expect("synced");
    }
    assert_eq!(request_count(&live, "opendir"), 1);
    assert_eq!(request_count(&live, "releasedir"), 0);
    // The driver checks the user of each directory that is opened.
    let (_, live) = mounted("allow_root");
    for _ in 0..3 {
        assert_eq!(fs::read_dir(&live.dir).expect("list").count(), 0);
    }
    assert_eq!(request_count(&live, "opendir"), 3);
}

/// Would catch: requests for a listing that the kernel has, and listings that lack a change.
#[test]
fn a_short_listing_takes_no_request_until_a_name_changes() {
    let (_, live) = mounted("");
    for dir in ["dir", "other"] {
        fs::create_dir(live.path(dir)).expect("mkdir");
    }
    let dir = live.path("dir");
    let mut names = BTreeSet::new();
    for at in 0..60 {
        let name = format!("file-{at}");
        File::create(dir.join(&name)).expect("created");
        names.insert(name);
    }
    let changes = [
        ("touch dir/new", "new"),
        ("mkdir dir/sub", "sub"),
        ("ln -s target dir/link", "link"),
        ("ln dir/new dir/hard", "hard"),
        ("mkfifo dir/fifo", "fifo"),
        ("mkdir other/came && mv other/came dir", "came"),
        ("rm dir/new", "new"),
        ("rmdir dir/sub", "sub"),
        ("mv dir/link other", "link"),
        ("mv dir/hard dir/renamed && mv dir/renamed other", "hard"),
    ];
    for (change, name) in changes {
        assert_eq!(listed(&live, &dir).0, names);
        assert_eq!(listed(&live, &dir), (names.clone(), 0), "before {change}");
        live.sh(&format!(r#"cd "$1" && {change}"#));
        if !names.remove(name) {
            names.insert(name.to_owned());
        }
    }
    assert_eq!(listed(&live, &dir).0, names);
    // More than a page is not cached: the kernel can end such a listing early.
    for at in 0..100 {
        File::create(live.path("other").join(format!("a-longer-name-{at}"))).expect("created");
    }
    for _ in 0..3 {
        assert!(listed(&live, &live.path("other")).1 > 0);
    }
    let (_, live) = mounted("strictatime");
    for _ in 0..3 {
        assert!(listed(&live, &live.dir).1 > 0);
    }
}

/// Would catch: the parent of before in the cached listing of a directory that moved.
#[test]
fn a_directory_that_moves_gets_a_new_parent_in_its_listing() {
    let (_, live) = mounted("");
    live.sh(r#"cd "$1" && mkdir -p one/dir two"#);
    let parent_in_listing = |path: &str| {
        let dir = File::open(live.path(path)).expect("opened");
        let mut buffer = [std::mem::MaybeUninit::uninit(); 256];
        let mut listing = RawDir::new(&dir, &mut buffer);
        loop {
            let entry = listing.next().expect("more").expect("list");
            if entry.file_name() == c".." {
                return entry.ino();
            }
        }
    };
    for _ in 0..2 {
        assert_eq!(listed(&live, &live.path("one/dir")).0.len(), 0);
    }
    let ino_of = |path: &str| fs::metadata(live.path(path)).expect("metadata").ino();
    assert_eq!(parent_in_listing("one/dir"), ino_of("one"));
    fs::rename(live.path("one/dir"), live.path("two/dir")).expect("renamed");
    assert_eq!(parent_in_listing("two/dir"), ino_of("two"));
}

/// A listing that is read a few entries at a time.
struct PartialListing {
    dir: File,
    /// Names that it must show: there when it began, and not removed since.
    must: BTreeSet<String>,
    /// Names that it may show.
    may: BTreeSet<String>,
}

impl PartialListing {
    /// Reads some entries; true at the end.
    fn read(&mut self, seed: u64) -> bool {
        let mut buffer = [std::mem::MaybeUninit::uninit(); 300];
        let mut entries = RawDir::new(&self.dir, &mut buffer);
        let mut is_over = true;
        while let Some(entry) = entries.next() {
            is_over = false;
            let entry = entry.expect("list");
            let name = entry.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                self.must.remove(&name);
                assert!(self.may.remove(&name), "seed {seed}: {name} in a listing");
            }
            if entries.is_buffer_empty() {
                break;
            }
        }
        if is_over {
            assert_eq!(self.must, BTreeSet::new(), "seed {seed}: a listing lacks");
        }
        is_over
    }
}

/// Would catch: removed names, and missing ones, in a listing that goes on from a cache that was
/// filled before it began.
#[test]
fn listings_beside_changes_show_what_posix_promises() {
    let (_, live) = mounted("");
    for seed in 0..300 {
        let mut random = Rng::new(seed);
        let dir = live.path(&format!("dir-{seed}"));
        fs::create_dir(&dir).expect("mkdir");
        let mut names = BTreeSet::new();
        let mut listings: Vec<PartialListing> = Vec::new();
        // Many changes between listings, or few.
        let change_every = 2 + random.below(28);
        for _ in 0..200 {
            if random.below(change_every) == 0 {
                let name = format!("name-{:02}", random.below(90));
                if names.remove(&name) {
                    fs::remove_file(dir.join(&name)).expect("removed");
                    for listing in &mut listings {
                        listing.must.remove(&name);
                    }
                } else {
                    File::create(dir.join(&name)).expect("created");
                    for listing in &mut listings {
                        listing.may.insert(name.clone());
                    }
                    names.insert(name);
                }
            } else if listings.len() < 4 && random.below(3) == 0 {
                listings.push(PartialListing {
                    dir: File::open(&dir).expect("opened"),
                    must: names.clone(),
                    may: names.clone(),
                });
                // It begins with the first entries that it reads.
                assert!(!listings.last_mut().expect("begun").read(seed));
            } else if !listings.is_empty() {
                let at = random.below(listings.len() as u64) as usize;
                if listings.get_mut(at).expect("a listing").read(seed) {
                    listings.swap_remove(at);
                }
            }
        }
    }
}
