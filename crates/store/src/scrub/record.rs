//! The files `scrub`, with what users want, and `scrub.report`, with how far it is. Both are text
//! that ends with its digest.

use crate::hex::hex;
use crate::layout;
use crate::sealed_text::{replace, sealed, unsealed};
use crate::store::{Store, is_bad_file};
use std::fmt::Write;
use weald_format::store::Location;
use weald_format::{BlockId, Error, ErrorKind, Ino, Result, SegmentNo};

/// Most bytes of such a file.
const LEN_MAX: u64 = 256 << 20;
/// First lines of the two files.
const WISH_LINE: &str = "weald scrub 1";
const REPORT_LINE: &str = "weald scrub report 1";
/// Most findings that are kept; the others are counted.
pub const FINDINGS_MAX: usize = 10_000;
/// All of a store, in millionths: a run that leaves nothing out.
pub const WHOLE: u32 = 1_000_000;

/// What users want of the scrub of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrubWish {
    /// Number of the run; a new one for each start.
    pub run: u64,
    /// Counts how often what cannot be done is to be tried.
    pub tries: u64,
    /// Whether nothing is read for the time being.
    pub is_paused: bool,
    /// Bytes a second that are read at most; 0: as many as the others leave.
    pub rate: u64,
    /// Share of the blocks that is read, in millionths: [`WHOLE`] for all.
    pub share: u32,
    /// Whether only blocks are read that were written since the last complete run.
    pub is_since: bool,
}

/// Where a scrub is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ScrubPlace {
    /// The tables and their journal.
    Tables,
    /// The small files of the store.
    Files,
    /// The maps of images.
    Maps,
    /// The references to blocks.
    Counts,
    /// The blocks from this place on.
    Blocks(Location),
    /// The segments that could not be read before, after those with lower numbers.
    Parked(SegmentNo),
    /// Everything was read.
    End,
}

/// A file that damage costs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScrubUser {
    /// The image or volume.
    pub name: String,
    /// The snapshot of the volume.
    pub snapshot: Option<String>,
    /// From the root, without a slash in front; `None` if no name leads there.
    pub path: Option<Vec<u8>>,
    /// The inode in a volume.
    pub inode: Option<Ino>,
}

/// Damage that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScrubFinding {
    /// What is wrong, and where.
    pub what: String,
    /// The blocks that it costs, until it is known who uses them.
    pub blocks: Vec<BlockId>,
    /// Who is concerned; `None` until that was looked up.
    pub users: Option<Vec<ScrubUser>>,
}

/// Where the last complete run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastScrub {
    /// When it was complete, in seconds since 1970.
    pub time_s: u64,
    /// What lies behind was not read.
    pub end: Location,
    /// What it found.
    pub finding_count: u64,
}

/// How far a scrub is, and what it has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScrubReport {
    /// The wish that it follows, as it was when the run began.
    pub wish: ScrubWish,
    /// What is read next.
    pub at: ScrubPlace,
    /// Blocks from here on are read.
    pub from: Location,
    /// Blocks behind this place were written after the run had begun.
    pub end: Location,
    /// Bytes of blocks that are to be read.
    pub total_len: u64,
    /// Bytes of blocks that were read.
    pub read_len: u64,
    /// Blocks that were read.
    pub block_count: u64,
    /// Time that it worked, in milliseconds, pauses of its own included.
    pub worked_ms: u64,
    /// When it began, in seconds since 1970.
    pub begun_s: u64,
    /// When this was written.
    pub time_s: u64,
    /// What could not be read for the time being: a segment, or all references, and why.
    pub parked: Vec<(Option<SegmentNo>, String)>,
    /// Damage.
    pub findings: Vec<ScrubFinding>,
    /// Findings that found no room.
    pub more_count: u64,
    /// The error that ended it early.
    pub error: Option<String>,
    /// The last complete run.
    pub last: Option<LastScrub>,
    /// When the last run was complete that read every block, in seconds since 1970.
    pub whole_s: Option<u64>,
}

impl ScrubReport {
    /// The report of a run that begins at `now_s` and has nothing to read yet.
    pub fn of(wish: &ScrubWish, now_s: u64) -> Self {
        let nowhere = Location {
            segment: SegmentNo(0),
            offset: 0,
        };
        Self {
            wish: *wish,
            at: ScrubPlace::Tables,
            from: nowhere,
            end: nowhere,
            total_len: 0,
            read_len: 0,
            block_count: 0,
            worked_ms: 0,
            begun_s: now_s,
            time_s: now_s,
            parked: Vec::new(),
            findings: Vec::new(),
            more_count: 0,
            error: None,
            last: None,
            whole_s: None,
        }
    }

