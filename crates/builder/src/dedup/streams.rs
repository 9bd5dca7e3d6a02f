//! The streams of a new image: each holds the contents of one category.

use weald_format::directory::Category;

/// Stream of ordinary data.
pub const GENERAL: u8 = 0;
/// Stream of data that no codec makes smaller.
pub const INCOMPRESSIBLE: u8 = 1;
/// Stream of x86 machine code.
pub const X86: u8 = 2;
/// Stream of data that recipes make.
pub const MADE: u8 = 3;
/// Stream of ARM64 machine code.
pub const ARM64: u8 = 4;

/// Category of each stream; the index is the stream number.
pub const CATEGORIES: [Category; 5] = [
    Category::General,
    Category::Incompressible,
    Category::X86,
    Category::Made,
    Category::Arm64,
];

/// Divisor of the window for each stream: stream `i` gets 1 / `WINDOW_SHARES[i]` of it, ordinary
/// data half. The stream of recipes gets nothing, because no repeat is searched in it.
pub const WINDOW_SHARES: [u64; CATEGORIES.len()] = [2, 4, 8, u64::MAX, 8];
