//! Locates uncompressed samples in audio files: WAV (RIFF, RF64), W64, AIFF and AIFF-C, CAF.

use super::sample_run::SampleRun;
use std::ops::Range;
use weald_codec::flac::CHANNELS_MAX;
use weald_format::recipes::Samples;

/// Maximum number of chunks examined in one file.
const CHUNKS_MAX: usize = 1000;

/// Finds the samples of a file of `len` bytes from its first bytes, `front`.
pub type RunFinder = fn(front: &[u8], len: u64) -> Option<SampleRun>;

/// Returns the function that finds the samples of an audio file that begins with `front`.
pub fn finder(front: &[u8]) -> Option<RunFinder> {
    let kind = front.get(8..12);
    match front.get(..4)? {
        b"RIFF" | b"RF64" if kind == Some(b"WAVE") => Some(wav),
        b"FORM" if matches!(kind, Some(b"AIFF" | b"AIFC")) => Some(aiff),
        b"riff" if kind == Some(b"\xa5\xd6\x28\xdb") => Some(w64),
        b"caff" => Some(caf),
        _ => None,
    }
}

/// Byte order of a number.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Endian {
    Little,
    Big,
}
use Endian::{Big, Little};

/// The number of `N` bytes at offset `at`.
fn number<const N: usize>(bytes: &[u8], at: usize, endian: Endian) -> Option<u64> {
    let own = bytes.get(at..)?.first_chunk::<N>()?;
    let join = |number: u64, &byte: &u8| number << 8 | u64::from(byte);
    Some(match endian {
        Little => own.iter().rev().fold(0, join),
        Big => own.iter().fold(0, join),
    })
}

/// Sample format according to the file's header.
struct Description {
    channels: u64,
    sample_len: u64,
    endian: Endian,
    /// Whether samples of one byte are signed; longer ones always are.
    is_signed: bool,
}

impl Description {
    /// The run of samples in `data`, truncated at the end of the file; `None` if FLAC cannot hold
    /// them.
    fn run(&self, data: Range<u64>, len: u64) -> Option<SampleRun> {
        let channels = usize::try_from(self.channels).ok()?;
        if !(1..=CHANNELS_MAX).contains(&channels) {
            return None;
        }
        let samples = match self.sample_len {
            1 => Samples::bytes(self.is_signed),
            _ => Samples::words(usize::try_from(self.sample_len).ok()?, self.endian == Big)?,
        };
        Some(SampleRun {
            range: data.start..data.end.min(len),
            channels,
            samples,
        })
    }
}

/// Chunk layout of a file format.
struct Chunks {
    /// Offset of the first chunk.
    first: usize,
    id_len: usize,
    size: fn(&[u8], usize) -> Option<u64>,
    size_len: usize,
    /// Whether the size includes id and size field.
    is_whole: bool,
    /// Alignment of chunks, bytes.
    align: u64,
}

impl Chunks {
    /// Visits the first four bytes of each chunk's id and the range of its body, until `visit`
    /// returns true.
    fn each(&self, front: &[u8], visit: &mut dyn FnMut(&[u8], Range<u64>) -> bool) {
        let mut at = self.first as u64;
        for _ in 0..CHUNKS_MAX {
            let Ok(start) = usize::try_from(at) else {
                return;
            };
            let head_len = self.id_len + self.size_len;
            let (Some(id), Some(size)) = (
                front.get(start..start.saturating_add(4)),
                (self.size)(front, start.saturating_add(self.id_len)),
            ) else {
                return;
            };
            let body = at + head_len as u64;
            let end = if self.is_whole {
                at.saturating_add(size).max(body)
            } else {
                body.saturating_add(size)
            };
            if visit(id, body..end) {
                return;
            }
            at = match end.checked_next_multiple_of(self.align) {
                Some(next) => next,
                None => return,
            };
        }
    }
}

/// Tag of uncompressed samples, and the tag of the extensible header, which has the format tag
/// later.
const WAVE_PCM: u64 = 1;
const WAVE_EXTENSIBLE: u64 = 0xfffe;

