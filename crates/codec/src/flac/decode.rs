//! Decodes FLAC streams to samples: the part of RFC 9639 that recipes may use. Bounds are checked
//! before memory is allocated.

use super::bits::BitReader;
use super::layout::{
    CHANNELS_MAX, FIXED, FRAME_SAMPLES_MAX, INFO_HEADER, MARKER, ORDER_MAX, Stereo,
};
use super::rice;
use weald_format::recipes::Samples;
use weald_format::{Error, Result};

fn bad(what: &'static str) -> Error {
    Error::corrupt("recipe", 0, "F-20.6", what)
}

/// Contents of the STREAMINFO block.
struct Info {
    /// Maximum samples of a channel in a frame.
    frame_samples: usize,
    channels: usize,
    bits: u32,
    /// Number of samples of a channel.
    total: u64,
}

/// Decodes the FLAC stream to `len` bytes of `samples`.
///
/// # Errors
/// `Corrupt` (F-20.6) if the output has another length, or the stream is not one that recipes
/// allow.
/// # Cost
/// One pass; memory: the result and 512 KiB. Checksums are not verified: the record of the stream
/// has a digest.
pub fn decode(stream: &[u8], samples: Samples, len: usize) -> Result<Vec<u8>> {
    let (info, frames) = parse_info(stream)
        .ok_or_else(|| bad("no STREAMINFO, or samples and frames that it cannot have"))?;
    let frame_len = samples.sample_len().saturating_mul(info.channels) as u64;
    if info.bits != samples.bits() || info.total.checked_mul(frame_len) != Some(len as u64) {
        return Err(bad("STREAMINFO: other samples than the recipe has"));
    }
    let mut out = Vec::with_capacity(len);
    let mut reader = BitReader::new(frames);
    let mut channels = vec![Vec::new(); info.channels];
    let mut remaining = info.total;
    while remaining > 0 {
        let count = frame(&mut reader, &info, &mut channels)
            .ok_or_else(|| bad("a frame that is none, or ends early"))?;
        remaining = remaining
            .checked_sub(count as u64)
            .ok_or_else(|| bad("more samples than STREAMINFO says"))?;
        interleave(&channels, count, samples, &mut out);
    }
    if reader.is_at_end() && out.len() == len {
        Ok(out)
    } else {
        Err(bad("bytes behind the last frame"))
    }
}

fn parse_info(stream: &[u8]) -> Option<(Info, &[u8])> {
    let (front, rest) = stream.split_at_checked(8)?;
    if front.strip_prefix(&MARKER)? != INFO_HEADER {
        return None;
    }
    let (info, frames) = rest.split_at_checked(34)?;
    let mut bits = BitReader::new(info);
    let _least = bits.get(16)?;
    let frame_samples = bits.get(16)? as usize;
    let (_least_len, _most_len, _rate) = (bits.get(24)?, bits.get(24)?, bits.get(20)?);
    let channels = bits.get(3)?.wrapping_add(1) as usize;
    let sample_bits = bits.get(5)?.wrapping_add(1);
    let (high, low) = (bits.get(4)?, bits.get(32)?);
    let info = Info {
        frame_samples,
        channels,
        bits: sample_bits,
        total: u64::from(high).wrapping_shl(32) | u64::from(low),
    };
    let is_allowed = (1..=FRAME_SAMPLES_MAX).contains(&frame_samples) && channels <= CHANNELS_MAX;
    is_allowed.then_some((info, frames))
}

