//! Facts about an image for reports and for programs that write another image from it.
//!
//! `sections` says where stored bytes go, `space` what each step of the builder saved, `raw_access`
//! gives records, streams and templates as they are stored.

pub mod raw_access;
pub mod sections;
pub mod space;