/// Parses a `fmt ` chunk.
fn wave_format(chunk: &[u8]) -> Option<Description> {
    let word = |at| number::<2>(chunk, at, Little);
    let tag = match word(0)? {
        WAVE_EXTENSIBLE => word(24)?,
        tag => tag,
    };
    let (channels, frame_len) = (word(2)?, word(12)?);
    let sample_len = frame_len.checked_div(channels)?;
    (tag == WAVE_PCM && sample_len * channels == frame_len).then_some(Description {
        channels,
        sample_len,
        endian: Little,
        is_signed: false,
    })
}

fn body<'a>(front: &'a [u8], range: &Range<u64>) -> &'a [u8] {
    let start = usize::try_from(range.start).unwrap_or(usize::MAX);
    front.get(start..).unwrap_or(&[])
}

/// WAV: Microsoft's RIFF, and RF64 (EBU Tech 3306) for data longer than 4 GiB.
fn wav(front: &[u8], len: u64) -> Option<SampleRun> {
    let chunks = Chunks {
        first: 12,
        id_len: 4,
        size: |bytes, at| number::<4>(bytes, at, Little),
        size_len: 4,
        is_whole: false,
        align: 2,
    };
    let (mut format, mut long_len, mut data) = (None, None, None);
    chunks.each(front, &mut |id, range| {
        match id {
            b"ds64" => long_len = number::<8>(body(front, &range), 8, Little),
            b"fmt " => format = wave_format(body(front, &range)),
            b"data" => {
                let is_long = range.end - range.start == u64::from(u32::MAX);
                let end = match long_len {
                    Some(len) if is_long => range.start.saturating_add(len),
                    _ => range.end,
                };
                data = Some(range.start..end);
            }
            _ => {}
        }
        data.is_some()
    });
    format?.run(data?, len)
}

/// Sony's W64: RIFF with GUIDs and sizes of 8 bytes.
fn w64(front: &[u8], len: u64) -> Option<SampleRun> {
    let chunks = Chunks {
        first: 40,
        id_len: 16,
        size: |bytes, at| number::<8>(bytes, at, Little),
        size_len: 8,
        is_whole: true,
        align: 8,
    };
    let (mut format, mut data) = (None, None);
    chunks.each(front, &mut |id, range| {
        match id {
            b"fmt " => format = wave_format(body(front, &range)),
            b"data" => data = Some(range),
            _ => {}
        }
        data.is_some()
    });
    format?.run(data?, len)
}

/// Apple's AIFF, and uncompressed AIFF-C.
fn aiff(front: &[u8], len: u64) -> Option<SampleRun> {
    let chunks = Chunks {
        first: 12,
        id_len: 4,
        size: |bytes, at| number::<4>(bytes, at, Big),
        size_len: 4,
        is_whole: false,
        align: 2,
    };
    let is_plain = front.get(8..12) == Some(b"AIFF");
    let (mut format, mut data) = (None, None);
    chunks.each(front, &mut |id, range| {
        let own = body(front, &range);
        match id {
            b"COMM" => format = aiff_format(own, is_plain),
            b"SSND" => {
                let skipped = number::<4>(own, 0, Big).unwrap_or(0) + 8;
                data = Some(range.start.saturating_add(skipped)..range.end);
            }
            _ => {}
        }
        format.is_some() && data.is_some()
    });
    format?.run(data?, len)
}

fn aiff_format(chunk: &[u8], is_plain: bool) -> Option<Description> {
    let word = |at| number::<2>(chunk, at, Big);
    let kind = if is_plain {
        b"NONE"
    } else {
        chunk.get(18..22)?
    };
    let (endian, is_signed) = match kind {
        b"NONE" | b"twos" => (Big, true),
        b"sowt" => (Little, true),
        b"raw " => (Big, false),
        _ => return None,
    };
    Some(Description {
        channels: word(0)?,
        sample_len: word(6)?.div_ceil(8),
        endian,
        is_signed,
    })
}

