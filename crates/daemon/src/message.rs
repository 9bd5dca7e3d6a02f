//! Messages between clients and servers: a length, then JSON, with a few descriptors.
//!
//! A connection carries one request. The first frame gives the protocol version, and both sides
//! must have the same version. An old server therefore refuses a new client with a reason and never
//! misinterprets its request.

use crate::report::{MountReport, ServerReport};
use crate::snapshot_work::{SnapshotReport, SnapshotWork};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use weald_format::{Digest, Error, ErrorKind, Result};
use weald_fuse::{LiveOptions, Negotiated};
use weald_store::tier::TierReport;
use weald_store::{Collected, Imported};

/// Protocol version. Any change of a message increments it.
pub const PROTOCOL: u32 = 12;

/// Words of a refusal of another protocol, in all versions.
const OTHER_PROTOCOL: &str = "speaks protocol";

/// Longest frame in bytes: a request has a few paths, a report a few kilobytes per mount.
const FRAME_LEN_MAX: u32 = 1 << 20;

/// Largest number of descriptors with a frame: an image (or its store), a mount point, and the lock
/// of a store.
const DESCRIPTOR_COUNT_MAX: usize = 3;

/// The first frame of a connection.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) protocol: u32,
    /// A [`Request`], which is parsed only if the protocol version matches.
    pub(crate) request: serde_json::Value,
}

/// Request of a client.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Sent with the descriptors of the image, or of the directory of its store, and of the mount
    /// point.
    Mount(Box<MountRequest>),
    /// Sent with the same descriptors, and the file that the writer of the store locks, open for
    /// writing: mount a volume beside another one of its store. The answer is `Mounted`, or
    /// `NotHere` if this server has no volume of the store.
    MountVolume(Box<MountRequest>),
    Report,
    /// As `Report`, with the space of volumes, which takes longer.
    ReportSpace,
    TakeOver,
    /// Writes the volume that is mounted with this device number (`MAJOR:MINOR`) to disk. The
    /// answer is `Done`, or `NotHere`.
    Sync {
        device: String,
    },
    /// Changes options of the volume that is mounted with this device number. The answer is `Done`,
    /// or `NotHere`.
    SetOptions {
        device: String,
        options: LiveOptions,
    },
    /// Holds the present state of the volume with this name while the connection lasts. The file
    /// that the writer of a store locks comes with it, open for writing. The answer is `Held`, then
    /// [byte frames](crate::byte_frames) with a copy of its rows, then `Done`. [`AddImage`] may
    /// follow.
    Hold(String),
    /// As `Hold`, with what differs between two states in place of all rows: byte frames of the
    /// first state, their end, those of the second one.
    HoldChanges {
        /// The volume.
        volume: String,
        /// Two snapshots of it; without a name, its present state.
        states: [Option<String>; 2],
    },
    /// Sent with the same file: hold the blocks of a store of which a volume is mounted. The answer
    /// is `Held`; [`AddImage`] follows, more than once if the client likes.
    HoldStore,
    /// Sent with the same file: remove an image of a store of which a volume is mounted. The answer
    /// is `Done`. The server completes the removal without the client.
    RemoveImage {
        name: String,
        is_forced: bool,
    },
    /// Sent with the same file: give the image `name` of a store of which a volume is mounted the
    /// name `new`, and replace an image of that name if `replaces` says so. The answer is `Done`.
    /// The server completes it without the client.
    RenameImage {
        name: String,
        new: String,
        replaces: bool,
    },
    /// Sent with the same file: write all mounted volumes of a store to disk. The answer is `Done`.
    Commit,
    /// Sent with the same file: collect a store of which a volume is mounted, as
    /// [`weald_store::CollectOptions`] say. The answer is `Collecting`, then `Collected` or
    /// `Refused`. When the client closes its side, the server comes to an end early.
    Collect {
        copy_below_percent: u64,
        copy_len_max: u64,
    },
    /// Sent with the same file: move between tiers what users and the policies ask for, or what the
    /// image or volume `name` uses to the tier `to`: all of it, or a path and a range of bytes. The
    /// answer is `MovedTiers`.
    MoveTiers {
        wanted: Option<(String, String)>,
        #[serde(default)]
        part: Option<(Vec<u8>, ByteRange)>,
    },
    /// Sent with the same file: do something with the snapshots of the volume of this name. The
    /// answer is `Snapshots`.
    Snapshots {
        volume: String,
        work: SnapshotWork,
    },
}

/// First byte and the one behind the last; `None` for all bytes.
pub(crate) type ByteRange = Option<(u64, u64)>;

