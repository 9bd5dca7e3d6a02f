//! Steps of a simulated run, chosen from a seed. A step names its files by numbers that every state
//! of the file system can resolve. So a history still runs after any step was removed.

use crate::cut::{Format, archive, tar_header};
use crate::hook::Stage;
use weald_format::limits::FILE_LEN_MAX;
use weald_store::simulated_disk::{Fault, Random};

/// Bytes to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    Zeros,
    /// One of a few contents that come again and again.
    Common(u8),
    Unique(u64),
}

impl Fill {
    pub fn bytes(self, len: usize) -> Vec<u8> {
        let seed = match self {
            Self::Zeros => return vec![0; len],
            Self::Common(no) => u64::from(no),
            Self::Unique(seed) => seed | 1 << 40,
        };
        let mut random = Random::new(seed);
        (0..len).map(|_| random.next() as u8).collect()
    }
}

/// Bytes from `at` on of the content with this number: some contents are archives.
pub fn content(number: u8, at: u64, len: usize) -> Vec<u8> {
    // Nothing makes the gigabytes in front of a write behind a hole.
    let at = if at < CONTENT_PERIOD_LEN {
        at as usize
    } else {
        0
    };
    let mut random = Random::new(number.into());
    let mut members = Vec::new();
    let mut total = 0;
    while total < at + len {
        let member = match random.below(4) {
            0 => Fill::Common(random.below(3) as u8).bytes(random.below(100) as usize),
            1 => Fill::Zeros.bytes(random.below(3 * PAGE_LEN) as usize),
            _ => Fill::Common(random.below(3) as u8).bytes(random.below(3 * PAGE_LEN) as usize),
        };
        total += member.len();
        members.push(member);
    }
    let members: Vec<&[u8]> = members.iter().map(Vec::as_slice).collect();
    let all = match number % 8 {
        0 => archive(Format::Tar, &members),
        1..3 => mixed_tar(&members),
        3 => archive(Format::Cpio, &members),
        4 => archive(Format::Ar, &members),
        _ => members.concat(),
    };
    // Directories leave their content out.
    all.into_iter().cycle().skip(at).take(len).collect()
}

/// A tar whose members are files, attributes and directories, by their length.
fn mixed_tar(members: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    for member in members {
        let kind = [b'0', b'0', b'x', b'5'][member.len() % 4];
        out.extend(tar_header("member", member.len() as u64, kind));
        if kind != b'5' {
            out.extend_from_slice(member);
            out.resize(out.len().next_multiple_of(512), 0);
        }
    }
    out
}

/// A change of the file system, or a look at it. `file` and `dir` count the inodes of the model,
/// `name` those of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    Create {
        dir: u8,
        name: u8,
        kind: u8,
    },
    CreateUnnamed {
        dir: u8,
    },
    Link {
        file: u8,
        dir: u8,
        name: u8,
    },
    Unlink {
        dir: u8,
        name: u8,
    },
    RemoveDir {
        dir: u8,
        name: u8,
    },
    Rename {
        from: (u8, u8),
        to: (u8, u8),
        mode: u8,
    },
    Forget {
        file: u8,
    },
    Write {
        file: u8,
        offset: u64,
        len: u32,
        fill: Fill,
    },
    /// A write at the end: what follows there in a content that other files have, too.
    Append {
        file: u8,
        len: u32,
        content: u8,
    },
    SetSize {
        file: u8,
        size: u64,
    },
    SetStat {
        file: u8,
        which: u8,
        value: u16,
    },
    Allocate {
        file: u8,
        mode: u8,
        offset: u64,
        len: u64,
    },
    Copy {
        from: (u8, u64),
        to: (u8, u64),
        len: u64,
    },
    SetXattr {
        file: u8,
        name: u8,
        len: u16,
        mode: u8,
    },
    RemoveXattr {
        file: u8,
        name: u8,
    },
    /// A limit of everything that is never reached; 0 for none.
    SetQuota {
        limit: u8,
    },
    Read {
        file: u8,
        offset: u64,
        len: u32,
    },
    Seek {
        file: u8,
        offset: u64,
    },
}

/// Something that happens beside a commit or a record of the sync log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    Do(Op),
    /// A sync that the log takes, if it can. Beside another sync, its record is written before that
    /// sync returns.
    Sync,
    /// The next call of the disk fails.
    Fail(Fault),
    /// An operation on the other volume of the store.
    DoOther(Op),
    /// A sync of the other volume that its log takes, if it can.
    SyncOther,
    /// A commit of the other volume, which also returns space, if it need not wait for the writer.
    CommitOther,
}

