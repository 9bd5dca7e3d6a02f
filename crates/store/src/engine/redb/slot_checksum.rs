//! The checksum of a commit in the header of the engine's file: XXH3 with 128 bits, of the 112
//! bytes before it. redb does not export it.

/// Bytes that the checksum is of.
pub const LEN: usize = 112;
const WORDS: usize = LEN / 8;

/// The first half of the secret that XXH3 has by default, as words of bytes in this order.
const SECRET: [u64; 16] = [
    0xbe4b_a423_396c_feb8,
    0x1cad_21f7_2c81_017c,
    0xdb97_9083_e96d_d4de,
    0x1f67_b3b7_a4a4_4072,
    0x78e5_c0cc_4ee6_79cb,
    0x2172_ffcc_7dd0_5a82,
    0x8e24_43f7_7446_08b8,
    0x4c26_3a81_e690_35e0,
    0xcb00_c391_bb52_283c,
    0xa32e_531b_8b65_d088,
    0x4ef9_0da2_9748_6471,
    0xd8ac_dea9_46ef_1938,
    0x3f34_9ce3_3f76_faa8,
    0x1d4f_0bc7_c7bb_dcf9,
    0x3159_b4cd_4be0_518a,
    0x6473_78d9_c97e_9fc8,
];
const PRIMES: [u64; 3] = [
    0x9e37_79b1_85eb_ca87,
    0xc2b2_ae3d_27d4_eb4f,
    0x85eb_ca77_c2b2_ae63,
];

/// Two words of the input with two of the secret.
fn mix(data: (u64, u64), secret: (u64, u64)) -> u64 {
    let product = u128::from(data.0 ^ secret.0) * u128::from(data.1 ^ secret.1);
    product as u64 ^ (product >> 64) as u64
}

fn avalanche(mut word: u64) -> u64 {
    word ^= word >> 37;
    word = word.wrapping_mul(0x1656_6791_9e37_79f9);
    word ^ word >> 32
}

/// The checksum of these bytes.
pub fn checksum(bytes: &[u8; LEN]) -> [u8; 16] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    let pair = |words: &[u64], at: usize| {
        let word = |at: usize| words.get(at).copied().unwrap_or(0);
        (word(at), word(at + 1))
    };
    let (mut low, mut high) = (PRIMES[0].wrapping_mul(LEN as u64), 0u64);
    // From the middle to both ends.
    for step in (0..4).rev() {
        let first = pair(&words, 2 * step);
        let last = pair(&words, WORDS - 2 * (step + 1));
        low = low.wrapping_add(mix(first, pair(&SECRET, 4 * step)));
        low ^= last.0.wrapping_add(last.1);
        high = high.wrapping_add(mix(last, pair(&SECRET, 4 * step + 2)));
        high ^= first.0.wrapping_add(first.1);
    }
    let sum = avalanche(low.wrapping_add(high));
    let rest = low
        .wrapping_mul(PRIMES[0])
        .wrapping_add(high.wrapping_mul(PRIMES[2]))
        .wrapping_add((LEN as u64).wrapping_mul(PRIMES[1]));
    let rest = avalanche(rest).wrapping_neg();
    (u128::from(rest) << 64 | u128::from(sum)).to_le_bytes()
}
