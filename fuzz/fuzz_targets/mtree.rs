//! Descriptions in the format of mtree(5).
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_fuzz::examine_stream;
use weald_ingest::Format;

fuzz_target!(|data: &[u8]| examine_stream(data, Format::Mtree { contents: None }));