/// Answer of a server about moves between tiers: [`TierReport`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MovedTiers {
    time_s: u64,
    moved_count: u64,
    moved_len: u64,
    parked: Vec<(u64, String, String)>,
}

impl From<TierReport> for MovedTiers {
    fn from(report: TierReport) -> Self {
        Self {
            time_s: report.time_s,
            moved_count: report.moved_count,
            moved_len: report.moved_len,
            parked: report.parked,
        }
    }
}

impl From<MovedTiers> for TierReport {
    fn from(sent: MovedTiers) -> Self {
        Self {
            time_s: sent.time_s,
            moved_count: sent.moved_count,
            moved_len: sent.moved_len,
            parked: sent.parked,
        }
    }
}

/// Answer of a server about a collection: [`Collected`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CollectedSpace {
    segments_removed: u64,
    removed_len: u64,
    copied_len: u64,
    blocks_forgotten: u64,
    dead_len: u64,
    punched_len: u64,
    segments_kept: u64,
    maps_damaged: u64,
}

impl From<&Collected> for CollectedSpace {
    fn from(done: &Collected) -> Self {
        Self {
            segments_removed: done.segments_removed,
            removed_len: done.removed_len,
            copied_len: done.copied_len,
            blocks_forgotten: done.blocks_forgotten,
            dead_len: done.dead_len,
            punched_len: done.punched_len,
            segments_kept: done.segments_kept,
            maps_damaged: done.maps_damaged,
        }
    }
}

impl From<CollectedSpace> for Collected {
    fn from(sent: CollectedSpace) -> Self {
        Self {
            segments_removed: sent.segments_removed,
            removed_len: sent.removed_len,
            copied_len: sent.copied_len,
            blocks_forgotten: sent.blocks_forgotten,
            dead_len: sent.dead_len,
            punched_len: sent.punched_len,
            segments_kept: sent.segments_kept,
            maps_damaged: sent.maps_damaged,
        }
    }
}

/// Request on a connection that holds something: byte frames with the parts of an image of this
/// name follow, which [`weald_store::PartsWriter`] makes. The answer is `Added`; `Refused` may come
/// before the end.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AddImage {
    pub(crate) name: String,
}

/// Answer of a server about an image that was added: [`Imported`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AddedImage {
    image_digest: String,
    tree_digest: String,
    image_len: u64,
    block_count: u64,
    new_block_count: u64,
    new_len: u64,
}

impl AddedImage {
    pub(crate) fn of(imported: &Imported) -> Self {
        Self {
            image_digest: imported.image_digest.to_string(),
            tree_digest: imported.tree_digest.to_string(),
            image_len: imported.image_len,
            block_count: imported.block_count,
            new_block_count: imported.new_block_count,
            new_len: imported.new_len,
        }
    }

    pub(crate) fn into_imported(self) -> Result<Imported> {
        let digest = |text: &str| {
            let digest = Digest::from_hex(text);
            digest.ok_or_else(|| Error::invalid("expected 64 hexadecimal digits"))
        };
        Ok(Imported {
            image_digest: digest(&self.image_digest)?,
            tree_digest: digest(&self.tree_digest)?,
            image_len: self.image_len,
            block_count: self.block_count,
            new_block_count: self.new_block_count,
            new_len: self.new_len,
        })
    }
}

/// A mount request. All paths are absolute, except those in `options`, which are relative to
/// `working_dir`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct MountRequest {
    /// Path or `STORE:NAME` of the image, for display and for opening it again in a hand-over.
    pub image: OsString,
    /// Name of the image in its store, if it is in one.
    pub stored: Option<String>,
    /// Whether `stored` names a volume.
    pub is_volume: bool,
    /// The URL of the image with all its parts, of which `image` shows those that are no secrets.
    /// Such a request goes to a server of its own, which has the environment of the client.
    pub url: Option<String>,
    /// Path of the mount point, for display.
    pub dir: OsString,
    /// The arguments of `-o`.
    pub options: Vec<String>,
    /// Base of relative paths in `options`.
    pub working_dir: OsString,
    /// Data to decode before it is requested.
    pub prefetch: Option<Prefetch>,
    /// File that receives the recorded hotness when the mount ends.
    pub record: Option<OsString>,
    /// File that receives a trace of all requests.
    pub trace: Option<OsString>,
    /// Log file of the server from now on.
    pub log: Option<OsString>,
}

/// Data to decode before it is requested.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Prefetch {
    /// As much of the image as the cache holds.
    All,
    /// The data listed in this hotness file, recorded on another mount.
    File(OsString),
}