/// An image that is added to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddImage {
    /// Part of its name.
    pub number: u64,
    /// Operations between its parts, each followed by a commit.
    pub beside: Vec<Op>,
    /// Number of moments between parts after which the other process dies.
    pub given_up_after: Option<u64>,
    /// Whether the power is cut as soon as the image is listed.
    pub is_cut: bool,
}

/// An image that is removed from the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoveImage {
    /// Chooses it among those that are there.
    pub which: u64,
    /// Operations between the parts of the removal, each followed by a commit.
    pub beside: Vec<Op>,
    /// Number of parts after which the power is cut.
    pub cut_after: Option<u64>,
}

/// An image that gets another name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenameImage {
    /// Chooses it among those that are there.
    pub which: u64,
    /// The new name, which another image may have.
    pub number: u64,
    /// Whether an image of that name is replaced.
    pub replaces: bool,
}

/// Something that happens between two steps of a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Between {
    /// A change that stays in memory.
    Do(Op),
    /// A change, and a commit.
    Commit(Op),
    Sync,
    ReturnSpace,
    Compare,
    /// A seal begins; the collection waits for its end.
    Hold,
}

/// A collection of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collect {
    /// Share of live bytes below which a segment is emptied.
    pub copy_below_percent: u64,
    /// Events between the steps, each with the number of steps before it.
    pub between: Vec<(u64, Between)>,
    /// Number of steps after which the client ends.
    pub stopped_after: Option<u64>,
    /// Number of steps after which the power is cut.
    pub cut_after: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Do(Op),
    /// A sync, and what happens beside it.
    Sync(Vec<(Stage, Beside)>),
    /// A commit, and what happens beside it.
    Commit(Vec<(Stage, Beside)>),
    ReturnSpace,
    /// A seal begins. It copies the rows now, or when it reads them (`is_late`).
    Hold {
        is_late: bool,
    },
    /// The seal reads everything, and ends. It may add an image to the store.
    Seal(Option<AddImage>),
    RemoveImage(RemoveImage),
    RenameImage(RenameImage),
    Collect(Collect),
    /// The call of the disk after this many others fails.
    Fail(Fault, u64),
    Compare,
    /// Unmount and mount.
    Reopen,
    /// kill -9 and mount.
    Kill,
    /// Power cut and mount.
    PowerCut,
    /// A step on the second volume of the store.
    Other(Box<Self>),
    OnSnapshots(OnSnapshots),
    Scrub(Scrub),
}

/// Steps of a scrub: of the one that is under way, or of a new one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scrub {
    /// What happens between the steps, each with the number of steps before it.
    pub between: Vec<(u64, Step)>,
    /// Number of steps after which the power is cut.
    pub cut_after: Option<u64>,
    /// Number of steps after which nobody goes on, until the next scrub.
    pub left_after: Option<u64>,
}

/// What is done with snapshots. `which` chooses one of those that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnSnapshots {
    Take {
        number: u64,
    },
    Remove {
        which: u64,
    },
    /// A step of removals.
    Sweep,
    /// The volume gets the state of a snapshot again. The power may be cut after some calls of the
    /// disk.
    RollBack {
        which: u64,
        cut_after: Option<u64>,
    },
    /// A volume that starts as a snapshot, which is changed and removed.
    Clone {
        which: u64,
        op: Op,
    },
}

const PAGE_LEN: u64 = 4096;
/// Bytes of a file beyond which its content begins again.
const CONTENT_PERIOD_LEN: u64 = 128 << 10;

fn any(random: &mut Random) -> u8 {
    random.next() as u8
}

fn offset(random: &mut Random) -> u64 {
    match random.below(40) {
        0 => (1 << 40) + random.below(3 * PAGE_LEN),
        1 => FILE_LEN_MAX - random.below(3 * PAGE_LEN),
        2..20 => random.below(8) * PAGE_LEN,
        _ => random.below(9 * PAGE_LEN),
    }
}

fn len(random: &mut Random) -> u32 {
    let len = match random.below(8) {
        0 => random.below(20),
        1..4 => random.below(3 * PAGE_LEN),
        4..7 => (1 + random.below(4)) * PAGE_LEN,
        _ => random.below(6 * PAGE_LEN),
    };
    len as u32
}

fn fill(random: &mut Random) -> Fill {
    match random.below(8) {
        0 => Fill::Zeros,
        1..5 => Fill::Common(random.below(3) as u8),
        _ => Fill::Unique(random.next()),
    }
}

