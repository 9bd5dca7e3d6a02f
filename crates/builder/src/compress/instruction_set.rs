//! Detects the machine that a program was built for from its header: ELF, PE, Mach-O, and universal
//! files with several Mach-O programs.

use weald_format::directory::Category;

/// Maximum number of programs in a universal file. Java class files have the same magic number,
/// followed by a version of 45 or more in place of the count.
const PROGRAMS_MAX: u32 = 20;

/// A part of a file, which ends at `end`, and its category.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodePart {
    /// End offset in the file, exclusive; `u64::MAX` in the last part.
    pub end: u64,
    /// Category of the data.
    pub category: Category,
}

/// Returns the parts of a file that begins with `data`, in order and without gaps. Ordinary data is
/// one part.
pub fn detect_parts(data: &[u8]) -> Vec<CodePart> {
    universal_parts(data).unwrap_or_else(|| {
        vec![CodePart {
            end: u64::MAX,
            category: single_category(data),
        }]
    })
}

fn single_category(data: &[u8]) -> Category {
    elf(data)
        .or_else(|| mach_o(data))
        .or_else(|| pe(data))
        .unwrap_or(Category::General)
}

fn bytes<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..)?.first_chunk().copied()
}

/// `e_machine` of a little-endian ELF file: EM_386, EM_X86_64, EM_AARCH64.
fn elf(data: &[u8]) -> Option<Category> {
    let is_little_endian = data.starts_with(b"\x7fELF") && data.get(5) == Some(&1);
    match is_little_endian.then(|| bytes(data, 18))?? {
        [3 | 62, 0] => Some(Category::X86),
        [183, 0] => Some(Category::Arm64),
        _ => None,
    }
}

/// `Machine` of a PE file: I386, AMD64, ARM64.
fn pe(data: &[u8]) -> Option<Category> {
    let header = data.starts_with(b"MZ").then(|| bytes(data, 0x3c))??;
    let header = usize::try_from(u32::from_le_bytes(header)).ok()?;
    let [b'P', b'E', 0, 0, low, high] = bytes(data, header)? else {
        return None;
    };
    match u16::from_le_bytes([low, high]) {
        0x014c | 0x8664 => Some(Category::X86),
        0xaa64 => Some(Category::Arm64),
        _ => None,
    }
}

/// `cputype` of a Mach-O file of 32 or 64 bits.
fn mach_o(data: &[u8]) -> Option<Category> {
    let [0xce | 0xcf, 0xfa, 0xed, 0xfe, a, b, c, d] = bytes(data, 0)? else {
        return None;
    };
    of_cpu(u32::from_le_bytes([a, b, c, d]))
}

fn of_cpu(cputype: u32) -> Option<Category> {
    match cputype {
        7 | 0x0100_0007 => Some(Category::X86),
        0x0100_000c => Some(Category::Arm64),
        _ => None,
    }
}

