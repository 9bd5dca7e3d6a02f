//! Images against the rules of docs/format.md, and with every bit flipped.
#![allow(missing_docs)]

mod example;
mod flips;
#[path = "../../../image/tests/support/read.rs"]
mod read;
mod records;
mod rules;
mod support;
