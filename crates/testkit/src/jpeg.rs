//! Draws JPEG files from a seed. They are not real pictures, but have everything that a decoder of
//! coefficients meets.

use crate::Rng;

/// Properties of a file.
#[derive(Debug, Clone, Copy)]
pub struct Jpeg {
    /// Width and height in units of 16 pixels.
    pub units: (u16, u16),
    /// Whether it has three components instead of one; the second and third have half the
    /// resolution.
    pub is_color: bool,
    /// Whether it has one scan for the first coefficients and one scan per component for the rest.
    pub is_progressive: bool,
    /// Number of units between restarts; 0 for none.
    pub restart: u16,
}

impl Jpeg {
    /// A sequential colour file of this width and height in units of 16 pixels.
    pub const fn new(across: u16, down: u16) -> Self {
        Self {
            units: (across, down),
            is_color: true,
            is_progressive: false,
            restart: 0,
        }
    }

    /// Draws the file.
    pub fn draw(self, seed: u64) -> Vec<u8> {
        let mut rng = Rng::new(seed);
        let planes: Vec<Plane> = self
            .components()
            .iter()
            .map(|&(scale, side)| {
                let (across, down) = (self.units.0, self.units.1);
                Plane::draw(
                    scale * usize::from(across),
                    scale * usize::from(down),
                    side,
                    &mut rng,
                )
            })
            .collect();
        let mut out = b"\xff\xd8".to_vec();
        segment(&mut out, 0xfe, b"drawn");
        let steps: Vec<u8> = (0..64).map(|i| 2 + i / 3).collect();
        segment(&mut out, 0xdb, &[&[0], &steps[..]].concat());
        self.frame(&mut out);
        segment(&mut out, 0xc4, &codes(0, 4, 0..12));
        segment(&mut out, 0xc4, &codes(0x10, 8, rest_symbols()));
        if self.restart > 0 {
            segment(&mut out, 0xdd, &self.restart.to_be_bytes());
        }
        let all: Vec<usize> = (0..planes.len()).collect();
        if self.is_progressive {
            self.scan(&mut out, &planes, &all, 0..1);
            for plane in all {
                self.scan(&mut out, &planes, &[plane], 1..64);
            }
        } else {
            self.scan(&mut out, &planes, &all, 0..64)
        }
        out.extend_from_slice(b"\xff\xd9");
        out
    }

    /// For each component: blocks per 16 pixels, and blocks per unit of an interleaved scan, in
    /// each direction.
    fn components(self) -> &'static [(usize, usize)] {
        if self.is_color {
            &[(2, 2), (1, 1), (1, 1)]
        } else {
            &[(2, 1)]
        }
    }

    fn frame(self, out: &mut Vec<u8>) {
        let mut frame = vec![8];
        frame.extend_from_slice(&(self.units.1 * 16).to_be_bytes());
        frame.extend_from_slice(&(self.units.0 * 16).to_be_bytes());
        frame.push(self.components().len() as u8);
        for (id, &(_, side)) in (1..).zip(self.components()) {
            frame.extend_from_slice(&[id, (side * 0x11) as u8, 0]);
        }
        segment(out, if self.is_progressive { 0xc2 } else { 0xc0 }, &frame);
    }

    /// Writes a scan of the coefficients `band` of the planes `of`.
    fn scan(self, out: &mut Vec<u8>, planes: &[Plane], of: &[usize], band: std::ops::Range<usize>) {
        let mut header = vec![of.len() as u8];
        for &plane in of {
            header.extend_from_slice(&[plane as u8 + 1, 0]);
        }
        header.extend_from_slice(&[band.start as u8, band.end as u8 - 1, 0]);
        segment(out, 0xda, &header);

        let mut bits = Bits::default();
        let mut last = [0; 3];
        // In a scan of one component, a unit is one block, in rows.
        let (across, down) = match of {
            [plane] => (
                planes[*plane].across,
                planes[*plane].blocks.len() / planes[*plane].across,
            ),
            _ => (self.units.0.into(), self.units.1.into()),
        };
        for unit in 0..across * down {
            if self.restart > 0 && unit > 0 && unit % usize::from(self.restart) == 0 {
                bits.end();
                let number = (unit / usize::from(self.restart) - 1) % 8;
                bits.out.extend_from_slice(&[0xff, 0xd0 + number as u8]);
                last = [0; 3];
            }
            for &no in of {
                let plane = &planes[no];
                let side = if of.len() == 1 { 1 } else { plane.side };
                for block in 0..side * side {
                    let x = unit % across * side + block % side;
                    let y = unit / across * side + block / side;
                    let block = &plane.blocks[y * plane.across + x];
                    if band.start == 0 {
                        bits.number(4, 0, block[0] - last[no]);
                        last[no] = block[0];
                    }
                    bits.put_ac_coefficients(&block[band.start.max(1)..band.end.max(1)]);
                }
            }
        }
        bits.end();
        out.extend_from_slice(&bits.out);
    }
}

