//! Encodes samples as FLAC streams.
#![allow(clippy::arithmetic_side_effects, clippy::indexing_slicing)] // trusted input

use super::bits::BitWriter;
use super::layout::{CHANNELS_MAX, FIXED, INFO_HEADER, MARKER, Stereo, bits_code};
use super::rice::Plan;
use weald_format::recipes::Samples;

/// Samples of a channel in a frame, as in the reference encoder from level 3 on.
const FRAME_SAMPLES: usize = 4096;
/// Maximum order of linear prediction. A higher order gains a few thousandths and costs time on
/// both sides.
const LPC_ORDER_MAX: usize = 12;
/// Bits of a coefficient.
const PRECISION: u32 = 14;
/// Sample rate in STREAMINFO. Recipes do not use it. It is fixed, so that the same samples give the
/// same stream.
const RATE: u32 = 44_100;

/// Encodes `bytes`, interleaved samples of `channels`, as a FLAC stream. `None` if there are no
/// whole samples for all channels, or more channels than FLAC supports.
///
/// # Cost
/// One pass; memory: the stream and 512 KiB.
pub fn encode(bytes: &[u8], channels: usize, samples: Samples) -> Option<Vec<u8>> {
    let step = samples.sample_len() * channels;
    if !(1..=CHANNELS_MAX).contains(&channels)
        || bytes.is_empty()
        || !bytes.len().is_multiple_of(step)
    {
        return None;
    }
    let total = bytes.len() / step;
    let mut writer = BitWriter::default();
    put_info(&mut writer, total as u64, channels, samples);
    let mut encoder = Encoder {
        bits: samples.bits(),
        channels: vec![Vec::with_capacity(FRAME_SAMPLES); channels],
        side: Vec::with_capacity(FRAME_SAMPLES),
        mid: Vec::with_capacity(FRAME_SAMPLES),
        window: Vec::new(),
    };
    for (no, frame) in bytes.chunks(step * FRAME_SAMPLES).enumerate() {
        split(frame, samples, &mut encoder.channels);
        encoder.frame(no as u32, &mut writer);
    }
    Some(writer.bytes)
}

fn put_info(writer: &mut BitWriter, total: u64, channels: usize, samples: Samples) {
    writer.bytes.extend_from_slice(&MARKER);
    writer.bytes.extend_from_slice(&INFO_HEADER);
    for _ in 0..2 {
        writer.put(FRAME_SAMPLES as u32, 16);
    }
    // Minimum and maximum length of frames: unknown.
    writer.put(0, 24);
    writer.put(0, 24);
    writer.put(RATE, 20);
    writer.put(channels as u32 - 1, 3);
    writer.put(samples.bits() - 1, 5);
    writer.put((total >> 32) as u32, 4);
    writer.put(total as u32, 32);
    // Digest of the samples: unknown.
    (0..4).for_each(|_| writer.put(0, 32));
}

/// Splits a frame into channels.
fn split(frame: &[u8], samples: Samples, channels: &mut [Vec<i32>]) {
    let flip = samples.sign_flip();
    let unused = 32 - samples.bits();
    let count = channels.len();
    for (no, channel) in channels.iter_mut().enumerate() {
        channel.clear();
        let step = samples.sample_len() * count;
        let own = frame[no * samples.sample_len()..].chunks(step);
        channel.extend(own.map(|bytes| {
            let bytes = &bytes[..samples.sample_len()];
            let join = |word: u32, &byte: &u8| word << 8 | u32::from(byte);
            let word = if samples.is_big_endian() {
                bytes.iter().fold(0, join)
            } else {
                bytes.iter().rev().fold(0, join)
            };
            ((word ^ flip) << unused) as i32 >> unused
        }));
    }
}

struct Encoder {
    bits: u32,
    channels: Vec<Vec<i32>>,
    side: Vec<i32>,
    mid: Vec<i32>,
    /// Window function for the samples of a frame, kept for frames of equal length.
    window: Vec<f64>,
}

