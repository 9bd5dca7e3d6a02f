//! Listings of directories of a writable mount, and the caches of the kernel.

use super::*;
use rustix::fs::RawDir;

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

#[test]
fn opening_a_directory_takes_no_request() {
    let (_, live) = mounted("");
    fs::create_dir(live.path("dir")).expect("mkdir");
    for at in 1..20 {
        File::create(live.path("dir").join(at.to_string())).expect("created");
        let before = request_count(&live, "readdir") + request_count(&live, "readdirplus");
        assert_eq!(fs::read_dir(live.path("dir")).expect("list").count(), at);
        File::open(live.path("dir"))
            .expect("opened")
            .sync_all()
            .expect("synced");
        let after = request_count(&live, "readdir") + request_count(&live, "readdirplus");
        assert!(after > before, "the kernel answered a listing");
    }
    assert_eq!(request_count(&live, "opendir"), 1);
    assert_eq!(request_count(&live, "releasedir"), 0);
    // The driver checks the user of each directory that is opened.
    let (_, live) = mounted("allow_root");
    for _ in 0..3 {
        assert_eq!(fs::read_dir(&live.dir).expect("list").count(), 0);
    }
    // A request is counted a moment after its answer.
    wait_until("three opens", || request_count(&live, "opendir") == 3);
}
