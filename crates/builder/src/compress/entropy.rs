//! Detects data that no codec makes smaller.

/// Shortest content whose entropy is measured, bytes.
const PROBE_LEN_MIN: usize = 8 << 10;
/// Length of each of the three probes, bytes.
const ENTROPY_PROBE_LEN: usize = 4 << 10;
/// Entropy above which data counts as incompressible, bits per byte. Random bytes show 7.95 in a
/// probe of 4 KiB.
const PROBE_BITS: f64 = 7.8;

/// Whether three probes of the data (front, middle and end) all look random.
pub fn is_incompressible(data: &[u8]) -> bool {
    if data.len() < PROBE_LEN_MIN {
        return false;
    }
    // Compressed files begin with magic numbers and headers, which are not random. The first probe
    // therefore starts at byte 512.
    let starts = [
        512,
        (data.len() - ENTROPY_PROBE_LEN) / 2,
        data.len() - ENTROPY_PROBE_LEN,
    ];
    starts
        .iter()
        .all(|&start| entropy_bits(&data[start..start + ENTROPY_PROBE_LEN]) > PROBE_BITS)
}

fn entropy_bits(bytes: &[u8]) -> f64 {
    let mut counts = [0u32; 256];
    bytes.iter().for_each(|&b| counts[usize::from(b)] += 1);
    let total = bytes.len() as f64;
    let used = counts.iter().filter(|&&c| c > 0).map(|&c| f64::from(c));
    used.map(|c| c / total * (total / c).log2()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_are_incompressible_and_others_not() {
        let mut noise = vec![0; 100_000];
        blake3::Hasher::new().finalize_xof().fill(&mut noise);
        assert!(is_incompressible(&noise));
        assert!(!is_incompressible(&noise[..4000]));
        assert!(!is_incompressible(&vec![7; 100_000]));
        let base64: Vec<u8> = noise.iter().map(|b| b & 63).collect();
        assert!(!is_incompressible(&base64));
        noise[50_000..60_000].fill(0);
        assert!(!is_incompressible(&noise));
    }
}
