//! A list of strings in one buffer.

/// Decoded names in one buffer, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Names {
    pub(super) bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Names {
    /// Name at `index`; empty past the end.
    pub fn get(&self, index: usize) -> &[u8] {
        let end = self.ends.get(index).copied().unwrap_or(0) as usize;
        let start = match index.checked_sub(1) {
            Some(before) => self.ends.get(before).copied().unwrap_or(0) as usize,
            None => 0,
        };
        self.bytes.get(start..end).unwrap_or(&[])
    }

    /// Number of names.
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of heap memory of the names.
    pub fn memory_len(&self) -> usize {
        self.bytes
            .len()
            .saturating_add(self.ends.len().saturating_mul(4))
    }

    /// Splits `bytes` into consecutive strings of these lengths.
    pub fn from_lens(bytes: &[u8], lens: &[usize]) -> Self {
        let mut end = 0u32;
        let ends = lens.iter().map(|&len| {
            end = end.saturating_add(len as u32);
            end
        });
        Self {
            ends: ends.collect(),
            bytes: bytes.to_vec(),
        }
    }

    /// Ends a name: its bytes are those appended to `bytes` since the last call.
    pub(super) fn end_name(&mut self) {
        self.ends.push(self.bytes.len() as u32);
    }
}