    /// Whether everything was read that can be read.
    pub fn is_done(&self) -> bool {
        self.at == ScrubPlace::End
    }

    /// Number of findings.
    pub fn finding_count(&self) -> u64 {
        self.more_count.saturating_add(self.findings.len() as u64)
    }

    /// Adds a finding, or counts it.
    pub fn find(&mut self, what: String, blocks: Vec<BlockId>) {
        if self.findings.len() >= FINDINGS_MAX {
            self.more_count = self.more_count.saturating_add(1);
            return;
        }
        let users = blocks.is_empty().then(Vec::new);
        self.findings.push(ScrubFinding {
            what,
            blocks,
            users,
        });
    }

    /// Notes what cannot be read for the time being.
    pub(super) fn park(&mut self, number: Option<SegmentNo>, why: String) {
        if !self.parked.iter().any(|(known, _)| *known == number) {
            self.parked.push((number, why));
        }
    }
}

/// A text in one word, such that no byte of it ends a line.
fn word_of(bytes: &[u8]) -> String {
    format!("={}", hex(bytes))
}

fn bytes_of(word: &str) -> Option<Vec<u8>> {
    let digits = word.strip_prefix('=')?.as_bytes();
    let pairs = digits.chunks(2);
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.map(byte).collect()
}

fn text_of(word: &str) -> Option<String> {
    String::from_utf8(bytes_of(word)?).ok()
}

/// The words of a line.
struct Words<'a>(std::str::Split<'a, char>);

impl<'a> Words<'a> {
    fn new(line: &'a str) -> Self {
        Self(line.split(' '))
    }

    fn next(&mut self) -> Option<&'a str> {
        self.0.next()
    }

    fn number<N: std::str::FromStr>(&mut self) -> Option<N> {
        self.next()?.parse().ok()
    }

    fn location(&mut self) -> Option<Location> {
        Some(Location {
            segment: SegmentNo(self.number()?),
            offset: self.number()?,
        })
    }
}

fn shown(location: Location) -> String {
    format!("{} {}", location.segment.0, location.offset)
}

impl ScrubWish {
    fn words(&self) -> String {
        format!(
            "{} {} {} {} {} {}",
            self.run, self.tries, self.is_paused, self.rate, self.share, self.is_since
        )
    }

    fn parse_words(words: &mut Words<'_>) -> Option<Self> {
        let wish = Self {
            run: words.number()?,
            tries: words.number()?,
            is_paused: words.number()?,
            rate: words.number()?,
            share: words.number()?,
            is_since: words.number()?,
        };
        (wish.share <= WHOLE).then_some(wish)
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut lines = unsealed(bytes)?.lines();
        if lines.next()? != WISH_LINE {
            return None;
        }
        Self::parse_words(&mut Words::new(lines.next()?.strip_prefix("wish ")?))
    }
}

impl ScrubPlace {
    fn words(self) -> String {
        match self {
            Self::Files => "files".into(),
            Self::Maps => "maps".into(),
            Self::Tables => "tables".into(),
            Self::Counts => "counts".into(),
            Self::Blocks(location) => format!("blocks {}", shown(location)),
            Self::Parked(number) => format!("parked {}", number.0),
            Self::End => "end".into(),
        }
    }

    fn parse_words(words: &mut Words<'_>) -> Option<Self> {
        Some(match words.next()? {
            "files" => Self::Files,
            "maps" => Self::Maps,
            "tables" => Self::Tables,
            "counts" => Self::Counts,
            "blocks" => Self::Blocks(words.location()?),
            "parked" => Self::Parked(SegmentNo(words.number()?)),
            "end" => Self::End,
            _ => return None,
        })
    }
}

impl ScrubUser {
    fn words(&self) -> String {
        let snapshot = self.snapshot.as_ref();
        let snapshot = snapshot.map_or("-".into(), |name| word_of(name.as_bytes()));
        let path = self.path.as_ref().map_or("-".into(), |path| word_of(path));
        let inode = self.inode.map_or("-".into(), |ino| ino.0.to_string());
        let name = word_of(self.name.as_bytes());
        format!("user {name} {snapshot} {path} {inode}")
    }