/// Apple's Core Audio Format.
fn caf(front: &[u8], len: u64) -> Option<SampleRun> {
    let chunks = Chunks {
        first: 8,
        id_len: 4,
        size: |bytes, at| number::<8>(bytes, at, Big),
        size_len: 8,
        is_whole: false,
        align: 1,
    };
    let (mut format, mut data) = (None, None);
    chunks.each(front, &mut |id, range| {
        match id {
            b"desc" => format = caf_format(body(front, &range)),
            // A size of -1 means up to the end of the file; the data begins with an edit count of 4
            // bytes.
            b"data" => data = Some(range.start + 4..range.end),
            _ => {}
        }
        data.is_some()
    });
    format?.run(data?, len)
}

fn caf_format(chunk: &[u8]) -> Option<Description> {
    let long = |at| number::<4>(chunk, at, Big);
    let (flags, packet_len, packet_frames, channels) = (long(12)?, long(16)?, long(20)?, long(24)?);
    let sample_len = packet_len.checked_div(channels)?;
    let is_float = flags & 1 != 0;
    let is_plain = chunk.get(8..12)? == b"lpcm" && !is_float && packet_frames == 1;
    (is_plain && sample_len * channels == packet_len).then_some(Description {
        channels,
        sample_len,
        endian: if flags & 2 != 0 { Little } else { Big },
        is_signed: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(id: &[u8], endian: Endian, body: &[u8]) -> Vec<u8> {
        let len = body.len() as u32;
        let len = match endian {
            Little => len.to_le_bytes(),
            Big => len.to_be_bytes(),
        };
        let mut out = [id, &len, body].concat();
        out.resize(out.len().next_multiple_of(2), 0);
        out
    }

    fn fmt(tag: u16, channels: u16, sample_len: u16) -> Vec<u8> {
        let mut body = [tag, channels].map(u16::to_le_bytes).concat();
        body.extend_from_slice(&[0x44, 0xac, 0, 0, 0, 0, 0, 0]);
        let tail = [channels * sample_len, sample_len * 8, 22, 0, 0, 0, 1];
        body.extend(tail.map(u16::to_le_bytes).concat());
        body
    }

    fn run(file: &[u8]) -> Option<(Range<u64>, usize, u8)> {
        let found = finder(file)?(file, file.len() as u64)?;
        let method = weald_format::recipes::Method::Pcm(found.samples);
        Some((found.range, found.channels, method.code()))
    }

    /// The samples of all files: 48 bytes.
    fn noise() -> Vec<u8> {
        (0..48).collect()
    }

    /// An RF64 file of one channel, and the offset of its samples, behind which a chunk follows.
    fn rf64() -> (Vec<u8>, u64) {
        let mut sizes = [0; 28];
        sizes[8] = 48;
        let mut file = [
            b"RF64\xff\xff\xff\xffWAVE",
            &chunk(b"ds64", Little, &sizes)[..],
            &chunk(b"fmt ", Little, &fmt(1, 1, 2)),
            b"data\xff\xff\xff\xff",
            &noise(),
        ]
        .concat();
        let start = (file.len() - 48) as u64;
        file.extend_from_slice(&chunk(b"LIST", Little, b"odd"));
        (file, start)
    }

    /// A CAF file of two channels, which ends in its samples.
    fn caf() -> Vec<u8> {
        let mut desc = [0; 32];
        desc[8..12].copy_from_slice(b"lpcm");
        (desc[15], desc[19], desc[23], desc[27]) = (2, 6, 1, 2);
        let sized = |id: &[u8], len: i64, body: &[u8]| [id, &len.to_be_bytes(), body].concat();
        let data = sized(b"data", -1, &[&[0; 4][..], &noise()].concat());
        [b"caff\0\x01\0\0", &sized(b"desc", 32, &desc)[..], &data].concat()
    }

    /// A Wave64 file of one channel, which ends in its samples.
    fn w64() -> Vec<u8> {
        let guid =
            |id: &[u8; 4]| [&id[..], b"\xf3\xac\xd3\x11\x8c\xd1\0\xc0\x4f\x8e\xdb\x8a"].concat();
        let w64_chunk = |id, body: &[u8]| {
            let len = body.len() as u64 + 24;
            let mut out = [&guid(id)[..], &len.to_le_bytes(), body].concat();
            out.resize(out.len().next_multiple_of(8), 0);
            out
        };
        let mut file = b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\0\0".to_vec();
        file.extend_from_slice(&[0; 8]);
        file.extend(guid(b"wave"));
        file.extend(w64_chunk(b"fmt ", &fmt(1, 1, 3)));
        file.extend(w64_chunk(b"data", &noise()));
        file
    }

    /// Would catch: an unknown WAVE format, or a wrong offset, channel count or sample layout.
    #[test]
    fn samples_are_found_in_wave_files() {
        let odd = chunk(b"LIST", Little, b"odd");
        for (tag, sample_len, code) in [(1, 1, 16), (1, 2, 18), (0xfffe, 3, 20), (1, 4, 22)] {
            let format = chunk(b"fmt ", Little, &fmt(tag, 2, sample_len));
            let data = chunk(b"data", Little, &noise());
            let wav = [b"RIFF\0\0\0\0WAVE", &format[..], &odd, &data, &odd].concat();
            let start = (12 + format.len() + odd.len() + 8) as u64;
            assert_eq!(run(&wav), Some((start..start + 48, 2, code)));
            // A truncated file gives the samples that it has.
            let cut = &wav[..start as usize + 10];
            assert_eq!(run(cut), Some((start..start + 10, 2, code)));
        }
        let (long, start) = rf64();
        assert_eq!(run(&long), Some((start..start + 48, 1, 18)));
        let w64 = w64();
        let start = w64.len() as u64 - 48;
        assert_eq!(run(&w64), Some((start..start + 48, 1, 20)));
    }

    /// Would catch: an unknown AIFF or CAF format, or a wrong offset, channel count or sample
    /// layout.
    #[test]
    fn samples_are_found_in_aiff_and_caf_files() {
        for (kind, sample_len, code) in [
            (None, 1, 17),
            (None, 2, 19),
            (Some(b"NONE"), 3, 21),
            (Some(b"sowt"), 2, 18),
            (Some(b"raw "), 1, 16),
        ] {
            let mut comm = [0, 6, 0, 0, 0, 0, 0, sample_len * 8].to_vec();
            comm.resize(18, 0);
            comm.extend_from_slice(kind.map_or(b"", |k| k));
            let comm = chunk(b"COMM", Big, &comm);
            let body = [&[0, 0, 0, 0, 0, 0, 0, 0][..], &noise()].concat();
            let head = if kind.is_none() {
                b"FORM\0\0\0\0AIFF"
            } else {
                b"FORM\0\0\0\0AIFC"
            };
            let file = [head, &comm[..], &chunk(b"SSND", Big, &body)].concat();
            let start = file.len() as u64 - 48;
            assert_eq!(run(&file), Some((start..start + 48, 6, code)), "{kind:?}");
        }
        let caf = caf();
        let start = caf.len() as u64 - 48;
        assert_eq!(run(&caf), Some((start..start + 48, 2, 20)));
    }

    /// Would catch: compressed or floating-point data, no channels or too many that are taken for
    /// samples, and a prefix of a file that causes a panic.
    #[test]
    fn other_formats_and_cut_files_are_refused() {
        for format in [fmt(3, 2, 4), fmt(1, 0, 2), fmt(1, 9, 2), fmt(1, 2, 8)] {
            let wav = [
                b"RIFF\0\0\0\0WAVE",
                &chunk(b"fmt ", Little, &format)[..],
                &chunk(b"data", Little, &noise()),
            ]
            .concat();
            assert_eq!(run(&wav), None);
        }
        for file in [rf64().0, caf(), w64()] {
            (0..file.len()).for_each(|len| {
                run(&file[..len]);
            });
        }
    }
}