impl Encoder {
    fn frame(&mut self, no: u32, writer: &mut BitWriter) {
        let start = writer.bytes.len();
        let stereo = self.stereo();
        let count = self.channels[0].len();
        let assignment = match stereo {
            Stereo::Independent => self.channels.len() as u32 - 1,
            Stereo::LeftSide => 8,
            Stereo::SideRight => 9,
            Stereo::MidSide => 10,
        };
        writer.put(0xfff8, 16);
        writer.put(if count == FRAME_SAMPLES { 12 } else { 7 }, 4);
        writer.put(0, 4);
        writer.put(assignment, 4);
        writer.put(bits_code(self.bits) << 1, 4);
        put_number(writer, no);
        if count != FRAME_SAMPLES {
            writer.put(count as u32 - 1, 16);
        }
        let checksum = crc8(&writer.bytes[start..]);
        writer.put(u32::from(checksum), 8);
        if self.window.len() != count {
            self.window = welch(count);
        }
        let side_bits = self.bits + 1;
        let stored: Vec<(&[i32], u32)> = match stereo {
            Stereo::Independent => self.channels.iter().map(|c| (&c[..], self.bits)).collect(),
            Stereo::LeftSide => vec![(&self.channels[0], self.bits), (&self.side, side_bits)],
            Stereo::SideRight => vec![(&self.side, side_bits), (&self.channels[1], self.bits)],
            Stereo::MidSide => vec![(&self.mid, self.bits), (&self.side, side_bits)],
        };
        for (samples, bits) in stored {
            subframe(writer, samples, bits, &self.window);
        }
        writer.align();
        let checksum = crc16(&writer.bytes[start..]);
        writer.put(u32::from(checksum), 16);
    }

    /// Chooses the two of left, right, middle and side with the smallest second differences.
    fn stereo(&mut self) -> Stereo {
        let [left, right] = &self.channels[..] else {
            return Stereo::Independent;
        };
        if self.bits == 32 {
            return Stereo::Independent;
        }
        let pairs = || left.iter().zip(right);
        self.side.clear();
        self.side.extend(pairs().map(|(l, r)| l - r));
        self.mid.clear();
        self.mid.extend(pairs().map(|(l, r)| (l + r) >> 1));
        let [l, r, m, s] = [left, right, &self.mid, &self.side].map(|c| steps(c));
        let candidates = [
            (l + r, Stereo::Independent),
            (l + s, Stereo::LeftSide),
            (s + r, Stereo::SideRight),
            (m + s, Stereo::MidSide),
        ];
        let best = candidates.into_iter().min_by_key(|c| c.0);
        best.map_or(Stereo::Independent, |c| c.1)
    }
}

/// Sum of the absolute second differences.
fn steps(samples: &[i32]) -> u64 {
    let triples = samples.windows(3);
    let step = |w: &[i32]| (i64::from(w[2]) - 2 * i64::from(w[1]) + i64::from(w[0])).unsigned_abs();
    triples.map(step).sum()
}

/// Writes the number of a frame, coded like a character of UTF-8.
fn put_number(writer: &mut BitWriter, no: u32) {
    match no {
        0..0x80 => writer.put(no, 8),
        0x80..0x800 => {
            writer.put(0xc0 | no >> 6, 8);
            writer.put(0x80 | no & 63, 8);
        }
        _ => {
            assert!(no < 0x1_0000, "a piece of more than 2^16 frames");
            writer.put(0xe0 | no >> 12, 8);
            writer.put(0x80 | no >> 6 & 63, 8);
            writer.put(0x80 | no & 63, 8);
        }
    }
}

/// Predictor of a channel in a frame, with the residual.
struct Prediction<'a> {
    coefficients: &'a [i32],
    shift: u32,
    /// Number of bits that describe the predictor.
    own_bits: u64,
    plan: Plan,
    residual: Vec<i32>,
}

impl<'a> Prediction<'a> {
    /// `None` if a residual does not fit.
    fn new(samples: &[i32], coefficients: &'a [i32], shift: u32, own_bits: u64) -> Option<Self> {
        let residual = residual(samples, coefficients, shift)?;
        Some(Self {
            plan: Plan::new(&residual, coefficients.len()),
            coefficients,
            shift,
            own_bits,
            residual,
        })
    }

    fn cost(&self, bits: u32) -> u64 {
        self.own_bits + self.plan.bits + self.coefficients.len() as u64 * u64::from(bits)
    }
}

