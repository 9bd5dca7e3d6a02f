//! What a stream holds so far: its newest blocks in memory, older ones in a spool or in the output
//! itself, all to be compared with.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weald_format::Result;
use weald_image::{Block, Image};
use weald_io::{FileSource, ReadAt, Spool};

/// Bytes of a piece read back from the spool at once.
const PIECE_LEN: u64 = 64 << 10;
/// Pieces kept, chosen by the low bits of their number.
const PIECE_COUNT: u64 = 64;

/// The front of a stream, which lies in an image.
struct Front {
    image: Arc<Image>,
    stream: u8,
    len: u64,
    /// The block that was used last, and the address of its first byte.
    block: (Arc<Block>, u64),
}

impl Front {
    /// The block that holds `address`, and where in it.
    fn at(&mut self, address: u64) -> Result<(&[u8], usize)> {
        let (block, start) = &self.block;
        if address < *start || address - start >= block.len() as u64 {
            self.block = self.image.block_at(self.stream, address)?;
        }
        let (block, start) = &self.block;
        Ok((block, (address - start) as usize))
    }
}

/// The raw bytes of one stream.
pub struct History {
    front: Option<Front>,
    block_len: u64,
    /// Bytes that begin at a multiple of this in their file shall do so in the stream.
    word_len: u64,
    window: VecDeque<Arc<Vec<u8>>>,
    /// Blocks that have left the window.
    spooled_count: u64,
    window_count_max: usize,
    /// Whether anything is compared with: else blocks are let go once they are full.
    is_kept: bool,
    current: Vec<u8>,
    spool: Option<Spool>,
    /// The output, where blocks are stored in it as they are, and their places there.
    output: Option<(Arc<FileSource>, Vec<u64>)>,
    spool_dir: PathBuf,
    pieces: Vec<(u64, Vec<u8>)>,
}

impl History {
    /// A stream cut into blocks of `block_len` bytes, of which about `window_len` stay in memory;
    /// the rest goes to an unnamed file in `spool_dir`.
    pub fn new(block_len: u64, window_len: u64, spool_dir: &Path) -> Self {
        Self {
            front: None,
            block_len,
            word_len: 1,
            window: VecDeque::new(),
            spooled_count: 0,
            window_count_max: (window_len / block_len).max(1) as usize,
            is_kept: true,
            current: Vec::new(),
            spool: None,
            output: None,
            spool_dir: spool_dir.to_owned(),
            pieces: Vec::new(),
        }
    }

    /// Puts what `stream` of `image` holds before everything else.
    pub fn begin_with(&mut self, image: &Arc<Image>, stream: u8) {
        self.front = Some(Front {
            len: image.stream_len(stream),
            image: image.clone(),
            stream,
            block: (Arc::default(), 0),
        });
    }

    /// Keeps words of `len` bytes together as their file does: its filter looks at words. It is
    /// block by block that they count, so only in blocks of whole words this says something.
    pub fn align(&mut self, len: u64) {
        self.word_len = len;
    }

    /// How many bytes must come before those at `place` of their file, so that words stay words;
    /// less than a word.
    pub fn padding_len(&self, place: u64) -> usize {
        (place.wrapping_sub(self.own_len()) % self.word_len) as usize
    }

    /// Blocks will be found again in `output`, as they are: none is put aside.
    pub fn read_back_from(&mut self, output: Arc<FileSource>) {
        self.output = Some((output, Vec::new()));
    }

    /// Bytes that an image holds of the stream.
    pub fn front_len(&self) -> u64 {
        self.front.as_ref().map_or(0, |f| f.len)
    }

    /// The image that holds them, and the stream there.
    pub fn front(&self) -> Option<(&Arc<Image>, u8)> {
        self.front.as_ref().map(|f| (&f.image, f.stream))
    }

    /// Lets full blocks go from now on: nobody will compare with them.
    pub fn forget(&mut self) {
        self.is_kept = false;
    }

    /// Address of the next byte.
    pub fn len(&self) -> u64 {
        self.front_len() + self.own_len()
    }

    /// Bytes that were appended.
    pub fn own_len(&self) -> u64 {
        (self.spooled_count + self.window.len() as u64) * self.block_len + self.current.len() as u64
    }