    fn parse_words(words: &mut Words<'_>) -> Option<Self> {
        fn known<T>(word: &str, parse: impl Fn(&str) -> Option<T>) -> Option<Option<T>> {
            if word == "-" {
                Some(None)
            } else {
                parse(word).map(Some)
            }
        }
        Some(Self {
            name: text_of(words.next()?)?,
            snapshot: known(words.next()?, text_of)?,
            path: known(words.next()?, bytes_of)?,
            inode: known(words.next()?, |word| word.parse().ok().map(Ino))?,
        })
    }
}

impl ScrubReport {
    fn encode(&self) -> String {
        let mut text = format!("{REPORT_LINE}\nwish {}\n", self.wish.words());
        let figures = [
            self.total_len,
            self.read_len,
            self.block_count,
            self.worked_ms,
            self.begun_s,
            self.time_s,
            self.more_count,
        ];
        let figures = figures.map(|figure| figure.to_string()).join(" ");
        // Writing to a string does not fail.
        let _ = writeln!(text, "at {}", self.at.words());
        let _ = writeln!(text, "range {} {}", shown(self.from), shown(self.end));
        let _ = writeln!(text, "figures {figures}");
        if let Some(last) = &self.last {
            let (end, count) = (shown(last.end), last.finding_count);
            let _ = writeln!(text, "last {} {end} {count}", last.time_s);
        }
        if let Some(whole_s) = self.whole_s {
            let _ = writeln!(text, "whole {whole_s}");
        }
        if let Some(error) = &self.error {
            let _ = writeln!(text, "error {}", word_of(error.as_bytes()));
        }
        for (number, why) in &self.parked {
            let number = number.map_or("-".into(), |number| number.0.to_string());
            let _ = writeln!(text, "parked {number} {}", word_of(why.as_bytes()));
        }
        for finding in &self.findings {
            let _ = writeln!(text, "finding {}", word_of(finding.what.as_bytes()));
            match &finding.users {
                Some(users) => {
                    let _ = writeln!(text, "users");
                    for user in users {
                        let _ = writeln!(text, "{}", user.words());
                    }
                }
                None => {
                    text.push_str("blocks");
                    for id in &finding.blocks {
                        let _ = write!(text, " {}", id.0);
                    }
                    text.push('\n');
                }
            }
        }
        sealed(text)
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut lines = unsealed(bytes)?.lines();
        if lines.next()? != REPORT_LINE {
            return None;
        }
        let mut words = |first: &str| {
            let line = lines.next()?.strip_prefix(first)?.strip_prefix(' ')?;
            Some(Words::new(line))
        };
        let wish = ScrubWish::parse_words(&mut words("wish")?)?;
        let at = ScrubPlace::parse_words(&mut words("at")?)?;
        let mut range = words("range")?;
        let (from, end) = (range.location()?, range.location()?);
        let mut figures = words("figures")?;
        let mut report = Self {
            wish,
            at,
            from,
            end,
            total_len: figures.number()?,
            read_len: figures.number()?,
            block_count: figures.number()?,
            worked_ms: figures.number()?,
            begun_s: figures.number()?,
            time_s: figures.number()?,
            more_count: figures.number()?,
            parked: Vec::new(),
            findings: Vec::new(),
            error: None,
            last: None,
            whole_s: None,
        };
        for line in lines {
            report.parse_line(&mut Words::new(line))?;
        }
        Some(report)
    }

    fn parse_line(&mut self, words: &mut Words<'_>) -> Option<()> {
        match words.next()? {
            "last" => {
                self.last = Some(LastScrub {
                    time_s: words.number()?,
                    end: words.location()?,
                    finding_count: words.number()?,
                });
            }
            "whole" => self.whole_s = Some(words.number()?),
            "error" => self.error = Some(text_of(words.next()?)?),
            "parked" => {
                let number = match words.next()? {
                    "-" => None,
                    number => Some(SegmentNo(number.parse().ok()?)),
                };
                self.parked.push((number, text_of(words.next()?)?));
            }
            "finding" => self.findings.push(ScrubFinding {
                what: text_of(words.next()?)?,
                blocks: Vec::new(),
                users: None,
            }),
            "blocks" => {
                let ids = words.0.by_ref().map(|id| id.parse().ok().map(BlockId));
                self.findings.last_mut()?.blocks = ids.collect::<Option<_>>()?;
            }
            "users" => self.findings.last_mut()?.users = Some(Vec::new()),
            "user" => {
                let users = self.findings.last_mut()?.users.as_mut()?;
                users.push(ScrubUser::parse_words(words)?);
            }
            _ => return None,
        }
        Some(())
    }
}