fn subframe(writer: &mut BitWriter, samples: &[i32], bits: u32, window: &[f64]) {
    let Some((&first, rest)) = samples.split_first() else {
        return;
    };
    if rest.iter().all(|&s| s == first) {
        put_kind(writer, 0, 0);
        writer.put_signed(first, bits);
        return;
    }
    let wasted = samples.iter().fold(0, |or, s| or | s).trailing_zeros();
    let shifted: Vec<i32>;
    let samples = match wasted {
        0 => samples,
        _ => {
            shifted = samples.iter().map(|s| s >> wasted).collect();
            &shifted
        }
    };
    let bits = bits - wasted;
    let fixed = Prediction::new(samples, best_fixed(samples), 0, 0);
    let lpc = linear(samples, window);
    let linear = lpc.as_ref().and_then(|lpc| {
        let own_bits = 9 + lpc.coefficients.len() as u64 * u64::from(PRECISION);
        Prediction::new(samples, &lpc.coefficients, lpc.shift, own_bits)
    });
    let is_linear = match (&fixed, &linear) {
        (Some(fixed), Some(linear)) => linear.cost(bits) < fixed.cost(bits),
        (fixed, _) => fixed.is_none(),
    };
    let best = if is_linear { linear } else { fixed };
    let Some(best) = best.filter(|b| b.cost(bits) < samples.len() as u64 * u64::from(bits)) else {
        put_kind(writer, 1, wasted);
        samples.iter().for_each(|&s| writer.put_signed(s, bits));
        return;
    };
    let order = best.coefficients.len();
    put_kind(
        writer,
        if is_linear {
            31 + order as u32
        } else {
            8 + order as u32
        },
        wasted,
    );
    samples[..order]
        .iter()
        .for_each(|&s| writer.put_signed(s, bits));
    if is_linear {
        writer.put(PRECISION - 1, 4);
        writer.put(best.shift, 5);
        best.coefficients
            .iter()
            .for_each(|&c| writer.put_signed(c, PRECISION));
    }
    best.plan.write(writer, &best.residual, order);
}

/// Writes the type of a subframe and the number of wasted bits: low bits that are zero in all
/// samples.
fn put_kind(writer: &mut BitWriter, kind: u32, wasted: u32) {
    writer.put(kind, 7);
    writer.put(u32::from(wasted > 0), 1);
    if wasted > 0 {
        writer.put_unary(wasted - 1);
    }
}

/// The fixed predictor whose residuals have the smallest sum.
fn best_fixed(samples: &[i32]) -> &'static [i32] {
    let mut sums = [0u64; FIXED.len()];
    let mut last = [0i64; FIXED.len()];
    for (i, &sample) in samples.iter().enumerate() {
        // The difference of order n + 1 is that of order n minus the one before.
        let mut difference = i64::from(sample);
        for (order, last) in last.iter_mut().enumerate() {
            if i >= FIXED.len() {
                sums[order] += difference.unsigned_abs();
            }
            difference -= std::mem::replace(last, difference);
        }
    }
    let best = (0..FIXED.len())
        .filter(|&o| o < samples.len())
        .min_by_key(|&o| sums[o]);
    FIXED[best.unwrap_or(0)]
}

/// Differences between the samples and the prediction of `coefficients`, after the first samples.
fn residual(samples: &[i32], coefficients: &[i32], shift: u32) -> Option<Vec<i32>> {
    let order = coefficients.len();
    let mut reversed = [0i32; super::layout::ORDER_MAX];
    let reversed = &mut reversed[..order];
    for (to, from) in reversed.iter_mut().rev().zip(coefficients) {
        *to = *from;
    }
    let reversed = &*reversed;
    let mut out = Vec::with_capacity(samples.len() - order);
    for (i, &sample) in samples.iter().enumerate().skip(order) {
        let terms = samples[i - order..i].iter().zip(reversed);
        let sum: i64 = terms.map(|(&s, &c)| i64::from(s) * i64::from(c)).sum();
        let rest = i64::from(sample) - (sum >> shift);
        // The smallest number is not allowed (RFC 9639, 9.2.7).
        out.push(i32::try_from(rest).ok().filter(|&r| r != i32::MIN)?);
    }
    Some(out)
}

/// Quantized coefficients of linear prediction.
struct Linear {
    coefficients: Vec<i32>,
    shift: u32,
}

/// Welch window (a parabola). It uses no function that machines compute differently.
fn welch(count: usize) -> Vec<f64> {
    let half = (count as f64 - 1.0) / 2.0;
    let weight = |i: usize| {
        let x = (i as f64 - half) / (half + 1.0);
        1.0 - x * x
    };
    (0..count).map(weight).collect()
}