/// Answer of a server to a request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Mounted,
    /// Followed by one message per mount, as counted in the report.
    Server(ServerReport),
    Mount(Box<MountReport>),
    Held,
    /// This server does not have the volume.
    NotHere,
    Done,
    Added(AddedImage),
    Collecting,
    Collected(CollectedSpace),
    MovedTiers(MovedTiers),
    /// A part of a list; the next one follows if there is more.
    Snapshots {
        list: Vec<SnapshotReport>,
        has_more: bool,
    },
    Refused(Refusal),
}

/// Messages of the giver, in this order. `Refused` may replace any of them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Giving {
    /// Sent with the listening socket.
    Server {
        cache_len: u64,
        ends_when_idle: bool,
        log: Option<OsString>,
        mount_count: u64,
    },
    Mount(Box<HandedMount>),
    /// Sent with the connection to the kernel, in the order of the mounts.
    Device {
        negotiated: Negotiated,
        dir: OsString,
        mount_id: u64,
    },
    /// Replaces `Device` if the mount has ended meanwhile.
    Over,
    /// The taker has the mounts now.
    Released,
    Refused(Refusal),
}

/// Messages of the taker: it has opened all images; it has all connections.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Taking {
    Ready,
    Confirmed,
}

/// A mount in a hand-over.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct HandedMount {
    pub(crate) request: MountRequest,
    pub(crate) image_digest: String,
    pub(crate) generation: u64,
    pub(crate) started: u64,
}

/// An error with its causes, outermost first.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Refusal {
    causes: Vec<String>,
    is_busy: bool,
    #[serde(default)]
    is_missing: bool,
}

/// A cause and the cause below it, as an error.
#[derive(Debug)]
struct Cause {
    text: String,
    source: Option<Box<Cause>>,
}

