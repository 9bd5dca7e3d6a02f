//! Reader of tar streams: v7, ustar, GNU and pax.
//!
//! Source: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended Header"; GNU tar 1.35
//! manual, "Basic Tar Format" and "Sparse Formats"; tar(5) of libarchive, for old writers; star(4)
//! for `SCHILY.*`.

mod header;
mod number;
mod pax;
mod sparse;

use crate::input::Input;
use crate::member::{Member, MemberKind};
use crate::members::{Layout, Members, Tell};
use crate::through::{Reach, Through};
use header::Header;
use number::TAR_BLOCK_LEN;
use pax::Pax;
use sparse::Map;
use weald_format::{Attributes, Error, ErrorKind, FileKind, Result, Timestamp, Xattr};

/// Bytes of an extended header: xattrs of 4 MiB, a third longer in base64, and again under the
/// keywords of other readers.
const EXTENSION_LEN_MAX: u64 = 16 << 20;

/// Reads a tar stream member by member.
pub struct TarReader {
    input: Input,
    /// Unread bytes of the member's data.
    data_len: u64,
    /// Padding behind the data, up to the next header.
    padding_len: u64,
    globals: Pax,
    layout: Option<Layout>,
    /// The member has an access control list that is not kept.
    has_acl: bool,
    is_over: bool,
    /// Symlinks on the way to members, if they are followed.
    through: Option<Through>,
    /// The stream may end without blocks of zeros: a digest tells whether it is whole.
    is_verified: bool,
}

/// Extended headers before a header.
#[derive(Default)]
struct Extensions {
    pax: Option<Pax>,
    gnu_name: Option<Vec<u8>>,
    gnu_link: Option<Vec<u8>>,
}

impl TarReader {
    /// Reads from `input`.
    pub fn new(input: Input) -> Self {
        Self {
            input,
            data_len: 0,
            padding_len: 0,
            globals: Pax::default(),
            layout: None,
            has_acl: false,
            is_over: false,
            through: None,
            is_verified: false,
        }
    }

    /// Follows symlinks of the stream on the way to its members.
    #[must_use]
    pub fn following(self, reach: Reach) -> Self {
        Self {
            through: Some(Through::new(reach)),
            ..self
        }
    }

    /// Takes a stream without blocks of zeros at its end for whole, as `umoci insert` writes it.
    /// The caller compares a digest of all of it.
    #[must_use]
    pub fn verified(self) -> Self {
        Self {
            is_verified: true,
            ..self
        }
    }

    /// Whether `front`, the first bytes of a stream, is a tar header or the end of an empty stream.
    pub fn is_tar(front: &[u8]) -> bool {
        match front.first_chunk::<TAR_BLOCK_LEN>() {
            Some(block) => block.iter().all(|&b| b == 0) || Header::parse(block).is_ok(),
            None => false,
        }
    }

    /// Bytes of the stream read so far: the offset of a member's data right after its header.
    pub fn offset(&self) -> u64 {
        self.input.offset()
    }

    fn wrong(&self, what: impl std::fmt::Display) -> Error {
        Error::invalid(format!("tar stream, byte {}: {what}", self.input.offset()))
    }

    fn fill(&mut self, out: &mut [u8]) -> Result<()> {
        if self.input.read(out)? == out.len() {
            Ok(())
        } else {
            Err(self.wrong("the stream is cut short"))
        }
    }

    fn skip(&mut self) -> Result<()> {
        let mut remaining_len = self.data_len;
        let mut piece = vec![0; remaining_len.min(64 << 10) as usize];
        while remaining_len > 0 {
            let len = remaining_len.min(piece.len() as u64);
            self.fill(&mut piece[..len as usize])?;
            remaining_len -= len;
        }
        let mut padding = [0; TAR_BLOCK_LEN];
        let padding = &mut padding[..self.padding_len as usize];
        (self.data_len, self.padding_len) = (0, 0);
        if self.is_verified {
            // The last member of a layer of `umoci insert` has no padding either.
            self.input.read(padding).map(|_| ())
        } else {
            self.fill(padding)
        }
    }

    /// The next header, or the end.
    fn header(&mut self) -> Result<Option<Header>> {
        let mut block = [0; TAR_BLOCK_LEN];
        match self.input.read(&mut block)? {
            0 if self.is_verified => {
                self.is_over = true;
                return Ok(None);
            }
            0 => return Err(self.wrong("no blocks of zeros at the end: the stream is cut short")),
            TAR_BLOCK_LEN => {}
            _ => return Err(self.wrong("the stream is cut short")),
        }
        if block.iter().all(|&b| b == 0) {
            self.is_over = true;
            return Ok(None);
        }
        let header = Header::parse(&block).map_err(|e| self.wrong(e))?;
        Ok(Some(header))
    }

