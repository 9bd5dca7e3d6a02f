//! Changes the store of a mounted volume for a client, which shows that it could do so itself: it
//! can open the store's lock for writing.

use crate::hold_server::{refuse, volume_named, volume_of_store};
use crate::message::{Reply, send};
use crate::shared::Shared;
use crate::snapshot_work::{SnapshotReport, SnapshotWork, work_in};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use weald_format::Result;
use weald_store::{CollectOptions, IfTaken};
use weald_volume::{CollectStep, Removing, TierMove};

/// Bytes of a part of a list of snapshots, from which on the next one begins. Bytes of text may
/// become six in JSON; the longest report has 13 KB of tags.
const LIST_LEN: usize = 100 << 10;

/// Bytes of a report beside its texts, roughly.
const REPORT_LEN: usize = 500;

/// Removes the image `name`, also if the client ends meanwhile.
///
/// # Errors
/// `Io` of the connection.
pub(crate) fn remove_image(
    shared: &Shared,
    stream: &UnixStream,
    (name, is_forced): (&str, bool),
    descriptors: &[OwnedFd],
) -> Result<()> {
    let begun = match volume_of_store(shared, descriptors) {
        Ok(Some(volume)) => volume.begin_removal(name, is_forced),
        Ok(None) => return send(stream, &Reply::NotHere, &[]),
        Err(error) => Err(error),
    };
    // The volume is not kept: it may be unmounted meanwhile.
    match begun.and_then(Removing::finish) {
        Ok(()) => send(stream, &Reply::Done, &[]),
        Err(error) => refuse(stream, &error),
    }
}

/// Gives the image of the first name the second one, also if the client ends meanwhile.
///
/// # Errors
/// `Io` of the connection.
pub(crate) fn rename_image(
    shared: &Shared,
    stream: &UnixStream,
    (name, new, if_taken): (&str, &str, IfTaken),
    descriptors: &[OwnedFd],
) -> Result<()> {
    let volume = match volume_of_store(shared, descriptors) {
        Ok(Some(volume)) => volume,
        Ok(None) => return send(stream, &Reply::NotHere, &[]),
        Err(error) => return refuse(stream, &error),
    };
    match volume.rename_image(name, new, if_taken) {
        Ok(()) => send(stream, &Reply::Done, &[]),
        Err(error) => refuse(stream, &error),
    }
}

/// Writes all mounted volumes of a store to disk.
///
/// # Errors
/// `Io` of the connection.
pub(crate) fn commit(shared: &Shared, stream: &UnixStream, descriptors: &[OwnedFd]) -> Result<()> {
    match volume_of_store(shared, descriptors) {
        Ok(Some(volume)) => match volume.commit_store() {
            Ok(()) => send(stream, &Reply::Done, &[]),
            Err(error) => refuse(stream, &error),
        },
        Ok(None) => send(stream, &Reply::NotHere, &[]),
        Err(error) => refuse(stream, &error),
    }
}

/// Moves between the tiers of a store, also if the client ends meanwhile.
///
/// # Errors
/// `Io` of the connection.
pub(crate) fn move_tiers(
    shared: &Shared,
    stream: &UnixStream,
    wanted: Option<&TierMove>,
    descriptors: &[OwnedFd],
) -> Result<()> {
    let store = match volume_of_store(shared, descriptors) {
        // The volume is not kept: it may be unmounted meanwhile.
        Ok(Some(volume)) => volume.store().clone(),
        Ok(None) => return send(stream, &Reply::NotHere, &[]),
        Err(error) => return refuse(stream, &error),
    };
    match weald_volume::move_between_tiers(&store, wanted) {
        Ok(report) => send(stream, &Reply::MovedTiers(report.into()), &[]),
        Err(error) => refuse(stream, &error),
    }
}

