//! HTTP: metrics for Prometheus, health for Kubernetes, state for `mycroft diagnose`. Read-only.
//!
//! Owns: the port. Must not: touch the loop; it serves what the loop has left.

pub mod http;

pub use http::{Served, serve};