    /// Reads what follows the end of the archive: zeros that fill a record, normally.
    ///
    /// # Errors
    /// `Invalid` for another archive: half of the tree would be missing. Other data is reported.
    fn finish(&mut self, tell: &mut Tell<'_>) -> Result<()> {
        let mut block = [0; TAR_BLOCK_LEN];
        loop {
            let start = self.input.offset();
            let len = self.input.read(&mut block)?;
            if len == TAR_BLOCK_LEN && block.iter().all(|&byte| byte == 0) {
                continue;
            }
            if len == TAR_BLOCK_LEN && Header::parse(&block).is_ok() {
                return Err(Error::invalid(format!(
                    "tar stream, byte {start}: a second archive follows the first: make one of \
                     both with tar --concatenate, or build an image of each"
                )));
            }
            let at = block[..len].iter().position(|&byte| byte != 0);
            let behind = self.input.drain()?;
            if let Some(at) = at.map(|at| start + at as u64).or(behind) {
                let what = "data follows the end of the tar archive: it is not read".to_owned();
                tell(format!("byte {at}").as_bytes(), what);
            }
            return Ok(());
        }
    }

    fn begin_data(&mut self, len: u64) -> Result<()> {
        if len > weald_format::limits::NUMBER_MAX {
            return Err(self.wrong(format!("a member of {len} bytes")));
        }
        self.data_len = len;
        self.padding_len = len.next_multiple_of(TAR_BLOCK_LEN as u64) - len;
        Ok(())
    }

    /// The data of an extended header.
    fn extension(&mut self, header: &Header) -> Result<Vec<u8>> {
        let len = header.size().map_err(|e| self.wrong(e))?;
        if len > EXTENSION_LEN_MAX {
            let what =
                format!("an extended header of {len} bytes, at most {EXTENSION_LEN_MAX} are taken");
            return Err(Error::limit(self.wrong(what).to_string()));
        }
        self.begin_data(len)?;
        let mut data = Vec::new();
        // The announced length may be wrong, so the buffer grows with the data.
        while self.data_len > 0 {
            let start = data.len();
            data.resize(start + self.data_len.min(64 << 10) as usize, 0);
            self.fill_data(&mut data[start..])?;
        }
        self.skip()?;
        Ok(data)
    }

    fn fill_data(&mut self, out: &mut [u8]) -> Result<()> {
        self.data_len = match self.data_len.checked_sub(out.len() as u64) {
            Some(remaining) => remaining,
            None => return Err(self.wrong("more data wanted than there is")),
        };
        self.fill(out)
    }

    /// The header of the next member, with its extended headers.
    fn member_header(&mut self) -> Result<Option<(Header, Extensions)>> {
        let mut extensions = Extensions::default();
        loop {
            self.skip()?;
            let Some(header) = self.header()? else {
                return Ok(None);
            };
            match header.type_flag() {
                b'x' | b'X' => {
                    let data = self.extension(&header)?;
                    let pax = extensions.pax.get_or_insert_with(|| self.globals.clone());
                    pax.read(&data).map_err(|e| self.wrong(e))?;
                }
                b'g' => {
                    let data = self.extension(&header)?;
                    let mut globals = std::mem::take(&mut self.globals);
                    globals.read(&data).map_err(|e| self.wrong(e))?;
                    self.globals = globals;
                }
                b'L' => extensions.gnu_name = Some(until_zero(self.extension(&header)?)),
                b'K' => extensions.gnu_link = Some(until_zero(self.extension(&header)?)),
                // The label of a volume is no member.
                b'V' => {
                    let len = header.size().map_err(|e| self.wrong(e))?;
                    self.begin_data(len)?;
                }
                _ => return Ok(Some((header, extensions))),
            }
        }
    }

