//! A volume as it is at one moment, or a snapshot of it, for commands that seal or read it.

pub mod image;
pub mod mounted;
pub mod source;
pub mod survey;
pub mod walk;
