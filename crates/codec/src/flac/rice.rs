//! Residuals in Rice codes. Their parameter may change from partition to partition (RFC 9639,
//! section 9.2.7).

use super::bits::{BitReader, BitWriter};

/// Maximum order of partitions that the encoder tries: 16 samples of 4096 share a parameter.
const PARTITION_ORDER_MAX: u32 = 8;
/// Largest parameter of four bits; the next value is the escape code.
const SHORT_PARAMETER_MAX: u32 = 14;
/// Largest parameter of five bits; the next value is the escape code.
const LONG_PARAMETER_MAX: u32 = 30;

/// Appends the residual of a frame of `count` samples to `out`. The first `order` samples have
/// none.
pub fn read(
    reader: &mut BitReader<'_>,
    count: usize,
    order: usize,
    out: &mut Vec<i32>,
) -> Option<()> {
    let parameter_bits = match reader.get(2)? {
        0 => 4,
        1 => 5,
        _ => return None,
    };
    let escape = match parameter_bits {
        4 => SHORT_PARAMETER_MAX.wrapping_add(1),
        _ => LONG_PARAMETER_MAX.wrapping_add(1),
    };
    let partition_order = reader.get(4)?;
    let each = count.wrapping_shr(partition_order);
    if each.wrapping_shl(partition_order) != count || each < order {
        return None;
    }
    let mut skipped = order;
    for _ in 0..1u32.wrapping_shl(partition_order) {
        let parameter = reader.get(parameter_bits)?;
        let here = each.wrapping_sub(std::mem::take(&mut skipped));
        if parameter == escape {
            let bits = reader.get(5)?;
            for _ in 0..here {
                out.push(reader.get_signed(bits)?);
            }
            continue;
        }
        for _ in 0..here {
            let high = reader.unary()?;
            let folded = high.wrapping_shl(parameter) | reader.get(parameter)?;
            out.push((folded >> 1) as i32 ^ ((folded & 1) as i32).wrapping_neg());
        }
    }
    Some(())
}

/// Partitions and parameters for a residual, and its length in bits.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    partition_order: u32,
    parameters: Vec<u32>,
    pub bits: u64,
}

fn fold(residual: i32) -> u32 {
    (residual << 1) as u32 ^ (residual >> 31) as u32
}

// The rest is the encoder: trusted input.
#[allow(clippy::arithmetic_side_effects, clippy::indexing_slicing)]
impl Plan {
    /// Finds the plan with the fewest bits for `residual`, that of a frame with `order` more
    /// samples in front.
    pub fn new(residual: &[i32], order: usize) -> Self {
        let count = residual.len() + order;
        let fits = |p: &u32| count.trailing_zeros() >= *p && (count >> p) > order;
        let highest = (0..=PARTITION_ORDER_MAX).rev().find(fits).unwrap_or(0);
        let mut sums = sums(residual, order, highest);
        let mut best: Option<Self> = None;
        for partition_order in (0..=highest).rev() {
            let plan = Self::of_sums(&sums, count, order, partition_order);
            if best.as_ref().is_none_or(|b| plan.bits < b.bits) {
                best = Some(plan);
            }
            sums = sums.chunks(2).map(|pair| pair.iter().sum()).collect();
        }
        best.unwrap_or_default()
    }

    fn of_sums(sums: &[u64], count: usize, order: usize, partition_order: u32) -> Self {
        let each = (count >> partition_order) as u64;
        let mut bits = 6;
        let mut parameters = Vec::with_capacity(sums.len());
        for (i, &sum) in sums.iter().enumerate() {
            let here = each - if i == 0 { order as u64 } else { 0 };
            let (parameter, cost) = parameter(sum, here);
            parameters.push(parameter);
            bits += cost;
        }
        bits += parameter_bits(&parameters) as u64 * sums.len() as u64;
        Self {
            partition_order,
            parameters,
            bits,
        }
    }

    /// Writes the `residual` that the plan was made for.
    pub fn write(&self, writer: &mut BitWriter, residual: &[i32], order: usize) {
        let parameter_bits = parameter_bits(&self.parameters);
        writer.put(parameter_bits - 4, 2);
        writer.put(self.partition_order, 4);
        let each = (residual.len() + order) >> self.partition_order;
        let mut start = 0;
        for (i, &parameter) in self.parameters.iter().enumerate() {
            writer.put(parameter, parameter_bits);
            let end = each * (i + 1) - order;
            for &value in &residual[start..end] {
                let folded = fold(value);
                writer.put_unary(folded >> parameter);
                writer.put(folded, parameter);
            }
            start = end;
        }
    }
}

/// Bits of each parameter.
fn parameter_bits(parameters: &[u32]) -> u32 {
    if parameters.iter().all(|&p| p <= SHORT_PARAMETER_MAX) {
        4
    } else {
        5
    }
}

/// Sums of the folded residuals of every partition.
#[allow(clippy::arithmetic_side_effects, clippy::indexing_slicing)]
fn sums(residual: &[i32], order: usize, partition_order: u32) -> Vec<u64> {
    let each = (residual.len() + order) >> partition_order;
    let mut sums = Vec::with_capacity(1 << partition_order);
    let mut start = 0;
    for i in 1..=1usize << partition_order {
        let end = each * i - order;
        let folded = residual[start..end].iter().map(|&r| u64::from(fold(r)));
        sums.push(folded.sum());
        start = end;
    }
    sums
}

/// Best parameter for `count` residuals whose folded values sum up to `sum`, and an estimate of
/// their length in bits. The sum of the high parts is at most the high part of the sum.
#[allow(clippy::arithmetic_side_effects)]
fn parameter(sum: u64, count: u64) -> (u32, u64) {
    if count == 0 {
        return (0, 0);
    }
    let mean = sum / count;
    let guess = mean.checked_ilog2().unwrap_or(0).min(LONG_PARAMETER_MAX);
    let cost = |k: u32| count * u64::from(k + 1) + (sum >> k);
    let candidates = guess.saturating_sub(1)..=(guess + 1).min(LONG_PARAMETER_MAX);
    let best = candidates.min_by_key(|&k| cost(k)).unwrap_or(guess);
    (best, cost(best))
}
