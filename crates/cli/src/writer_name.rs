//! How this process calls itself as the writer of a store.

/// The process id and `command`, such as `store add`. A second writer gets them in its error
/// message.
pub fn writer_name(command: &str) -> String {
    format!("process {} (weald {command})", std::process::id())
}