impl Store {
    /// Reads one of the two files; nothing if it is missing or damaged: a scrub then begins anew.
    fn read_scrub<T>(&self, name: &str, parse: fn(&[u8]) -> Option<T>) -> Result<Option<T>> {
        match self.disk.read_file(name, LEN_MAX) {
            Ok(bytes) => {
                let parsed = parse(&bytes);
                if parsed.is_none() {
                    log::warn!("{}/{name}: is damaged, and not used", self.shown());
                }
                Ok(parsed)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) if is_bad_file(&error) => {
                log::warn!("{error}: is not used");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// What users want of the scrub; nothing if there never was one.
    ///
    /// # Errors
    /// `Io`.
    pub fn scrub_wish(&self) -> Result<Option<ScrubWish>> {
        self.read_scrub(layout::SCRUB, ScrubWish::parse)
    }

    /// How far the scrub is, as of a few seconds ago; nothing if there never was one.
    ///
    /// # Errors
    /// `Io`.
    pub fn scrub_report(&self) -> Result<Option<ScrubReport>> {
        self.read_scrub(layout::SCRUB_REPORT, ScrubReport::parse)
    }

    /// Processes that have the store open for writing, as far as this user may see them.
    pub fn writers(&self) -> Vec<u32> {
        self.disk.holders_of_lock(layout::LOCK, 0)
    }

    /// Says what users want of the scrub. Whoever has the writer follows it.
    ///
    /// # Errors
    /// `Io`, `Full`; `Invalid` where nothing can be written.
    pub fn put_scrub_wish(&self, wish: &ScrubWish) -> Result<()> {
        let text = sealed(format!("{WISH_LINE}\nwish {}\n", wish.words()));
        let put = replace(&*self.disk, &[layout::SCRUB], &text);
        put.map_err(|error: Error| error.context("the scrub is as before"))
    }

    /// Keeps how far the scrub is. Only who has the writer does so.
    pub(super) fn put_scrub_report(&self, report: &ScrubReport) -> Result<()> {
        let text = report.encode();
        replace(&*self.disk, &[layout::SCRUB_REPORT], &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> ScrubReport {
        let at = |segment, offset| Location {
            segment: SegmentNo(segment),
            offset,
        };
        ScrubReport {
            wish: ScrubWish {
                run: 7,
                tries: 2,
                is_paused: true,
                rate: 1 << 40,
                share: 10_000,
                is_since: true,
            },
            at: ScrubPlace::Blocks(at(12, 4096)),
            from: at(1, 64),
            end: at(99, 1 << 26),
            total_len: 1,
            read_len: 2,
            block_count: 3,
            worked_ms: 4,
            begun_s: 5,
            time_s: 6,
            parked: vec![
                (Some(SegmentNo(3)), "tier slow\nis away".into()),
                (None, String::new()),
            ],
            findings: vec![
                ScrubFinding {
                    what: "a block \u{1b}[31m".into(),
                    blocks: vec![BlockId(1), BlockId(u64::MAX)],
                    users: None,
                },
                ScrubFinding {
                    what: "not of blocks".into(),
                    blocks: Vec::new(),
                    users: None,
                },
                ScrubFinding {
                    what: "seen".into(),
                    blocks: Vec::new(),
                    users: Some(vec![
                        ScrubUser {
                            name: "home".into(),
                            snapshot: Some("before".into()),
                            path: Some(b"a\nb\xff/c".to_vec()),
                            inode: Some(Ino(9)),
                        },
                        ScrubUser {
                            name: "image".into(),
                            snapshot: None,
                            path: None,
                            inode: None,
                        },
                    ]),
                },
            ],
            more_count: 8,
            error: Some("the disk\nis gone".into()),
            last: Some(LastScrub {
                time_s: 10,
                end: at(4, 5),
                finding_count: 6,
            }),
            whole_s: Some(11),
        }
    }

    // Would catch: a field that is lost, a name that ends a line, and a position that damage has
    // changed: bytes would be passed over.
    #[test]
    fn a_report_is_parsed_and_damage_is_noticed() {
        let mut report = report();
        for place in [
            ScrubPlace::Files,
            ScrubPlace::Maps,
            ScrubPlace::Tables,
            ScrubPlace::Counts,
            ScrubPlace::Parked(SegmentNo(8)),
            ScrubPlace::End,
            report.at,
        ] {
            report.at = place;
            let text = report.encode();
            assert_eq!(ScrubReport::parse(text.as_bytes()), Some(report.clone()));
        }
        let text = report.encode();
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            assert_eq!(ScrubReport::parse(&bytes), None, "byte {at}");
            assert_eq!(ScrubReport::parse(&text.as_bytes()[..at]), None);
        }
    }
}