/// Linear prediction by autocorrelation and Levinson's recursion, with the order that is estimated
/// to take the fewest bits.
fn linear(samples: &[i32], window: &[f64]) -> Option<Linear> {
    if samples.len() <= LPC_ORDER_MAX * 4 {
        return None;
    }
    let weighted = samples.iter().zip(window).map(|(&s, w)| f64::from(s) * w);
    let weighted: Vec<f64> = weighted.collect();
    let correlation = autocorrelation(&weighted);
    if correlation[0] <= 0.0 {
        return None;
    }
    let mut error = correlation[0];
    let mut coefficients = [0f64; LPC_ORDER_MAX];
    let mut best: Option<(f64, usize, [f64; LPC_ORDER_MAX])> = None;
    for order in 0..LPC_ORDER_MAX {
        let foreseen: f64 = (0..order)
            .map(|i| coefficients[i] * correlation[order - i])
            .sum();
        let reflection = (correlation[order + 1] - foreseen) / error;
        let before = coefficients;
        coefficients[order] = reflection;
        for i in 0..order {
            coefficients[i] = before[i] - reflection * before[order - 1 - i];
        }
        error *= 1.0 - reflection * reflection;
        if error <= 0.0 || !error.is_finite() {
            break;
        }
        let bits = rough_log2(error) / 2.0 * samples.len() as f64
            + (order + 1) as f64 * f64::from(PRECISION + 16);
        if best.as_ref().is_none_or(|b| bits < b.0) {
            best = Some((bits, order + 1, coefficients));
        }
    }
    let (_, order, coefficients) = best?;
    quantize(&coefficients[..order])
}

/// Logarithm to base 2, linear between powers of two: good enough to compare, and the same on every
/// machine.
fn rough_log2(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = (bits >> 52 & 0x7ff) as f64 - 1023.0;
    exponent + (bits & ((1 << 52) - 1)) as f64 / (1u64 << 52) as f64
}

fn autocorrelation(samples: &[f64]) -> [f64; LPC_ORDER_MAX + 1] {
    const LAGS: usize = LPC_ORDER_MAX + 1;
    let mut sums = [0f64; LAGS];
    // Computes all lags of a sample at once. The compiler vectorizes this without changing the
    // order of any sum.
    for w in samples.windows(LAGS) {
        let newest = w[LAGS - 1];
        for (lag, sum) in sums.iter_mut().enumerate() {
            *sum += newest * w[LAGS - 1 - lag];
        }
    }
    // The first samples are the newest in no window.
    for newest in 0..(LAGS - 1).min(samples.len()) {
        for (lag, sum) in sums.iter_mut().enumerate().take(newest + 1) {
            *sum += samples[newest] * samples[newest - lag];
        }
    }
    sums
}

/// Rounds coefficients to integers over 2^shift; carries each rounding error to the next
/// coefficient.
fn quantize(coefficients: &[f64]) -> Option<Linear> {
    let most = coefficients.iter().fold(0f64, |most, c| most.max(c.abs()));
    if most <= 0.0 || !most.is_finite() {
        return None;
    }
    let exponent = (most.to_bits() >> 52 & 0x7ff) as i64 - 1023;
    let shift = (i64::from(PRECISION) - 2 - exponent).clamp(0, 15) as u32;
    let limit = f64::from(1 << (PRECISION - 1));
    let scale = f64::from(1 << shift);
    let mut carried = 0.0;
    let round = |&c: &f64| {
        let exact = c * scale + carried;
        let rounded = exact.round().clamp(-limit, limit - 1.0);
        carried = exact - rounded;
        rounded as i32
    };
    Some(Linear {
        coefficients: coefficients.iter().map(round).collect(),
        shift,
    })
}

/// CRC-8 of a frame's header: x^8 + x^2 + x + 1.
fn crc8(bytes: &[u8]) -> u8 {
    let step = |crc: u8, &byte: &u8| {
        (0..8).fold(
            crc ^ byte,
            |c, _| if c & 0x80 != 0 { c << 1 ^ 7 } else { c << 1 },
        )
    };
    bytes.iter().fold(0, step)
}

/// CRC-16 of a frame: x^16 + x^15 + x^2 + 1.
fn crc16(bytes: &[u8]) -> u16 {
    let step = |crc: u16, &byte: &u8| crc << 8 ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)];
    bytes.iter().fold(0, step)
}

static CRC16: [u16; 256] = {
    let mut table = [0u16; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = (i as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 {
                crc << 1 ^ 0x8005
            } else {
                crc << 1
            };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};