fn names_op(random: &mut Random) -> Op {
    let r = random;
    match r.below(13) {
        0..5 => Op::Create {
            dir: any(r),
            name: any(r),
            kind: any(r),
        },
        5 => Op::CreateUnnamed { dir: any(r) },
        6 => Op::Link {
            file: any(r),
            dir: any(r),
            name: any(r),
        },
        7..9 => Op::Unlink {
            dir: any(r),
            name: any(r),
        },
        9 => Op::RemoveDir {
            dir: any(r),
            name: any(r),
        },
        10 => Op::Forget { file: any(r) },
        _ => Op::Rename {
            from: (any(r), any(r)),
            to: (any(r), any(r)),
            mode: any(r),
        },
    }
}

fn file_op(random: &mut Random) -> Op {
    let r = random;
    match r.below(22) {
        20..22 => append(r),
        0..9 => Op::Write {
            file: any(r),
            offset: offset(r),
            len: len(r),
            fill: fill(r),
        },
        9..11 => Op::SetSize {
            file: any(r),
            size: offset(r),
        },
        11 => Op::SetStat {
            file: any(r),
            which: any(r),
            value: r.next() as u16,
        },
        12..14 => Op::Allocate {
            file: any(r),
            mode: any(r),
            offset: offset(r),
            len: len(r).into(),
        },
        14..16 => Op::Copy {
            from: (any(r), offset(r)),
            to: (any(r), offset(r)),
            len: len(r).into(),
        },
        16 => Op::SetXattr {
            file: any(r),
            name: any(r),
            len: r.below(300) as u16,
            mode: any(r),
        },
        17 => Op::RemoveXattr {
            file: any(r),
            name: any(r),
        },
        18 if r.is_one_in(3) => Op::SetQuota { limit: any(r) % 4 },
        18 => Op::Seek {
            file: any(r),
            offset: offset(r),
        },
        _ => Op::Read {
            file: any(r),
            offset: offset(r),
            len: len(r),
        },
    }
}

fn append(random: &mut Random) -> Op {
    Op::Append {
        file: any(random),
        len: len(random),
        content: random.below(8) as u8,
    }
}

pub fn op(random: &mut Random) -> Op {
    match random.below(5) {
        0..2 => names_op(random),
        _ => file_op(random),
    }
}

/// An operation that a commit in the same thread does not make wait for itself.
fn op_beside(random: &mut Random) -> Op {
    loop {
        match op(random) {
            Op::Copy { .. } | Op::Allocate { .. } => {}
            // More than a layer may take.
            Op::Write { len, .. } | Op::Append { len, .. } if len > 3 * PAGE_LEN as u32 => {}
            op => return op,
        }
    }
}

fn add_image(random: &mut Random) -> AddImage {
    let count = random.below(4);
    AddImage {
        number: random.below(5),
        beside: (0..count).map(|_| op_beside(random)).collect(),
        given_up_after: random.is_one_in(5).then(|| random.below(5)),
        is_cut: random.is_one_in(4),
    }
}

fn remove_image(random: &mut Random) -> RemoveImage {
    let count = random.below(4);
    RemoveImage {
        which: random.next(),
        beside: (0..count).map(|_| op_beside(random)).collect(),
        cut_after: random.is_one_in(3).then(|| random.below(5)),
    }
}

pub fn collect(random: &mut Random) -> Collect {
    let count = random.below(6);
    let mut between: Vec<_> = (0..count)
        .map(|_| {
            let what = match random.below(10) {
                0..3 => Between::Do(op_beside(random)),
                3..6 => Between::Commit(op_beside(random)),
                6 => Between::Sync,
                7 => Between::ReturnSpace,
                8 => Between::Compare,
                _ => Between::Hold,
            };
            (random.below(24), what)
        })
        .collect();
    between.sort_by_key(|(after, _)| *after);
    Collect {
        copy_below_percent: [0, 80, 100, 100][random.below(4) as usize],
        between,
        stopped_after: random.is_one_in(6).then(|| random.below(15)),
        cut_after: random.is_one_in(4).then(|| random.below(24)),
    }
}

fn beside(random: &mut Random) -> Vec<(Stage, Beside)> {
    let count = [0, 0, 1, 2, 3][random.below(5) as usize];
    let mut beside: Vec<_> = (0..count)
        .map(|_| {
            let stages = [
                Stage::Logging,
                Stage::Recorded,
                Stage::Frozen,
                Stage::Written,
                Stage::Committed,
            ];
            let stage = stages[random.below(5) as usize];
            if stage != Stage::Logging && random.is_one_in(3) {
                (stage, Beside::Sync)
            } else {
                (stage, Beside::Do(op_beside(random)))
            }
        })
        .collect();
    beside.sort_by_key(|(stage, _)| *stage as u8);
    beside
}