    /// Appends what fits in the current block. Returns how much that was, and the block if it is
    /// full now.
    ///
    /// # Errors
    /// `Io`, `Full` from the spool.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(usize, Option<Arc<Vec<u8>>>)> {
        let room = self.block_len as usize - self.current.len();
        let taken = bytes.len().min(room);
        if self.current.capacity() == 0 {
            self.current
                .reserve_exact(self.block_len.min(4 << 20) as usize);
        }
        self.current.extend_from_slice(&bytes[..taken]);
        if taken < room {
            return Ok((taken, None));
        }
        Ok((taken, Some(self.close()?)))
    }

    /// Takes the last block, if it has begun.
    ///
    /// # Errors
    /// As [`History::append`].
    pub fn finish(&mut self) -> Result<Option<Arc<Vec<u8>>>> {
        match self.current.is_empty() {
            true => Ok(None),
            false => self.close().map(Some),
        }
    }

    fn close(&mut self) -> Result<Arc<Vec<u8>>> {
        let block = Arc::new(std::mem::take(&mut self.current));
        if !self.is_kept {
            self.spooled_count += 1;
            return Ok(block);
        }
        self.window.push_back(block.clone());
        Ok(block)
    }

    /// Lets blocks go from memory that can be had again: `place` says where the output has a block.
    /// What is still on its way there is in memory anyway.
    ///
    /// # Errors
    /// `Io`, `Full` from the spool.
    pub fn let_go(&mut self, place: &mut dyn FnMut(u64) -> Option<u64>) -> Result<()> {
        while self.window.len() > self.window_count_max {
            if let Some((_, places)) = &mut self.output {
                let Some(place) = place(self.spooled_count) else {
                    break;
                };
                places.push(place);
                self.window.pop_front();
                self.spooled_count += 1;
                continue;
            }
            let Some(oldest) = self.window.pop_front() else {
                break;
            };
            let spool = match &mut self.spool {
                Some(spool) => spool,
                none => none.insert(Spool::create(&self.spool_dir)?),
            };
            spool.append(&oldest)?;
            self.spooled_count += 1;
        }
        Ok(())
    }

    /// The bytes from `address` on, as far as they lie together.
    fn from(&mut self, address: u64) -> Result<&[u8]> {
        let front_len = self.front_len();
        let Some(address) = address.checked_sub(front_len) else {
            return match &mut self.front {
                Some(front) => front.at(address).map(|(block, at)| &block[at..]),
                None => Ok(&[]),
            };
        };
        let spooled_len = self.spooled_count * self.block_len;
        if address < spooled_len {
            let start = address / PIECE_LEN * PIECE_LEN;
            let piece = self.piece(start, spooled_len)?;
            return Ok(&piece[(address - start) as usize..]);
        }
        let block_no = address / self.block_len - self.spooled_count;
        let block = self
            .window
            .get(block_no as usize)
            .map_or(&self.current, |b| b.as_ref());
        Ok(block
            .get((address % self.block_len) as usize..)
            .unwrap_or(&[]))
    }

    /// The bytes before `address`, as far as they lie together.
    fn before(&mut self, address: u64) -> Result<&[u8]> {
        let Some(last) = address.checked_sub(1) else {
            return Ok(&[]);
        };
        let front_len = self.front_len();
        if last < front_len {
            return match &mut self.front {
                Some(front) => front.at(last).map(|(block, at)| &block[..=at]),
                None => Ok(&[]),
            };
        }
        let (address, last) = (address - front_len, last - front_len);
        let spooled_len = self.spooled_count * self.block_len;
        if last < spooled_len {
            let start = last / PIECE_LEN * PIECE_LEN;
            let piece = self.piece(start, spooled_len)?;
            return Ok(&piece[..(address - start) as usize]);
        }
        let block_no = last / self.block_len - self.spooled_count;
        let block = self
            .window
            .get(block_no as usize)
            .map_or(&self.current, |b| b.as_ref());
        Ok(block
            .get(..(last % self.block_len + 1) as usize)
            .unwrap_or(&[]))
    }

    fn piece(&mut self, start: u64, end: u64) -> Result<&[u8]> {
        let slot = (start / PIECE_LEN % PIECE_COUNT) as usize;
        if self.pieces.is_empty() {
            self.pieces
                .resize(PIECE_COUNT as usize, (u64::MAX, Vec::new()));
        }
        let (held, bytes) = &mut self.pieces[slot];
        if *held != start || bytes.len() as u64 != PIECE_LEN.min(end - start) {
            bytes.resize(PIECE_LEN.min(end - start) as usize, 0);
            *held = u64::MAX;
            match (&self.output, &self.spool) {
                (Some(output), _) => read_back(output, self.block_len, bytes, start)?,
                (None, Some(spool)) => spool.read_exact_at(bytes, start)?,
                (None, None) => {}
            }
            *held = start;
        }
        Ok(bytes)
    }

    /// How many bytes from `address` on equal the front of `data`.
    ///
    /// # Errors
    /// `Io` from the spool.
    pub fn match_forward(&mut self, address: u64, data: &[u8]) -> Result<usize> {
        let mut matched = 0;
        while matched < data.len() {
            let held = self.from(address + matched as u64)?;
            let here = common_prefix(held, &data[matched..]);
            matched += here;
            if held.is_empty() || here < held.len() {
                break;
            }
        }
        Ok(matched)
    }

    /// How many bytes before `address` equal the back of `data`.
    ///
    /// # Errors
    /// `Io` from the spool.
    pub fn match_backward(&mut self, address: u64, data: &[u8]) -> Result<usize> {
        let mut matched = 0;
        while matched < data.len() {
            let held = self.before(address - matched as u64)?;
            let here = common_suffix(held, &data[..data.len() - matched]);
            matched += here;
            if held.is_empty() || here < held.len() {
                break;
            }
        }
        Ok(matched)
    }
}

