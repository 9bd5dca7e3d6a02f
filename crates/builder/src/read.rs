//! Reading files ahead of the writer.
//!
//! `recode` finds compressed data, samples and pictures in a file, and the recipes that restore
//! them. `readers` reads, hashes and recodes files with threads, and hands them over in order.
//! `pieces` does so for the parts of files that are too long for memory.

pub mod pieces;
pub mod readers;
pub mod recode;
