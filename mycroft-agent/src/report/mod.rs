//! Verdicts and state for people and machines.
//!
//! Owns: wording, wire types, metrics. Must not: judge or change anything.

pub mod dot;
pub mod flows;
pub mod json;
pub mod metrics;
pub mod text;
