//! Raw bytes of a stream, for comparison with new data: the newest blocks in memory, older ones in
//! a spool or in the output itself.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weald_format::Result;
use weald_image::{Block, Image};
use weald_io::{ReadAt, Spool, WriteBehind};

/// Bytes read back from the spool or the output at once.
const READ_BACK_LEN: u64 = 64 << 10;
/// Number of pieces cached. A piece's slot is its number modulo this count.
const READ_BACK_COUNT: u64 = 64;

/// Number of pieces of an image's stream cached, if its blocks are decoded as far as needed.
const FRONT_PIECE_COUNT: u64 = 16;

/// The beginning of a stream, which lies in an image.
struct Front {
    image: Arc<Image>,
    stream: u8,
    len: u64,
    held: Held,
}

/// Decoded bytes of the image.
enum Held {
    /// The block that was used last, whole, and the address of its first byte.
    Block(Arc<Block>, u64),
    /// Pieces with the addresses of their first bytes. A piece's slot is its number modulo the
    /// count. A piece may end early where a block ends.
    Pieces(Vec<(u64, Vec<u8>)>),
}

impl Front {
    /// Returns the block or piece that holds `address`, and the position of that byte in it.
    fn at(&mut self, address: u64) -> Result<(&[u8], usize)> {
        match &mut self.held {
            Held::Block(block, start) => {
                if address < *start || address - *start >= block.len() as u64 {
                    (*block, *start) = self.image.block_at(self.stream, address)?;
                }
                Ok((block, (address - *start) as usize))
            }
            Held::Pieces(pieces) => {
                let start = address / READ_BACK_LEN * READ_BACK_LEN;
                let slot = (start / READ_BACK_LEN % FRONT_PIECE_COUNT) as usize;
                let (held, bytes) = &mut pieces[slot];
                if *held != start {
                    bytes.clear();
                    *held = start;
                }
                while bytes.len() as u64 <= address - start {
                    let (at, rest) = (
                        start + bytes.len() as u64,
                        READ_BACK_LEN - bytes.len() as u64,
                    );
                    (self.image).append_from_block(self.stream, at, rest, bytes)?;
                }
                Ok((bytes, (address - start) as usize))
            }
        }
    }
}

/// The raw bytes of one stream, readable at any address.
pub struct LookBack {
    front: Option<Front>,
    block_len: u64,
    /// Alignment: bytes at a multiple of this offset in their file get an aligned address too.
    word_len: u64,
    window: VecDeque<Arc<Vec<u8>>>,
    /// Blocks that have left the window.
    spooled_count: u64,
    window_count_max: usize,
    /// Whether blocks are kept for comparison; otherwise they are freed when full.
    is_kept: bool,
    current: Vec<u8>,
    spool: Option<Spool>,
    /// The output and the offset of each block in it, if blocks are stored uncompressed there.
    output: Option<(Arc<dyn ReadAt>, Vec<u64>)>,
    spool_dir: PathBuf,
    spool_writers: WriteBehind,
    pieces: Vec<(u64, Vec<u8>)>,
}