/// The steps of a run.
pub fn choose(random: &mut Random) -> Vec<Step> {
    let mut steps = Vec::new();
    // Something to work on.
    for kind in [0, 1, 0] {
        steps.push(Step::Do(Op::Create {
            dir: any(random),
            name: any(random),
            kind,
        }));
    }
    let has_faults = !random.is_one_in(4);
    for _ in 0..15 + random.below(35) {
        let step = match random.below(100) {
            0..10 => Step::Sync(beside(random)),
            10..18 => Step::Commit(beside(random)),
            18..20 => Step::ReturnSpace,
            20..22 => Step::Compare,
            22 => Step::Reopen,
            23..25 => Step::Kill,
            25..28 => Step::PowerCut,
            28..31 => Step::Hold {
                is_late: random.is_one_in(3),
            },
            31..33 => Step::Seal(random.is_one_in(2).then(|| add_image(random))),
            33 => Step::RemoveImage(remove_image(random)),
            34..36 => Step::Collect(collect(random)),
            _ => Step::Do(op(random)),
        };
        let rarity = if matches!(step, Step::Do(_)) { 15 } else { 3 };
        if has_faults && random.is_one_in(rarity) {
            let fault = match random.below(8) {
                0..5 => Fault::PowerCut,
                5..7 => Fault::Io,
                _ => Fault::NoSpace,
            };
            let window = [4, 15, 40, 120][random.below(4) as usize];
            steps.push(Step::Fail(fault, random.below(window)));
        }
        if random.is_one_in(200) {
            steps.extend(burst(random));
        }
        if random.is_one_in(40) {
            steps.extend(synced(random, has_faults));
        }
        if random.is_one_in(60) {
            steps.extend(growth(random));
        }
        if random.is_one_in(40) {
            steps.extend(life_of_image(random));
        }
        steps.push(step);
    }
    steps
}

/// Divides the steps of a run between two volumes of the store.
pub fn divide(steps: Vec<Step>, random: &mut Random) -> Vec<Step> {
    let mut divided = Vec::with_capacity(steps.len() + 3);
    // Something to work on.
    for kind in [0, 1, 0] {
        let create = Step::Do(Op::Create {
            dir: any(random),
            name: any(random),
            kind,
        });
        divided.push(other(create));
    }
    let mut is_other = false;
    for mut step in steps {
        if let Step::Sync(beside) | Step::Commit(beside) = &mut step {
            for _ in 0..random.below(3) {
                beside.push(beside_other(random));
            }
        }
        if random.is_one_in(3) {
            is_other = !is_other;
        }
        if random.is_one_in(100) {
            divided.extend(held_by_other(random));
        }
        if random.is_one_in(100) {
            divided.extend(waiting_blocks(random));
        }
        let is_of_both = matches!(step, Step::Kill | Step::PowerCut | Step::Fail(..));
        divided.push(if is_other && !is_of_both {
            other(step)
        } else {
            step
        });
    }
    divided
}

pub fn other(step: Step) -> Step {
    Step::Other(Box::new(step))
}

/// A file that is no other kind of inode, if there is one.
fn regular(random: &mut Random) -> u8 {
    any(random) & 0xf7
}

/// A block that both volumes share, which a seal of the second one reads and the first one drops
/// last.
fn held_by_other(random: &mut Random) -> Vec<Step> {
    let (ours, theirs, len) = (regular(random), regular(random), 4 * PAGE_LEN as u32);
    let write = |file, fill| {
        Step::Do(Op::Write {
            file,
            offset: 0,
            len,
            fill,
        })
    };
    let commit = || Step::Commit(Vec::new());
    let (shared, new) = (Fill::Unique(random.next()), Fill::Unique(random.next()));
    vec![
        Step::Seal(None),
        write(ours, shared),
        commit(),
        other(write(theirs, shared)),
        other(Step::Hold { is_late: false }),
        other(write(theirs, new)),
        other(commit()),
        write(ours, new),
        commit(),
        Step::ReturnSpace,
        other(Step::Seal(None)),
    ]
}

/// A commit of many new blocks, and one of the other volume in the middle, which returns space.
fn waiting_blocks(random: &mut Random) -> Vec<Step> {
    let write = |file, random: &mut Random| {
        Step::Do(Op::Write {
            file,
            offset: 0,
            len: 7 * PAGE_LEN as u32,
            fill: Fill::Unique(random.next()),
        })
    };
    let (ours, theirs) = (regular(random), regular(random));
    let mut steps = Vec::new();
    for _ in 0..2 {
        steps.push(other(write(theirs, random)));
        steps.push(other(Step::Commit(Vec::new())));
    }
    steps.push(write(ours, random));
    steps.push(Step::Commit(vec![(Stage::Written, Beside::CommitOther)]));
    steps
}

