//! A volume as it is at one moment, or a snapshot of it, for commands that seal or read it.

pub mod image;
mod leased;
pub mod mounted;
mod own_writer;
pub mod source;
pub mod survey;
pub mod walk;
