//! Compares what a scrub says of a damaged store with what readers meet.

use crate::trees::Trees;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use weald_store::Store;
use weald_store::disk::HostDisk;
use weald_store::scrub::{ScrubReport, ScrubWish, WHOLE};
use weald_volume::{ScrubEnd, scrub_alone};

/// What is read of a store.
const WISH: ScrubWish = ScrubWish {
    run: 1,
    tries: 0,
    is_paused: false,
    rate: 0,
    share: WHOLE,
    is_since: false,
};

/// Scrubs the store in `dir`.
pub fn scrub(dir: &Path) -> Result<ScrubReport, String> {
    let is_over = Arc::new(AtomicBool::new(false));
    let scrubbed = Store::open(Arc::new(HostDisk::new(dir))).and_then(|store| {
        // The store was scrubbed before it was damaged.
        let last = store.scrub_report()?.map_or(0, |report| report.wish.run);
        store.put_scrub_wish(&ScrubWish {
            run: last + 1,
            ..WISH
        })?;
        scrub_alone(&store, "a scrub", &is_over, &mut |_| {})
    });
    match scrubbed {
        Ok(ScrubEnd::Done(report)) => Ok(*report),
        Ok(other) => Err(format!("{other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Paths that a reader of `damaged` misses, each with the name of its image or volume; the path is
/// empty if nothing can be read of it.
fn lost(whole: &Trees, damaged: &Trees) -> BTreeSet<(String, String)> {
    let mut lost = BTreeSet::new();
    for (name, tree) in whole {
        let tree = tree.as_ref().expect("a whole tree");
        match &damaged[name] {
            Err(_) => drop(lost.insert((name.clone(), String::new()))),
            Ok(found) => {
                let paths = tree
                    .iter()
                    .filter(|(path, entry)| found.get(*path) != Some(entry));
                lost.extend(paths.map(|(path, _)| (name.clone(), path.clone())));
            }
        }
    }
    lost
}

/// What is wrong with a report, where readers meet `damaged` in place of `whole`.
pub fn faults(report: &ScrubReport, whole: &Trees, damaged: &Trees) -> Vec<String> {
    let mut wrong = Vec::new();
    let lost = lost(whole, damaged);
    // Damage that was made good is told, and costs nothing.
    let costly = report.findings.iter();
    let costly = costly.filter(|finding| !finding.what.contains("nothing is lost"));
    let users = costly.flat_map(|finding| finding.users.iter().flatten());
    let named: BTreeSet<(String, Option<String>)> = users
        .map(|user| {
            let path = user.path.as_ref();
            let path = path.map(|path| format!("/{}", String::from_utf8_lossy(path)));
            (user.name.clone(), path)
        })
        .collect();
    for (name, path) in &lost {
        // An image or a volume as a whole, the file, or a directory above it.
        let is_named = named.iter().any(|(of, at)| {
            let at = at.as_ref().map(|at| at.trim_end_matches('/'));
            let is_above = |at: &str| *path == at || path.starts_with(&format!("{at}/"));
            of == name && (path.is_empty() || at.is_none_or(is_above))
        });
        if !is_named && report.findings.is_empty() {
            wrong.push(format!("the scrub is clean, and misses {name}: {path:?}"));
        } else if !is_named
            && report
                .findings
                .iter()
                .all(|f| f.users.iter().flatten().count() > 0)
        {
            wrong.push(format!("the scrub does not name {name}: {path:?}"));
        }
    }
    for (name, at) in &named {
        let is_lost = lost.iter().any(|(of, path)| {
            let is_below = |at: &String| path == at || path.starts_with(&format!("{at}/"));
            of == name && (path.is_empty() || at.as_ref().is_none_or(is_below))
        });
        if !is_lost {
            let what = format!("the scrub names {name}: {at:?}, which can be read");
            wrong.push(what);
        }
    }
    wrong
}
