//! Mycroft: finds the rank that holds up an NCCL job, from outside the job.
//!
//! Data flows one way through the modules: [`discover`] (who to trace) → [`probe`] (attach) → [`ingest`]
//! (bytes to events) → [`model`] (state) → [`graph`] (who waits for whom) → [`rules`] (verdicts) → `report`.

pub mod app;
pub mod cli;
pub mod discover;
pub mod event;
pub mod evidence;
pub mod graph;
pub mod import;
pub mod ingest;
pub mod model;
pub mod probe;
pub mod report;
pub mod rules;
pub mod sample;
pub mod serve;
pub mod simulate;
