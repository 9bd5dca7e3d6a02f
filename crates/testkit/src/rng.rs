//! Seeded random numbers: small, fast, the same on every machine.

/// A SplitMix64 generator: every seed gives a different, good sequence of period 2^64.
///
/// # Source
/// G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators", OOPSLA
/// 2014.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// Starts the sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Starts with the seed in the environment variable `WEALD_SEED`, or with the clock. Prints the
    /// seed, so that a failing run can be repeated.
    ///
    /// # Panics
    /// If the variable is set but is not a number.
    pub fn from_environment() -> Self {
        let seed = match std::env::var("WEALD_SEED") {
            Ok(text) => text.parse().expect("WEALD_SEED is a number"),
            Err(_) => std::time::UNIX_EPOCH
                .elapsed()
                .map_or(0, |t| t.as_nanos() as u64),
        };
        eprintln!("seed: WEALD_SEED={seed}");
        Self(seed)
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// Draws a number in `0 .. bound`; the bias is below `bound` / 2^64.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0);
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns true with probability 1 / `count`.
    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// Picks one of `items`.
    ///
    /// # Panics
    /// If `items` is empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next_u64().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

/// Makes `len` bytes of hexadecimal words. They compress like text, to about half.
pub fn words(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let mut out = String::with_capacity(len + 32);
    while out.len() < len {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        out.push_str(&format!("{:x} ", (state >> 40) & 0xfffff));
    }
    out.truncate(len);
    out.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        let mut rng = Rng::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        assert_eq!(
            first,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn bounded_numbers_reach_both_ends() {
        let mut rng = Rng::new(1);
        let mut seen = [0; 7];
        (0..7000).for_each(|_| seen[rng.below(7) as usize] += 1);
        assert!(seen.iter().all(|&n| (800..1200).contains(&n)), "{seen:?}");
        assert_eq!(rng.bytes(13).len(), 13);
    }
}
