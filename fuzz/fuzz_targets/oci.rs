//! OCI layouts and archives of `docker save`, and layers in any order.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_fuzz::oci::examine_oci;

fuzz_target!(|data: &[u8]| examine_oci(data));