/// Does something with the snapshots of a volume, which need not be mounted itself.
///
/// # Errors
/// `Io` of the connection.
pub(crate) fn work_on_snapshots(
    shared: &Shared,
    stream: &UnixStream,
    (name, work): (&str, &SnapshotWork),
    descriptors: &[OwnedFd],
) -> Result<()> {
    let store = match volume_of_store(shared, descriptors) {
        Ok(Some(volume)) => volume.store().clone(),
        Ok(None) => return send(stream, &Reply::NotHere, &[]),
        Err(error) => return refuse(stream, &error),
    };
    let mounted = volume_named(shared, name, descriptors);
    match mounted.and_then(|mounted| work_in(&store, name, mounted, work)) {
        Ok(list) => send_list(stream, list),
        Err(error) => refuse(stream, &error),
    }
}

/// Sends a list in parts, of which each fits into a message.
fn send_list(stream: &UnixStream, list: Vec<SnapshotReport>) -> Result<()> {
    let mut list = list.into_iter().peekable();
    loop {
        let (mut part, mut len) = (Vec::new(), 0);
        while len < LIST_LEN
            && let Some(report) = list.next()
        {
            len += REPORT_LEN + report.name.len() + report.holds.concat().len();
            part.push(report);
        }
        let has_more = list.peek().is_some();
        let part = Reply::Snapshots {
            list: part,
            has_more,
        };
        send(stream, &part, &[])?;
        if !has_more {
            return Ok(());
        }
    }
}

/// Time between two looks whether a hold has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Collects a store. Comes to an end early when the client closes its side of the connection.
///
/// # Errors
/// `Io` of the connection.
pub(crate) fn collect(
    shared: &Shared,
    stream: &UnixStream,
    options: &CollectOptions,
    descriptors: &[OwnedFd],
) -> Result<()> {
    let begun = match volume_of_store(shared, descriptors) {
        Ok(Some(volume)) => volume.begin_collection(options),
        Ok(None) => return send(stream, &Reply::NotHere, &[]),
        Err(error) => Err(error),
    };
    let mut collecting = match begun {
        Ok(collecting) => collecting,
        Err(error) => return refuse(stream, &error),
    };
    send(stream, &Reply::Collecting, &[])?;
    let mut is_stopped = false;
    loop {
        match collecting.step() {
            Ok(CollectStep::Done) => {
                return send(stream, &Reply::Collected(collecting.done().into()), &[]);
            }
            Ok(CollectStep::Waiting) => std::thread::sleep(LOOK_INTERVAL),
            Ok(CollectStep::More) => {}
            Err(error) => return refuse(stream, &error),
        }
        if !is_stopped && has_left(stream) {
            collecting.stop();
            is_stopped = true;
        }
    }
}

/// Whether the client has closed its side; it says nothing more.
fn has_left(stream: &UnixStream) -> bool {
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut ends = [PollFd::new(stream, PollFlags::IN)];
    poll(&mut ends, Some(&at_once)).is_ok_and(|count| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::receive;
    use crate::snapshot_work::SnapshotSpaceReport;
    use crate::store_request::receive_list;

    // Would catch: a list that is longer than a message may be, or of which a part is lost.
    #[test]
    fn a_list_of_any_length_arrives() {
        let report = |no: usize, count| SnapshotReport {
            is_mounted: false,
            name: format!("{no}-{}", "\u{1}".repeat(190)),
            created: i64::MAX,
            commit: u64::MAX,
            holds: vec!["\u{2}".repeat(200); count],
            space: Some(SnapshotSpaceReport {
                kept_count: u64::MAX,
                own_count: u64::MAX,
                own_len: u64::MAX,
            }),
        };
        for (count, holds) in [(0, 0), (1, 64), (5000, 0), (300, 64)] {
            let wanted: Vec<_> = (0..count).map(|no| report(no, holds)).collect();
            let (ours, theirs) = UnixStream::pair().expect("a pair");
            let found = std::thread::scope(|scope| {
                let list = wanted.clone();
                let sent = scope.spawn(move || send_list(&theirs, list));
                let (first, _) = receive::<Reply>(&ours, None)
                    .expect("read")
                    .expect("a part");
                let found = receive_list(&ours, first).expect("a list");
                sent.join().expect("no panic").expect("sent");
                found
            });
            assert_eq!(found, wanted);
        }
    }
}