impl LookBack {
    /// Creates a stream of blocks of `block_len` bytes. About `window_len` bytes stay in memory;
    /// older blocks go to an unnamed file in `spool_dir`.
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
            spool_writers: WriteBehind::NONE,
            pieces: Vec::new(),
        }
    }

    /// Begins the stream with the data of `stream` in `image`. Blocks are decoded whole, or, with
    /// `in_part`, as far as they are needed.
    pub fn begin_with(&mut self, image: &Arc<Image>, stream: u8, in_part: bool) {
        self.front = Some(Front {
            len: image.stream_len(stream),
            image: image.clone(),
            stream,
            held: if in_part {
                Held::Pieces(vec![(u64::MAX, Vec::new()); FRONT_PIECE_COUNT as usize])
            } else {
                Held::Block(Arc::default(), 0)
            },
        });
    }

    /// Keeps the alignment that words of `len` bytes have in their file, because the filter of this
    /// stream works on aligned words. The filter counts from the front of each block, so this helps
    /// only if the block length is a multiple of `len`.
    pub fn align(&mut self, len: u64) {
        self.word_len = len;
    }

    /// Padding needed before the bytes from `offset` of their file, so that words stay
    /// aligned; less than one word.
    pub fn padding_len(&self, offset: u64) -> usize {
        (offset.wrapping_sub(self.own_len()) % self.word_len) as usize
    }

    /// Reads old blocks back from `output`, where they lie uncompressed, so that no spool is
    /// needed.
    pub fn read_back_from(&mut self, output: Arc<dyn ReadAt>) {
        self.output = Some((output, Vec::new()));
    }

    /// Lets threads write the spool, if there is one: 1 / `share` of `writers`. Without room for
    /// two blocks there are none.
    pub fn write_behind(&mut self, writers: WriteBehind, share: u64) {
        let queue_len_max = writers.queue_len_max / share;
        if queue_len_max >= 2 * self.block_len {
            self.spool_writers = WriteBehind {
                thread_count: (writers.thread_count / share as usize).max(1),
                queue_len_max,
            };
        }
    }

    /// Length in bytes of the part of the stream that lies in an image.
    pub fn front_len(&self) -> u64 {
        self.front.as_ref().map_or(0, |f| f.len)
    }

    /// The image that holds this part, and the number of the stream there.
    pub fn front(&self) -> Option<(&Arc<Image>, u8)> {
        self.front.as_ref().map(|f| (&f.image, f.stream))
    }

    /// Frees full blocks from now on: nothing will be compared with them.
    pub fn forget(&mut self) {
        self.is_kept = false;
    }

    /// Address of the next byte.
    pub fn len(&self) -> u64 {
        self.front_len() + self.own_len()
    }

    /// Bytes appended by this build.
    pub fn own_len(&self) -> u64 {
        (self.spooled_count + self.window.len() as u64) * self.block_len + self.current.len() as u64
    }

    /// Appends as many bytes as fit in the current block. Returns how many those were, and the
    /// block if it is full now.
    ///
    /// # Errors
    /// `Io`, `Full` from the spool.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(usize, Option<Arc<Vec<u8>>>)> {
        let free_len = self.block_len as usize - self.current.len();
        let taken = bytes.len().min(free_len);
        if self.current.capacity() == 0 {
            self.current
                .reserve_exact(self.block_len.min(4 << 20) as usize);
        }
        self.current.extend_from_slice(&bytes[..taken]);
        if taken < free_len {
            return Ok((taken, None));
        }
        Ok((taken, Some(self.close()?)))
    }

    /// Takes the last block, unless it is empty.
    ///
    /// # Errors
    /// As [`LookBack::append`].
    pub fn finish(&mut self) -> Result<Option<Arc<Vec<u8>>>> {
        if self.current.is_empty() {
            Ok(None)
        } else {
            self.close().map(Some)
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

    /// Frees the memory of blocks that can be read back. `output_offset` returns the offset of a
    /// block in the output, or `None` while the block is not written; such a block stays in memory.
    ///
    /// # Errors
    /// `Io`, `Full` from the spool.
    pub fn release_blocks(
        &mut self,
        output_offset: &mut dyn FnMut(u64) -> Option<u64>,
    ) -> Result<()> {
        while self.window.len() > self.window_count_max {
            if let Some((_, offsets)) = &mut self.output {
                let Some(offset) = output_offset(self.spooled_count) else {
                    break;
                };
                offsets.push(offset);
                self.spooled_count += 1;
                if let Some(oldest) = self.window.pop_front() {
                    self.reuse(oldest);
                }
                continue;
            }
            let Some(oldest) = self.window.pop_front() else {
                break;
            };
            let spool = match &mut self.spool {
                Some(spool) => spool,
                slot => slot.insert(Spool::create_with(&self.spool_dir, self.spool_writers)?),
            };
            spool.append_shared(&oldest)?;
            self.spooled_count += 1;
            self.reuse(oldest);
        }
        Ok(())
    }

    /// Makes the memory of `block` the next block, unless somebody else still needs the bytes: the
    /// system would have to clear other memory.
    fn reuse(&mut self, block: Arc<Vec<u8>>) {
        if self.current.capacity() == 0
            && let Ok(mut buffer) = Arc::try_unwrap(block)
        {
            buffer.clear();
            self.current = buffer;
        }
    }

    /// Returns bytes from `address` on, as many as are contiguous in memory.
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
            let start = address / READ_BACK_LEN * READ_BACK_LEN;
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

    /// Returns bytes that end before `address`, as many as are contiguous in memory.
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
            let start = last / READ_BACK_LEN * READ_BACK_LEN;
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
        let slot = (start / READ_BACK_LEN % READ_BACK_COUNT) as usize;
        if self.pieces.is_empty() {
            self.pieces
                .resize(READ_BACK_COUNT as usize, (u64::MAX, Vec::new()));
        }
        let (held, bytes) = &mut self.pieces[slot];
        if *held != start || bytes.len() as u64 != READ_BACK_LEN.min(end - start) {
            bytes.resize(READ_BACK_LEN.min(end - start) as usize, 0);
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

    /// Number of bytes from `address` on that equal the beginning of `data`.
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

    /// Number of bytes before `address` that equal the end of `data`.
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

/// Fills `bytes` with the stream's data from address `start` on, read from the output.
fn read_back(
    (output, offsets): &(Arc<dyn ReadAt>, Vec<u64>),
    block_len: u64,
    bytes: &mut [u8],
    start: u64,
) -> Result<()> {
    let (mut rest, mut at) = (bytes, start);
    while !rest.is_empty() {
        let (no, within) = (at / block_len, at % block_len);
        let len = rest.len().min((block_len - within) as usize);
        let (here, after) = rest.split_at_mut(len);
        output.read_exact_at(here, offsets[no as usize] + within)?;
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
    use weald_io::FileSource;

    #[test]
    fn matches_cross_spool_window_and_current_block() {
        let dir = tempfile::tempdir().unwrap();
        run(LookBack::new(100_000, 200_000, dir.path()), &mut |_, _| {
            None
        });
    }

    #[test]
    fn matches_cross_output_window_and_current_block() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("output");
        let output = std::fs::File::create(&path).unwrap();
        let mut look_back = LookBack::new(100_000, 200_000, dir.path());
        look_back.read_back_from(Arc::new(FileSource::open(&path, 0).unwrap()));
        // Headers lie between the blocks; a block can be read back after two more were appended.
        run(look_back, &mut |no, block| {
            let offset_of = |no| no * 100_064 + 64;
            if let Some(block) = block {
                output.write_all_at(block, offset_of(no)).unwrap();
            }
            (no < 6).then(|| offset_of(no))
        });
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            1,
            "no spool"
        );
    }

    type Store<'a> = dyn FnMut(u64, Option<&[u8]>) -> Option<u64> + 'a;

    /// `store` takes a block, or returns the offset of a block.
    fn run(mut look_back: LookBack, store: &mut Store<'_>) {
        let data: Vec<u8> = (0..950_000u32)
            .map(|i| (i.wrapping_mul(2654435761) >> 13) as u8)
            .collect();
        let (mut at, mut blocks) = (0, 0);
        while at < data.len() {
            let (taken, full) = look_back.append(&data[at..]).unwrap();
            at += taken;
            if let Some(block) = full {
                store(blocks, Some(&block));
                blocks += 1;
                look_back.release_blocks(&mut |no| store(no, None)).unwrap();
            }
        }
        assert_eq!((blocks, look_back.len()), (9, 950_000));
        for start in [0, 1, 65_535, 99_999, 650_000, 899_999] {
            assert_eq!(
                look_back
                    .match_forward(start, &data[start as usize..])
                    .unwrap(),
                950_000 - start as usize
            );
            assert_eq!(
                look_back
                    .match_backward(start, &data[..start as usize])
                    .unwrap(),
                start as usize
            );
        }
        let mut other = data[10..300_000].to_vec();
        other[250_000] ^= 1;
        assert_eq!(look_back.match_forward(10, &other).unwrap(), 250_000);
        assert_eq!(
            look_back.match_backward(300_000, &other).unwrap(),
            300_000 - 10 - 250_001
        );
        assert_eq!(look_back.finish().unwrap().map(|b| b.len()), Some(50_000));
    }
}