fn beside_other(random: &mut Random) -> (Stage, Beside) {
    let stages = [
        Stage::Logging,
        Stage::Recorded,
        Stage::Frozen,
        Stage::Written,
        Stage::Committed,
    ];
    let beside = match random.below(4) {
        0 => Beside::SyncOther,
        1 => Beside::CommitOther,
        _ => Beside::DoOther(op_beside(random)),
    };
    (stages[random.below(5) as usize], beside)
}

/// Syncs one after the other, then a commit with further syncs beside it. The power may fail in the
/// last of these.
fn synced(random: &mut Random, has_faults: bool) -> Vec<Step> {
    let mut steps = Vec::new();
    for _ in 0..2 + random.below(3) {
        steps.push(Step::Do(op_beside(random)));
        steps.push(Step::Sync(Vec::new()));
    }
    if has_faults && random.is_one_in(2) {
        steps.push(Step::Fail(Fault::PowerCut, random.below(20)));
    }
    let at = |stage, random: &mut Random| {
        let change = Beside::Do(op_beside(random));
        [(stage, change), (stage, Beside::Sync)]
    };
    if random.is_one_in(2) {
        steps.extend(overlapping(random, has_faults));
        return steps;
    }
    let mut beside = at(Stage::Frozen, random).to_vec();
    beside.extend(at(Stage::Written, random));
    steps.push(match random.below(3) {
        0 => Step::Sync(Vec::new()),
        _ => Step::Commit(beside),
    });
    steps
}

/// A record that is written while another one is being synced, a failure there, and a further
/// record of the same length.
fn overlapping(random: &mut Random, has_faults: bool) -> Vec<Step> {
    let small = |random: &mut Random| Op::Write {
        file: any(random),
        offset: random.below(4) * PAGE_LEN,
        len: 7,
        fill: fill(random),
    };
    let mut beside = vec![
        (Stage::Recorded, Beside::Do(small(random))),
        (Stage::Recorded, Beside::Sync),
    ];
    if has_faults {
        let fault = [Fault::PowerCut, Fault::PowerCut, Fault::Io][random.below(3) as usize];
        beside.push((Stage::Recorded, Beside::Fail(fault)));
    }
    let mut steps = Vec::new();
    if random.is_one_in(2) {
        // No record lies before the two.
        steps.push(Step::Commit(Vec::new()));
    }
    steps.extend([Step::Do(small(random)), Step::Sync(beside)]);
    if random.is_one_in(2) {
        steps.push(Step::Do(small(random)));
        steps.push(Step::Sync(Vec::new()));
        steps.push(Step::Kill);
    }
    steps
}

/// An image of the volume, changes, and its end.
fn life_of_image(random: &mut Random) -> Vec<Step> {
    let changes = |steps: &mut Vec<Step>, random: &mut Random| {
        for _ in 0..random.below(4) {
            steps.push(Step::Do(file_op(random)));
        }
    };
    let mut steps = Vec::new();
    changes(&mut steps, random);
    steps.push(Step::Hold { is_late: false });
    changes(&mut steps, random);
    steps.push(Step::Seal(Some(add_image(random))));
    changes(&mut steps, random);
    if random.is_one_in(2) {
        steps.push(Step::Commit(Vec::new()));
        steps.push(Step::Collect(collect(random)));
    }
    steps.push(Step::RemoveImage(remove_image(random)));
    steps.push(Step::Collect(collect(random)));
    steps
}

/// Small writes all over a page, which then has too many pieces to keep.
fn burst(random: &mut Random) -> Vec<Step> {
    let (file, start) = (any(random), random.below(4) * PAGE_LEN);
    let write = |at| {
        Step::Do(Op::Write {
            file,
            offset: start + at,
            len: 7,
            fill: Fill::Common(at as u8),
        })
    };
    (0..PAGE_LEN).step_by(110).map(write).collect()
}

/// A file that is written in order while commits happen.
fn growth(random: &mut Random) -> Vec<Step> {
    let (file, content) = (any(random), random.below(8) as u8);
    let mut steps = Vec::new();
    for _ in 0..2 + random.below(6) {
        let len = len(random);
        steps.push(Step::Do(Op::Append { file, len, content }));
        if random.is_one_in(2) {
            steps.push(Step::Commit(beside(random)));
        }
    }
    steps
}
