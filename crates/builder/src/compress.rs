//! From blocks to records.
//!
//! `entropy` detects incompressible data, `instruction_set` machine code, which gets a filter.
//! `dictionary` trains the shared dictionary. `cluster` groups similar blocks. `compressors`
//! encodes blocks with threads; `record_history` finds older records to encode a small one against.

pub mod cluster;
pub mod compressors;
pub mod dictionary;
pub mod entropy;
pub mod instruction_set;
pub mod record_history;