/// Fills `bytes` from address `start` of a stream on, whose blocks lie in the output.
fn read_back(
    (output, places): &(Arc<FileSource>, Vec<u64>),
    block_len: u64,
    bytes: &mut [u8],
    start: u64,
) -> Result<()> {
    let (mut rest, mut at) = (bytes, start);
    while !rest.is_empty() {
        let (no, within) = (at / block_len, at % block_len);
        let len = rest.len().min((block_len - within) as usize);
        let (here, after) = rest.split_at_mut(len);
        output.read_exact_at(here, places[no as usize] + within)?;
        (rest, at) = (after, at + len as u64);
    }
    Ok(())
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    let chunks = a
        .chunks_exact(32)
        .zip(b.chunks_exact(32))
        .take_while(|(x, y)| x == y)
        .count()
        * 32;
    chunks
        + a[chunks..]
            .iter()
            .zip(&b[chunks..])
            .take_while(|(x, y)| x == y)
            .count()
}

fn common_suffix(a: &[u8], b: &[u8]) -> usize {
    let len = a.len().min(b.len());
    let (a, b) = (&a[a.len() - len..], &b[b.len() - len..]);
    let chunks = a
        .rchunks_exact(32)
        .zip(b.rchunks_exact(32))
        .take_while(|(x, y)| x == y)
        .count()
        * 32;
    let rest = len - chunks;
    chunks
        + a[..rest]
            .iter()
            .rev()
            .zip(b[..rest].iter().rev())
            .take_while(|(x, y)| x == y)
            .count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn matches_run_through_spool_window_and_current_block() {
        let dir = tempfile::tempdir().unwrap();
        run(History::new(100_000, 200_000, dir.path()), &mut |_, _| None);
    }

    #[test]
    fn matches_run_through_output_window_and_current_block() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("output");
        let output = std::fs::File::create(&path).unwrap();
        let mut history = History::new(100_000, 200_000, dir.path());
        history.read_back_from(Arc::new(FileSource::open(&path, 0).unwrap()));
        // Headers between the blocks; a block is there when two more have come.
        run(history, &mut |no, block| {
            let place = |no| no * 100_064 + 64;
            if let Some(block) = block {
                output.write_all_at(block, place(no)).unwrap();
            }
            (no < 6).then(|| place(no))
        });
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            1,
            "no spool"
        );
    }

    type Store<'a> = dyn FnMut(u64, Option<&[u8]>) -> Option<u64> + 'a;

    /// `store` takes a block, or tells where one is.
    fn run(mut history: History, store: &mut Store<'_>) {
        let data: Vec<u8> = (0..950_000u32)
            .map(|i| (i.wrapping_mul(2654435761) >> 13) as u8)
            .collect();
        let (mut at, mut blocks) = (0, 0);
        while at < data.len() {
            let (taken, full) = history.append(&data[at..]).unwrap();
            at += taken;
            if let Some(block) = full {
                store(blocks, Some(&block));
                blocks += 1;
                history.let_go(&mut |no| store(no, None)).unwrap();
            }
        }
        assert_eq!((blocks, history.len()), (9, 950_000));
        for start in [0, 1, 65_535, 99_999, 650_000, 899_999] {
            assert_eq!(
                history
                    .match_forward(start, &data[start as usize..])
                    .unwrap(),
                950_000 - start as usize
            );
            assert_eq!(
                history
                    .match_backward(start, &data[..start as usize])
                    .unwrap(),
                start as usize
            );
        }
        let mut other = data[10..300_000].to_vec();
        other[250_000] ^= 1;
        assert_eq!(history.match_forward(10, &other).unwrap(), 250_000);
        assert_eq!(
            history.match_backward(300_000, &other).unwrap(),
            300_000 - 10 - 250_001
        );
        assert_eq!(history.finish().unwrap().map(|b| b.len()), Some(50_000));
    }
}