    /// Fills `member` from a header and begins its data. False for an unknown kind.
    fn take(
        &mut self,
        header: &Header,
        extensions: Extensions,
        member: &mut Member,
    ) -> Result<bool> {
        let has_pax = extensions.pax.is_some();
        let mut pax = extensions.pax.unwrap_or_else(|| self.globals.clone());
        let says = |e: String| Error::invalid(e);
        member.path = match (pax.sparse.name.take(), pax.path.take()) {
            (Some(name), _) | (None, Some(name)) => name,
            (None, None) => extensions.gnu_name.unwrap_or_else(|| header.path()),
        };
        member.target = match pax.link.take() {
            Some(link) => link,
            None => extensions.gnu_link.unwrap_or_else(|| header.link()),
        };
        let is_dir_by_name = member.path.ends_with(b"/");
        let flag = header.type_flag();
        let kind = match flag {
            0 | b'0' | b'7' if is_dir_by_name => MemberKind::Entry(FileKind::Directory),
            0 | b'0' | b'7' | b'S' => MemberKind::Entry(FileKind::Regular),
            b'1' => MemberKind::HardLink,
            b'2' => MemberKind::Entry(FileKind::Symlink),
            b'3' => MemberKind::Entry(FileKind::CharDevice),
            b'4' => MemberKind::Entry(FileKind::BlockDevice),
            b'5' | b'D' => MemberKind::Entry(FileKind::Directory),
            b'6' => MemberKind::Entry(FileKind::Fifo),
            b'M' => {
                let what = "a part of a file that begins in another volume";
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    self.wrong(what).to_string(),
                ));
            }
            _ => {
                let len = pax.size.map_or_else(|| header.size(), Ok).map_err(says)?;
                self.begin_data(len)?;
                return Ok(false);
            }
        };
        member.kind = kind;
        member.attributes = attributes(header, &pax, kind).map_err(says)?;
        member.mtime = match pax.mtime {
            Some(mtime) => mtime,
            None => Timestamp {
                seconds: header.mtime().map_err(says)?,
                nanoseconds: 0,
            },
        };
        member.xattrs = pax.take_xattrs();
        // An ACL in an xattr has numbers, which need no lookup of names.
        let is_acl = |x: &Xattr| x.name.starts_with(b"system.posix_acl_");
        self.has_acl = pax.has_acl && !member.xattrs.iter().any(is_acl);
        let has_data = match kind {
            MemberKind::Entry(FileKind::Regular) => true,
            MemberKind::HardLink => false,
            _ => flag == b'D',
        };
        let len = match has_data {
            // Only in pax may the data of a link follow its header; elsewhere its size has no
            // meaning. A record about the size repeats that of the file, which is elsewhere: GNU
            // tar reads on behind the header.
            _ if kind == MemberKind::HardLink && has_pax => header.size().map_err(says)?,
            true => pax.size.map_or_else(|| header.size(), Ok).map_err(says)?,
            false => 0,
        };
        self.begin_data(len)?;
        if kind == MemberKind::Entry(FileKind::Regular) {
            self.layout = Some(self.layout_of(header, &pax)?);
        }
        Ok(true)
    }

    fn layout_of(&mut self, header: &Header, pax: &Pax) -> Result<Layout> {
        let stored_len = self.data_len;
        let map = if header.type_flag() == b'S' {
            let mut map = Map::default();
            let mut continues = header.sparse(&mut map)?;
            map.real_len = header.sparse_len().map_err(Error::invalid)?;
            while continues {
                let mut block = [0; TAR_BLOCK_LEN];
                self.fill(&mut block)?;
                continues = sparse::read_block(&block, &mut map)?;
            }
            map
        } else if pax.sparse.is_text_in_data() {
            self.text_map(pax)?
        } else {
            match pax.sparse.map()? {
                Some(map) => map,
                None => {
                    return Ok(Layout {
                        len: stored_len,
                        runs: None,
                    });
                }
            }
        };
        map.layout(self.data_len)
    }

    /// Reads the map of GNU's format 1.0, which lies before the data: numbers, one per line.
    fn text_map(&mut self, pax: &Pax) -> Result<Map> {
        let mut text = sparse::Text::new(pax.sparse.real_len()?);
        let mut block = [0; TAR_BLOCK_LEN];
        while !text.is_whole() {
            self.fill_data(&mut block)?;
            text.read(&block)?;
        }
        Ok(text.finish())
    }
}

fn attributes(header: &Header, pax: &Pax, kind: MemberKind) -> Result<Attributes, String> {
    let id = |number: u64, what: &str| {
        u32::try_from(number).map_err(|_| format!("{what} {number} has more than 32 bits"))
    };
    let rdev = match kind {
        MemberKind::Entry(kind) if kind.is_device() => {
            let (major, minor) = header.device()?;
            let part = |own: Option<u64>, field| id(own.unwrap_or(field), "device number");
            let (major, minor) = (part(pax.dev_major, major)?, part(pax.dev_minor, minor)?);
            u64::from(major) << 32 | u64::from(minor)
        }
        _ => 0,
    };
    Ok(Attributes {
        permissions: header.permissions()?,
        uid: id(pax.uid.map_or_else(|| header.uid(), Ok)?, "owner")?,
        gid: id(pax.gid.map_or_else(|| header.gid(), Ok)?, "group")?,
        rdev,
    })
}

fn until_zero(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(at) = bytes.iter().position(|&b| b == 0) {
        bytes.truncate(at);
    }
    bytes
}

impl Members for TarReader {
    fn next(&mut self, member: &mut Member, tell: &mut Tell<'_>) -> Result<bool> {
        loop {
            self.layout = None;
            if self.is_over {
                return Ok(false);
            }
            let Some((header, extensions)) = self.member_header()? else {
                self.finish(tell)?;
                return Ok(false);
            };
            let is_known = self.take(&header, extensions, member);
            let shown = || weald_vfs::shown_path(&member.path);
            if is_known.map_err(|e| self.wrong(e.context(shown())))? {
                if let Some(through) = &mut self.through {
                    through.follow(member);
                }
                if self.has_acl {
                    let what = "its access control list is left out: only those in \
                                SCHILY.xattr are read";
                    tell(&member.path, what.to_owned());
                }
                return Ok(true);
            } else {
                let flag = header.type_flag().escape_ascii();
                tell(
                    &member.path,
                    format!("left out: a tar member of type '{flag}', which is not known"),
                );
            }
        }
    }

    fn has_contents(&self) -> bool {
        true
    }

    fn layout(&self) -> Option<&Layout> {
        self.layout.as_ref()
    }

    fn read_data(&mut self, out: &mut [u8]) -> Result<()> {
        self.fill_data(out)
    }
}

#[cfg(test)]
mod tests;