/// Programs of a universal file (`fat_header`, big-endian), and the parts between them.
fn universal_parts(data: &[u8]) -> Option<Vec<CodePart>> {
    let number = |at| bytes(data, at).map(u32::from_be_bytes);
    let long = |at| bytes(data, at).map(u64::from_be_bytes);
    // FAT_MAGIC, or FAT_MAGIC_64 with longer offsets and lengths.
    let is_long = match number(0)? {
        0xcafe_babe => false,
        0xcafe_babf => true,
        _ => return None,
    };
    let count = number(4).filter(|count| (1..=PROGRAMS_MAX).contains(count))?;
    let mut programs = Vec::new();
    for i in 0..count as usize {
        let (start, len) = if is_long {
            (long(8 + i * 32 + 8)?, long(8 + i * 32 + 16)?)
        } else {
            let at = 8 + i * 20;
            (u64::from(number(at + 8)?), u64::from(number(at + 12)?))
        };
        let category = of_cpu(number(8 + i * if is_long { 32 } else { 20 })?);
        programs.push((start, start.checked_add(len)?, category));
    }
    programs.sort_unstable_by_key(|program| program.0);
    let mut parts = Vec::new();
    let mut end = 0;
    for (start, stop, category) in programs {
        if start < end {
            return None;
        }
        let general = Category::General;
        parts.push(CodePart {
            end: start,
            category: general,
        });
        let category = category.unwrap_or(general);
        parts.push(CodePart {
            end: stop,
            category,
        });
        end = stop;
    }
    parts.push(CodePart {
        end: u64::MAX,
        category: Category::General,
    });
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(data: &[u8]) -> Category {
        let parts = detect_parts(data);
        assert_eq!((parts.len(), parts[0].end), (1, u64::MAX));
        parts[0].category
    }

    fn with(len: usize, fields: &[(usize, &[u8])]) -> Vec<u8> {
        let mut data = vec![0; len];
        for &(at, bytes) in fields {
            data[at..at + bytes.len()].copy_from_slice(bytes);
        }
        data
    }

    /// Would catch: a header field read at the wrong offset, in the wrong byte order, or behind the
    /// end.
    #[test]
    fn the_machine_is_detected_from_the_header() {
        use Category::{Arm64, General, X86};
        let elf =
            |order, machine: &[u8]| with(64, &[(0, b"\x7fELF"), (5, &[order]), (18, machine)]);
        let pe = |machine: &[u8]| {
            with(
                200,
                &[
                    (0, b"MZ"),
                    (0x3c, &[128, 0, 0, 0]),
                    (128, b"PE\0\0"),
                    (132, machine),
                ],
            )
        };
        let mach = |magic, cpu: &[u8]| with(32, &[(0, &[magic, 0xfa, 0xed, 0xfe]), (4, cpu)]);
        let cases = [
            (elf(1, &[62, 0]), X86),
            (elf(1, &[3, 0]), X86),
            (elf(1, &[183, 0]), Arm64),
            (elf(2, &[183, 0]), General),
            (elf(1, &[243, 0]), General),
            (pe(&[0x4c, 0x01]), X86),
            (pe(&[0x64, 0x86]), X86),
            (pe(&[0x64, 0xaa]), Arm64),
            (pe(&[0xc4, 0x01]), General),
            (with(64, &[(0, b"MZ"), (0x3c, &[0xff; 4])]), General),
            (mach(0xcf, &[7, 0, 0, 1]), X86),
            (mach(0xce, &[7, 0, 0, 0]), X86),
            (mach(0xcf, &[12, 0, 0, 1]), Arm64),
            (mach(0xcf, &[18, 0, 0, 1]), General),
            (b"\x7fELF".to_vec(), General),
            (b"#!/bin/sh".to_vec(), General),
            (Vec::new(), General),
        ];
        for (data, expected) in cases {
            assert_eq!(only(&data), expected, "{data:x?}");
            for len in 0..data.len() {
                detect_parts(&data[..len]);
            }
        }
    }

    fn fat(programs: &[(u32, u32, u32)]) -> Vec<u8> {
        let mut data = 0xcafe_babe_u32.to_be_bytes().to_vec();
        data.extend((programs.len() as u32).to_be_bytes());
        for &(cpu, start, len) in programs {
            data.extend([cpu, 0, start, len, 14].map(u32::to_be_bytes).concat());
        }
        data
    }

    /// Would catch: all programs of a file in one stream; a file with overlapping programs that is
    /// accepted; a Java class file taken for programs.
    #[test]
    fn programs_of_a_universal_file_are_parts() {
        let (x86, arm) = (0x0100_0007, 0x0100_000c);
        let part = |end, category| CodePart { end, category };
        let expected = [
            part(16384, Category::General),
            part(17384, Category::X86),
            part(32768, Category::General),
            part(34768, Category::Arm64),
            part(u64::MAX, Category::General),
        ];
        let two = fat(&[(arm, 32768, 2000), (x86, 16384, 1000)]);
        assert_eq!(detect_parts(&two), expected);
        assert_eq!(
            only(&fat(&[(x86, 100, 1000), (arm, 1099, 5)])),
            Category::General
        );
        assert_eq!(only(&two[..40]), Category::General);
        assert_eq!(only(&fat(&[])), Category::General);
        let class = [0xca, 0xfe, 0xba, 0xbe, 0, 0, 0, 52, 0, 20, 10, 0];
        assert_eq!(only(&class), Category::General);
        let mut long = 0xcafe_babf_u32.to_be_bytes().to_vec();
        long.extend(1u32.to_be_bytes());
        long.extend(arm.to_be_bytes());
        long.extend([0; 4]);
        long.extend([4096u64, 50, 0].map(u64::to_be_bytes).concat());
        let expected = [
            part(4096, Category::General),
            part(4146, Category::Arm64),
            part(u64::MAX, Category::General),
        ];
        assert_eq!(detect_parts(&long), expected);
    }
}