/// Reads a frame into `channels`. Returns the number of samples in each.
fn frame(reader: &mut BitReader<'_>, info: &Info, channels: &mut [Vec<i32>]) -> Option<usize> {
    // Sync code, a zero bit, and the flag for a fixed block size.
    if reader.get(16)? != 0xfff8 {
        return None;
    }
    let (len_code, rate_code) = (reader.get(4)?, reader.get(4)?);
    let (assignment, bits_code, spare) = (reader.get(4)?, reader.get(3)?, reader.get(1)?);
    skip_number(reader)?;
    let count = match len_code {
        6 => reader.get(8)?.wrapping_add(1),
        7 => reader.get(16)?.wrapping_add(1),
        8..=15 => 256u32.wrapping_shl(len_code.wrapping_sub(8)),
        _ => return None,
    } as usize;
    let _checksum = reader.get(8)?;
    // The sample rate must be that of STREAMINFO.
    let is_same = rate_code == 0 && bits_code == super::layout::bits_code(info.bits) && spare == 0;
    if !is_same || !(1..=info.frame_samples).contains(&count) {
        return None;
    }
    let stereo = match assignment {
        0..=7 if assignment as usize == channels.len().wrapping_sub(1) => Stereo::Independent,
        // The side channel of 32-bit samples would take 33 bits.
        8..=10 if channels.len() == 2 && info.bits < 32 => match assignment {
            8 => Stereo::LeftSide,
            9 => Stereo::SideRight,
            _ => Stereo::MidSide,
        },
        _ => return None,
    };
    for (no, channel) in channels.iter_mut().enumerate() {
        let is_side = match stereo {
            Stereo::Independent => false,
            Stereo::SideRight => no == 0,
            Stereo::LeftSide | Stereo::MidSide => no == 1,
        };
        let bits = info.bits.wrapping_add(u32::from(is_side));
        subframe(reader, bits, count, channel)?;
    }
    reader.align();
    let _checksum = reader.get(16)?;
    if let [left, right] = channels {
        join(stereo, left, right);
    }
    Some(count)
}

/// Skips the number of a frame, which is coded like a character of UTF-8.
fn skip_number(reader: &mut BitReader<'_>) -> Option<()> {
    let ones = (reader.get(8)? as u8).leading_ones();
    for _ in 1..ones.min(7) {
        reader.get(8)?;
    }
    Some(())
}

/// Restores two channels from their stereo coding.
fn join(stereo: Stereo, first: &mut [i32], second: &mut [i32]) {
    for (a, b) in first.iter_mut().zip(second) {
        match stereo {
            Stereo::Independent => return,
            Stereo::LeftSide => *b = a.wrapping_sub(*b),
            Stereo::SideRight => *a = a.wrapping_add(*b),
            Stereo::MidSide => {
                let (mid, side) = (a.wrapping_shl(1) | (*b & 1), *b);
                *a = mid.wrapping_add(side) >> 1;
                *b = mid.wrapping_sub(side) >> 1;
            }
        }
    }
}

/// Reads one channel of a frame, `count` samples of `bits`, into `out`.
fn subframe(reader: &mut BitReader<'_>, bits: u32, count: usize, out: &mut Vec<i32>) -> Option<()> {
    if reader.get(1)? != 0 {
        return None;
    }
    let kind = reader.get(6)?;
    let wasted = match reader.get(1)? {
        0 => 0,
        _ => reader.unary()?.checked_add(1)?,
    };
    let bits = bits.checked_sub(wasted).filter(|&b| b > 0)?;
    out.clear();
    match kind {
        0 => out.resize(count, reader.get_signed(bits)?),
        1 => read_raw(reader, bits, count, out)?,
        8..=12 => {
            let coefficients = FIXED.get(kind.wrapping_sub(8) as usize)?;
            read_raw(reader, bits, coefficients.len(), out)?;
            rice::read(reader, count, coefficients.len(), out)?;
            predict(coefficients, 0, out);
        }
        32..=63 => {
            let order = kind.wrapping_sub(31) as usize;
            read_raw(reader, bits, order, out)?;
            let precision = reader.get(4)?.wrapping_add(1);
            let shift = reader.get_signed(5)?;
            if precision == 16 || shift < 0 {
                return None;
            }
            let mut coefficients = [0; ORDER_MAX];
            let coefficients = coefficients.get_mut(..order)?;
            for coefficient in coefficients.iter_mut() {
                *coefficient = reader.get_signed(precision)?;
            }
            rice::read(reader, count, order, out)?;
            predict(coefficients, shift as u32, out);
        }
        _ => return None,
    }
    if wasted > 0 {
        out.iter_mut().for_each(|s| *s = s.wrapping_shl(wasted));
    }
    Some(())
}