impl Refusal {
    pub(crate) fn of(error: &Error) -> Self {
        let first: &(dyn std::error::Error + 'static) = error;
        let causes = std::iter::successors(Some(first), |error| error.source());
        Self {
            causes: causes.map(ToString::to_string).collect(),
            is_busy: error.kind() == ErrorKind::Busy,
            is_missing: error.kind() == ErrorKind::NotFound,
        }
    }

    /// Whether a server refuses every request of this client, since it speaks another protocol.
    pub(crate) fn is_of_protocol(&self) -> bool {
        let first = self.causes.first();
        first.is_some_and(|text| text.contains(OTHER_PROTOCOL))
    }

    pub(crate) fn into_error(self) -> Error {
        let kind = match (self.is_busy, self.is_missing) {
            (true, _) => ErrorKind::Busy,
            (_, true) => ErrorKind::NotFound,
            _ => ErrorKind::Invalid,
        };
        let mut causes = self.causes.into_iter();
        let what = causes.next().unwrap_or_default();
        let chain = causes.rev().fold(None, |source, text| {
            Some(Cause {
                text,
                source: source.map(Box::new),
            })
        });
        match chain {
            Some(cause) => Error::new(kind, what).with_source(cause),
            None => Error::new(kind, what),
        }
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Cause {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|cause| cause as _)
    }
}

impl Hello {
    /// Starts a connection with `request`.
    pub(crate) fn send(
        stream: &UnixStream,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<()> {
        let request = serde_json::to_value(request).map_err(|e| malformed(&e))?;
        let hello = Self {
            protocol: PROTOCOL,
            request,
        };
        send(stream, &hello, descriptors)
    }

    /// Parses the request.
    ///
    /// # Errors
    /// `Unsupported` for another protocol version, `Invalid`.
    pub(crate) fn request(self) -> Result<Request> {
        if self.protocol != PROTOCOL {
            let text = format!(
                "this server (weald {}) {OTHER_PROTOCOL} {PROTOCOL}, the client {}; expected one \
                 version of both: unmount what the server has ('weald mounts' of its version \
                 lists it), then mount again",
                env!("CARGO_PKG_VERSION"),
                self.protocol
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        serde_json::from_value(self.request).map_err(|e| malformed(&e))
    }
}

/// Sends a frame with at most [`DESCRIPTOR_COUNT_MAX`] descriptors.
///
/// # Errors
/// `Limit` if the frame is too long, `Io`.
pub(crate) fn send(
    mut stream: &UnixStream,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> Result<()> {
    let body = serde_json::to_vec(message).map_err(|e| malformed(&e))?;
    let len = u32::try_from(body.len())
        .ok()
        .filter(|len| *len <= FRAME_LEN_MAX);
    let len = len.ok_or_else(|| Error::limit(format!("a message of {} bytes", body.len())))?;
    let head = len.to_le_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTOR_COUNT_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if descriptors.len() > DESCRIPTOR_COUNT_MAX {
        return Err(too_many());
    }
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let sent = rustix::io::retry_on_intr(|| {
        let parts = [IoSlice::new(&head)];
        sendmsg(stream, &parts, &mut control, SendFlags::NOSIGNAL)
    });
    let sent = sent.map_err(|errno| lost(errno.into()))?;
    stream
        .write_all(head.get(sent..).unwrap_or_default())
        .map_err(lost)?;
    stream.write_all(&body).map_err(lost)
}

/// Receives a frame and its descriptors; `None` if the other side has closed the connection.
///
/// # Errors
/// `Limit` for a frame that is too long (nothing is allocated for it), and for more than
/// [`DESCRIPTOR_COUNT_MAX`] descriptors. `Invalid` for a malformed message. `Io`, also if the frame
/// is not complete within `timeout` (`None`: no limit).
pub(crate) fn receive<T: DeserializeOwned>(
    stream: &UnixStream,
    timeout: Option<Duration>,
) -> Result<Option<(T, Vec<OwnedFd>)>> {
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let mut head = [0; 4];
    let mut descriptors = Vec::new();
    let mut filled = 0;
    while let Some(rest) = head.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        wait_until(stream, deadline)?;
        let len = receive_part(stream, rest, &mut descriptors)?;
        if descriptors.len() > DESCRIPTOR_COUNT_MAX {
            return Err(too_many());
        }
        match (len, filled) {
            (0, 0) => return Ok(None),
            (0, _) => return Err(cut()),
            _ => filled += len,
        }
    }
    let len = u32::from_le_bytes(head);
    if len > FRAME_LEN_MAX {
        return Err(Error::limit(format!(
            "a message of {len} bytes, expected at most {FRAME_LEN_MAX}"
        )));
    }
    let body = receive_body(stream, len as usize, deadline)?;
    let message = serde_json::from_slice(&body).map_err(|e| malformed(&e))?;
    Ok(Some((message, descriptors)))
}

fn receive_body(mut stream: &UnixStream, len: usize, deadline: Option<Instant>) -> Result<Vec<u8>> {
    let mut body = vec![0; len];
    let mut filled = 0;
    while let Some(rest) = body.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        wait_until(stream, deadline)?;
        match stream.read(rest) {
            Ok(0) => return Err(cut()),
            Ok(len) => filled += len,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(lost(error)),
        }
    }
    Ok(body)
}

/// Fills `buffer` with the next bytes and appends their descriptors to `descriptors`. Returns the
/// number of bytes.
fn receive_part(
    stream: &UnixStream,
    buffer: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTOR_COUNT_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(buffer)];
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(
            stream.as_fd(),
            &mut parts,
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    });
    let received = received.map_err(|errno| lost(errno.into()))?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    // The kernel closes descriptors that do not fit the buffer.
    if received.flags.contains(ReturnFlags::CTRUNC) {
        Err(too_many())
    } else {
        Ok(received.bytes)
    }
}

/// Limits the next read to the time that remains until `deadline`.
fn wait_until(stream: &UnixStream, deadline: Option<Instant>) -> Result<()> {
    let remaining = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    if remaining == Some(Duration::ZERO) {
        return Err(lost(std::io::ErrorKind::TimedOut.into()));
    }
    stream.set_read_timeout(remaining).map_err(lost)
}

fn lost(error: std::io::Error) -> Error {
    Error::io("connection between server and client", error)
}

fn cut() -> Error {
    lost(std::io::ErrorKind::UnexpectedEof.into())
}

fn too_many() -> Error {
    Error::limit(format!(
        "descriptors of a message: expected at most {DESCRIPTOR_COUNT_MAX}, and room for them \
         below the limit of open files (ulimit -n)"
    ))
}

fn malformed(error: &serde_json::Error) -> Error {
    Error::invalid(format!("not a message of protocol {PROTOCOL}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    const SOON: Option<Duration> = Some(Duration::from_millis(50));

    fn framed(body: &[u8]) -> Vec<u8> {
        let len = u32::try_from(body.len()).expect("short");
        [&len.to_le_bytes(), body].concat()
    }

    /// Result of a server that receives `bytes` before the client closes the connection.
    fn received(bytes: &[u8]) -> Result<Option<Request>> {
        let (ours, mut theirs) = UnixStream::pair().expect("pair");
        theirs.write_all(bytes).expect("fits into the socket");
        drop(theirs);
        match receive::<Hello>(&ours, SOON)? {
            Some((hello, _)) => hello.request().map(Some),
            None => Ok(None),
        }
    }

    #[test]
    fn requests_come_back_with_names_of_any_bytes_and_their_descriptors() {
        let (ours, theirs) = UnixStream::pair().expect("pair");
        let name = OsString::from_vec(b"caf\xe9".to_vec());
        let mount = MountRequest {
            image: name.clone(),
            options: vec!["noexec".into()],
            ..MountRequest::default()
        };
        let descriptors = [theirs.as_fd(), ours.as_fd()];
        send(&theirs, &mount, &descriptors).expect("sent");
        let (back, received) = receive::<MountRequest>(&ours, None)
            .expect("whole")
            .expect("some");
        assert_eq!((back.image, back.options), (name, mount.options));
        let inode = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).expect("stat").st_ino;
        let inodes: Vec<_> = received.iter().map(|fd| inode(fd.as_fd())).collect();
        assert_eq!(inodes, descriptors.map(inode));
        Hello::send(&theirs, &Request::Report, &[]).expect("sent");
        let (hello, descriptors) = receive::<Hello>(&ours, None).expect("whole").expect("some");
        assert!(matches!(hello.request(), Ok(Request::Report)) && descriptors.is_empty());
    }

    /// Would catch: descriptors of a broken client that accumulate in the server.
    #[test]
    fn more_descriptors_than_a_message_needs_are_refused() {
        let (ours, theirs) = UnixStream::pair().expect("pair");
        let fds = [theirs.as_fd(); DESCRIPTOR_COUNT_MAX + 1];
        let refused = send(&theirs, &Taking::Ready, &fds).expect_err("too many");
        assert_eq!(refused.kind(), ErrorKind::Limit);
        let head = 7u32.to_le_bytes();
        for (part, count) in [(&head[..2], 2), (&head[2..], 2)] {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds[..count])));
            let parts = [IoSlice::new(part)];
            sendmsg(&theirs, &parts, &mut control, SendFlags::NOSIGNAL).expect("sent");
        }
        let refused = receive::<Taking>(&ours, None).expect_err("too many");
        assert_eq!(refused.kind(), ErrorKind::Limit);
    }

    /// Would catch: a panic, an endless wait or a huge allocation on malformed input.
    #[test]
    fn every_prefix_and_every_flipped_bit_is_refused_or_understood() {
        let whole = format!(r#"{{"protocol":{PROTOCOL},"request":"Report"}}"#);
        let whole = framed(whole.as_bytes());
        assert!(matches!(received(&whole), Ok(Some(Request::Report))));
        assert!(matches!(received(&[]), Ok(None)));
        for len in 1..whole.len() {
            received(&whole[..len]).expect_err("cut");
        }
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let _ = received(&bytes);
        }
        let long = received(&(FRAME_LEN_MAX + 1).to_le_bytes()).expect_err("too long");
        assert_eq!(long.kind(), ErrorKind::Limit);
        let deep = received(&framed("[".repeat(100_000).as_bytes())).expect_err("too deep");
        assert_eq!(deep.kind(), ErrorKind::Invalid);
    }

    #[test]
    fn another_protocol_is_refused_with_a_reason() {
        let other = framed(br#"{"protocol":1,"request":{"Dance":[1,2]}}"#);
        let error = received(&other).expect_err("unknown");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("then mount again"), "{error}");
        assert!(Refusal::of(&error).is_of_protocol());
        assert!(!Refusal::of(&too_many()).is_of_protocol());
    }

    /// Would catch: a client that sends single bytes slowly and so keeps a connection for ever.
    #[test]
    fn a_frame_has_to_come_in_time() {
        let (ours, mut theirs) = UnixStream::pair().expect("pair");
        theirs.write_all(&[9, 0]).expect("written");
        let late = receive::<Hello>(&ours, SOON).expect_err("the rest never comes");
        assert_eq!(late.kind(), ErrorKind::Io);
    }

    #[test]
    fn refusals_keep_their_causes() {
        let io = std::io::Error::from_raw_os_error(2);
        let error = Error::new(ErrorKind::Busy, "outer").with_source(Error::io("inner", io));
        let back = Refusal::of(&error).into_error();
        let texts = Refusal::of(&back).causes;
        assert_eq!(texts, Refusal::of(&error).causes);
        assert_eq!((back.kind(), texts.len()), (ErrorKind::Busy, 3));
    }
}