/// Coefficients of a component, block by block, in rows.
struct Plane {
    across: usize,
    /// Blocks per unit in each direction.
    side: usize,
    blocks: Vec<[i32; 64]>,
}

impl Plane {
    fn draw(across: usize, down: usize, side: usize, rng: &mut Rng) -> Self {
        let mut level = 0i32;
        let mut block = || {
            let mut block = [0; 64];
            level = (level + rng.below(41) as i32 - 20).clamp(-500, 500);
            block[0] = level;
            for _ in 0..rng.below(8) {
                let at = 1 + rng.below(20) * rng.below(4);
                let size = 60 / (at as i32 + 4) + 1;
                block[at as usize] = rng.below(size as u64 * 2 + 1) as i32 - size;
            }
            block
        };
        Self {
            across,
            side,
            blocks: (0..across * down).map(|_| block()).collect(),
        }
    }
}

/// Bits of a scan. A zero byte follows each byte that looks like the start of a marker.
#[derive(Default)]
struct Bits {
    out: Vec<u8>,
    byte: u8,
    count: u32,
}

impl Bits {
    fn put(&mut self, value: u32, len: u32) {
        for bit in (0..len).rev() {
            self.byte = self.byte << 1 | (value >> bit & 1) as u8;
            self.count += 1;
            if self.count == 8 {
                self.out.push(self.byte);
                if self.byte == 0xff {
                    self.out.push(0);
                }
                self.count = 0;
            }
        }
    }

    /// Writes a number after `zeros` zeros; its code has `len` bits.
    fn number(&mut self, len: u32, zeros: u32, value: i32) {
        let size = 32 - value.unsigned_abs().leading_zeros();
        let symbol = match len {
            4 => size,
            _ => code_of(zeros << 4 | size),
        };
        self.put(symbol, len);
        let below = if value < 0 { value - 1 } else { value };
        self.put(below as u32 & ((1 << size) - 1), size);
    }

    /// Writes all coefficients of a block except the first.
    fn put_ac_coefficients(&mut self, put_ac_coefficients: &[i32]) {
        let Some(last) = put_ac_coefficients.iter().rposition(|&c| c != 0) else {
            if !put_ac_coefficients.is_empty() {
                self.put(code_of(0), 8);
            }
            return;
        };
        let mut zeros = 0;
        for &value in &put_ac_coefficients[..=last] {
            match value {
                0 if zeros == 15 => {
                    self.put(code_of(0xf0), 8);
                    zeros = 0;
                }
                0 => zeros += 1,
                _ => {
                    self.number(8, zeros, value);
                    zeros = 0;
                }
            }
        }
        if last + 1 < put_ac_coefficients.len() {
            self.put(code_of(0), 8);
        }
    }

    /// Fills the last byte.
    fn end(&mut self) {
        while self.count > 0 {
            self.put(1, 1);
        }
    }
}

/// Symbols of all coefficients except the first: end of block, sixteen zeros, zeros and size.
fn rest_symbols() -> impl Iterator<Item = u8> {
    let sizes = |zeros: u8| (1..=10).map(move |size| zeros << 4 | size);
    [0, 0xf0].into_iter().chain((0..16).flat_map(sizes))
}

/// Code of such a symbol; all codes have eight bits.
fn code_of(symbol: u32) -> u32 {
    match symbol {
        0 => 0,
        0xf0 => 1,
        _ => 2 + (symbol >> 4) * 10 + (symbol & 15) - 1,
    }
}

/// A table of codes that all have `len` bits.
fn codes(id: u8, len: usize, symbols: impl Iterator<Item = u8>) -> Vec<u8> {
    let symbols: Vec<u8> = symbols.collect();
    let mut table = vec![id];
    table.extend((1..=16).map(|l| if l == len { symbols.len() as u8 } else { 0 }));
    table.extend_from_slice(&symbols);
    table
}

fn segment(out: &mut Vec<u8>, marker: u8, body: &[u8]) {
    out.extend_from_slice(&[0xff, marker]);
    out.extend_from_slice(&(body.len() as u16 + 2).to_be_bytes());
    out.extend_from_slice(body);
}
