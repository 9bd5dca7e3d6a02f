//! The segments of a JPEG file (ITU-T T.81, annex B), as far as they determine the cost of
//! decoding.

use weald_format::cursor::Cursor;
use weald_format::limits::{PICTURE_BLOCKS_MAX, PICTURE_SCANS_MAX, SCANNED_BLOCKS_MAX};
use weald_format::{Error, Result};

/// Maximum components that the library can predict.
const COMPONENTS_MAX: u8 = 3;
/// Maximum blocks of a component in a unit, in each direction.
const SAMPLING_MAX: u8 = 2;

/// Start of image.
const SOI: [u8; 2] = [0xff, 0xd8];

/// Dimensions and scans of a picture.
#[derive(Debug, Default)]
pub struct Picture {
    /// Number of blocks of all components; 0 before the frame header.
    blocks: u64,
    components: u8,
    is_progressive: bool,
    /// Number of components in the first scan.
    scanned: u8,
    scan_count: usize,
}

impl Picture {
    /// Reads the segments of a JPEG file up to its first scan.
    ///
    /// # Errors
    /// `Corrupt` if the file is not a picture that recipes allow.
    pub fn of_file(file: &[u8]) -> Result<Self> {
        let mut segments = Cursor::new(file, "JPEG file");
        if segments.bytes(SOI.len())? != SOI {
            return Err(corrupt("expected a start of image"));
        }
        let mut picture = Self::default();
        while picture.scan_count == 0 {
            picture.segment(&mut segments)?;
        }
        Ok(picture)
    }

    /// Reads all segments of a file, without start and end of image and without the data after scan
    /// headers.
    ///
    /// # Errors
    /// `Corrupt` if the file is not a picture that recipes allow.
    pub fn of_segments(bytes: &[u8]) -> Result<Self> {
        let mut segments = Cursor::new(bytes, "JPEG file");
        let mut picture = Self::default();
        while segments.remaining() > 0 {
            picture.segment(&mut segments)?;
        }
        Ok(picture)
    }

    /// Whether the number of scans and blocks is within the limits.
    pub fn is_allowed(&self) -> bool {
        let blocks_max = if self.is_single_scan() {
            PICTURE_BLOCKS_MAX
        } else {
            SCANNED_BLOCKS_MAX
        };
        (1..=PICTURE_SCANS_MAX).contains(&self.scan_count)
            && (1..=blocks_max).contains(&self.blocks)
    }

    /// Whether the picture is progressive.
    pub fn is_progressive(&self) -> bool {
        self.is_progressive
    }

    /// Whether one scan holds all components.
    fn is_single_scan(&self) -> bool {
        !self.is_progressive && self.scanned == self.components
    }

    fn segment(&mut self, segments: &mut Cursor) -> Result<()> {
        let (front, marker) = (segments.byte()?, segments.byte()?);
        let len = u16::from_be_bytes([segments.byte()?, segments.byte()?]);
        let len = usize::from(len).checked_sub(size_of::<u16>());
        let (0xff, Some(len)) = (front, len) else {
            return Err(corrupt("expected a segment"));
        };
        let body = segments.bytes(len)?;
        match marker {
            // Huffman codes, quantization, restarts, application data, comments.
            0xc4 | 0xdb | 0xdd | 0xe0..=0xef | 0xfe => Ok(()),
            0xc0..=0xc2 => self.frame(marker, body),
            0xda => self.scan(body),
            _ => Err(corrupt(format!("segment {marker:#04x} is not allowed"))),
        }
    }

    /// Parses a start of frame.
    fn frame(&mut self, marker: u8, body: &[u8]) -> Result<()> {
        let mut body = Cursor::new(body, "JPEG file");
        let mut number = |len| body.bytes(len).map(be);
        let (bits, height, width, components) = (number(1)?, number(2)?, number(2)?, number(1)?);
        let (mut across_max, mut down_max, mut unit) = (1, 1, 0u64);
        for _ in 0..components {
            number(1)?;
            let sampling = number(1)? as u8;
            number(1)?;
            let (across, down) = (sampling >> 4, sampling & 15);
            if !(1..=SAMPLING_MAX).contains(&across) || !(1..=SAMPLING_MAX).contains(&down) {
                return Err(corrupt(format!(
                    "sampling: expected 1 to {SAMPLING_MAX} each way, found {across} and {down}"
                )));
            }
            across_max = across_max.max(u64::from(across));
            down_max = down_max.max(u64::from(down));
            unit = unit.saturating_add(u64::from(across).saturating_mul(down.into()));
        }
        if bits != 8 || components > COMPONENTS_MAX.into() || self.components != 0 {
            return Err(corrupt(format!(
                "frame: expected one, with at most {COMPONENTS_MAX} components of 8 bits, \
                 found {components} of {bits} bits"
            )));
        }
        let units = |len: u64, max: u64| len.div_ceil(max.saturating_mul(8));
        self.blocks = units(width, across_max)
            .saturating_mul(units(height, down_max))
            .saturating_mul(unit);
        self.components = components as u8;
        self.is_progressive = marker == 0xc2;
        body.finish()
    }

    /// Parses a start of scan.
    fn scan(&mut self, body: &[u8]) -> Result<()> {
        let mut body = Cursor::new(body, "JPEG file");
        let count = body.byte()?;
        body.bytes(usize::from(count).saturating_mul(2))?;
        let (from, to, _steps) = (body.byte()?, body.byte()?, body.byte()?);
        body.finish()?;
        let is_band = match (from, to) {
            (0, 0) => true,
            (0, _) => !self.is_progressive,
            _ => count == 1 && from <= to,
        };
        if !is_band || to > 63 || count == 0 || count > self.components {
            return Err(corrupt(format!(
                "scan: {count} components, coefficients {from} to {to}: not allowed"
            )));
        }
        if self.scan_count == 0 {
            self.scanned = count;
        }
        self.scan_count = self.scan_count.saturating_add(1);
        Ok(())
    }
}

/// Makes a `Corrupt` error about a Lepton file.
pub fn corrupt(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::corrupt("Lepton file", 0, "F-20.7", what)
}

/// Reads a big-endian number.
fn be(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |n, &b| n.wrapping_shl(8) | u64::from(b))
}
