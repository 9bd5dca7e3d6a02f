//! The walker.