fn read_raw(reader: &mut BitReader<'_>, bits: u32, count: usize, out: &mut Vec<i32>) -> Option<()> {
    for _ in 0..count {
        out.push(reader.get_signed(bits)?);
    }
    Some(())
}

/// Adds to every sample after the first ones the prediction of `coefficients` from the samples
/// before it.
fn predict(coefficients: &[i32], shift: u32, samples: &mut [i32]) {
    match coefficients {
        [] => {}
        &[a] => predict_by([a], shift, samples),
        &[a, b] => predict_by([b, a], shift, samples),
        &[a, b, c] => predict_by([c, b, a], shift, samples),
        &[a, b, c, d] => predict_by([d, c, b, a], shift, samples),
        _ => {
            // Padded with zeros at the far end, so that the loops have fixed lengths.
            let mut padded = [0; ORDER_MAX];
            for (to, from) in padded.iter_mut().rev().zip(coefficients) {
                *to = *from;
            }
            let order = coefficients.len();
            match padded.last_chunk::<8>() {
                Some(few) if order <= 8 => predict_from(*few, order, shift, samples),
                _ => match padded.last_chunk::<12>() {
                    Some(some) if order <= 12 => predict_from(*some, order, shift, samples),
                    _ => predict_from(padded, order, shift, samples),
                },
            }
        }
    }
}

fn predict_by<const N: usize>(coefficients: [i32; N], shift: u32, samples: &mut [i32]) {
    predict_from(coefficients, N, shift, samples);
}

/// The same with N coefficients, the one of the nearest sample last. Only the last `order` count.
fn predict_from<const N: usize>(
    coefficients: [i32; N],
    order: usize,
    shift: u32,
    samples: &mut [i32],
) {
    let mut window = [0i32; N];
    for (i, sample) in samples.iter_mut().enumerate() {
        if i >= order {
            let terms = window.iter().zip(&coefficients);
            let sum = terms.fold(0i64, |sum, (&s, &c)| {
                sum.wrapping_add(i64::from(s).wrapping_mul(i64::from(c)))
            });
            *sample = sample.wrapping_add(sum.wrapping_shr(shift) as i32);
        }
        window.rotate_left(1);
        if let Some(last) = window.last_mut() {
            *last = *sample;
        }
    }
}

/// Appends the first `count` samples of each channel as bytes, interleaved.
fn interleave(channels: &[Vec<i32>], count: usize, samples: Samples, out: &mut Vec<u8>) {
    let flip = samples.sign_flip();
    let mut put = |sample: i32| {
        let sample = sample as u32 ^ flip;
        match (samples.is_big_endian(), samples.sample_len()) {
            (_, 1) => out.push(sample as u8),
            (false, 2) => out.extend_from_slice(&(sample as u16).to_le_bytes()),
            (true, 2) => out.extend_from_slice(&(sample as u16).to_be_bytes()),
            (false, 4) => out.extend_from_slice(&sample.to_le_bytes()),
            (true, 4) => out.extend_from_slice(&sample.to_be_bytes()),
            (false, _) => out.extend_from_slice(sample.to_le_bytes().split_at(3).0),
            (true, _) => out.extend_from_slice(sample.to_be_bytes().split_at(1).1),
        }
    };
    match channels {
        [one] => one.iter().take(count).for_each(|&s| put(s)),
        [left, right] => {
            for (&l, &r) in left.iter().zip(right).take(count) {
                put(l);
                put(r);
            }
        }
        _ => {
            for i in 0..count {
                let here = channels.iter().filter_map(|c| c.get(i));
                here.for_each(|&s| put(s));
            }
        }
    }
}
