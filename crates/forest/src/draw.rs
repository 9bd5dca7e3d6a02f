//! Stateless random numbers: one for every position and purpose, the same on every machine.

/// Key of a position or a purpose, from which numbers are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key(u64);

/// A probability, 0 … 1, in units of 2^-53. It is exact, so all machines draw the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Share(u64);

impl Share {
    /// Probability 0.
    pub const NONE: Self = Self(0);

    /// Makes a probability; `None` outside 0 … 1.
    pub fn new(share: f64) -> Option<Self> {
        (0.0..=1.0)
            .contains(&share)
            .then_some(Self((share * (1u64 << 53) as f64) as u64))
    }

    /// Sum of probabilities; `None` if it is above 1.
    pub fn sum(shares: &[Self]) -> Option<Self> {
        let sum = shares.iter().map(|s| s.0).sum();
        (sum <= 1 << 53).then_some(Self(sum))
    }

    /// Whether the probability is 0.
    pub fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl Key {
    /// Key of a forest.
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// Key of `part` within this one.
    pub fn part(self, part: u64) -> Self {
        Self(mix(self.0 ^ mix(part.wrapping_add(0x9E37_79B9_7F4A_7C15))))
    }

    /// 64 random bits.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Draws a number below `bound`, which is above 0. The bias is below `bound` / 2^64.
    pub fn below(self, bound: u64) -> u64 {
        ((u128::from(self.0) * u128::from(bound)) >> 64) as u64
    }

    /// Draws whether an event of probability `share` happens.
    pub fn is_in(self, share: Share) -> bool {
        (self.0 >> 11) < share.0
    }

    /// Draws a number from 0 to below 1.
    pub fn fraction(self) -> f64 {
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Draws from an approximately normal distribution with mean 0 and standard deviation 1, within
    /// ±6: the sum of twelve uniform numbers.
    pub fn normal(self) -> f64 {
        (0..12).map(|i| self.part(i).fraction()).sum::<f64>() - 6.0
    }
}

/// The finalizer of SplitMix64: every bit of the result depends on every bit of `z`.
///
/// # Source
/// G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators", OOPSLA
/// 2014.
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

/// A sequence of random numbers for one key.
#[derive(Debug, Clone)]
pub struct Sequence(u64);

impl Sequence {
    /// Starts the sequence of `key`.
    pub fn new(key: Key) -> Self {
        Self(key.0)
    }

    /// The next 64 bits.
    pub fn next_bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }
}

/// 2 to the power of `x`, with arithmetic that is the same on every machine (the `exp2` of
/// libraries is not). The relative error is below 10^-12 for |x| < 64.
pub fn power_of_two(x: f64) -> f64 {
    let whole = x.floor();
    let rest = (x - whole) * std::f64::consts::LN_2;
    let mut term = 1.0;
    let mut sum = 1.0;
    for i in 1..20 {
        term *= rest / f64::from(i);
        sum += term;
    }
    let scale = (0..whole.abs().min(1000.0) as u32).fold(1.0f64, |s, _| s * 2.0);
    if whole < 0.0 {
        sum / scale
    } else {
        sum * scale
    }
}

/// Logarithm of `x` > 0 to base 2, also the same on every machine.
pub fn logarithm(x: f64) -> f64 {
    let (mut x, mut whole) = (x, 0.0);
    while x >= 2.0 {
        x /= 2.0;
        whole += 1.0;
    }
    while x < 1.0 {
        x *= 2.0;
        whole -= 1.0;
    }
    // ln x = 2 atanh((x − 1) / (x + 1))
    let z = (x - 1.0) / (x + 1.0);
    let (mut power, mut sum) = (z, 0.0);
    for i in 0..40 {
        sum += power / f64::from(2 * i + 1);
        power *= z * z;
    }
    whole + 2.0 * sum / std::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_arithmetic_agrees_with_the_library() {
        for i in -300..300 {
            let x = f64::from(i) / 7.3;
            let power = power_of_two(x);
            assert!((power / x.exp2() - 1.0).abs() < 1e-12, "{x}");
            assert!((logarithm(power) - x).abs() < 1e-9, "{x}");
        }
    }

    /// Catches: keys whose parts are correlated.
    #[test]
    fn draws_are_spread_evenly() {
        let share = Share::new(0.25).unwrap();
        let key = Key::new(1);
        let hits = (0..100_000).filter(|&i| key.part(i).is_in(share)).count();
        assert!((24_000..26_000).contains(&hits), "{hits}");
        let mut counts = [0u32; 10];
        (0..100_000).for_each(|i| counts[key.part(i).part(7).below(10) as usize] += 1);
        assert!(
            counts.iter().all(|c| (9_500..10_500).contains(c)),
            "{counts:?}"
        );
        assert!(Key::new(2).is_in(Share::new(1.0).unwrap()) && !Key::new(2).is_in(Share::NONE));
        let mean = (0..10_000).map(|i| key.part(i).normal()).sum::<f64>() / 10_000.0;
        assert!(mean.abs() < 0.05, "{mean}");
    }
}
